"""A small plan with states, one of which is written in place."""

from functools import partial

import numpy as np

from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.graph import Graph
from taper_frontend.compiler.planning import make_plan
from taper_runtime.base.random_state import new_state
from taper_runtime.base.sizes import variable
from taper_runtime.plan.plan import Plan


def accumulating_plan(rows: int, width: int) -> Plan:
    """Two rows ``x`` written at ``at`` to a cache of ``rows`` in place, and a running sum."""
    graph = Graph()
    x = graph.add_input("x", "float32", (2, width))
    at = graph.add_input("at", "int64", (2,))
    cache = graph.add_state("cache", np.zeros((rows, width), np.float32))
    total = graph.add_state("total", np.ones((width,), np.float32))
    written = graph.add_node("WRITE", [cache, at, graph.add_node("EXP", [x])], {"axis": 0})
    graph.set_next("cache", written)
    added = graph.add_node("ADD", [total, graph.add_node("SUM", [written], {"axes": (0,)})])
    graph.set_next("total", added)
    graph.set_outputs([graph.add_node("MUL", [added, added])])
    compile_graph(graph)
    return make_plan(graph)


#: Positions of the cache of :func:`sequence_plan`, and its width.
LENGTH, WIDTH = 6, 8


def sequence_plan(
    batch: int | None = None, *, shared: bool = False, draws: bool = False, length: int = LENGTH
) -> Plan:
    """Rows of a batch, each with a cache in place, a running sum and, along axis 1, means.

    A position at the end of the cache makes a run fail after it has written there.

    Parameters
    ----------
    batch : int, optional
        The number of rows; without it, one that varies from 1 to 16.
    shared : bool
        Whether there is a state too that all rows share.
    draws : bool
        Whether noise is added to the result.
    length : int
        The positions of the cache.
    """
    graph = Graph()
    rows, first = batch, batch
    if batch is None:
        rows, first = variable("rows", 1, 16), 1
        graph.sizes["rows"], graph.examples["rows"] = (1, 16), 2
    zeros = partial(np.zeros, dtype=np.float32)
    x = graph.add_input("x", "float32", (rows, 1, WIDTH))
    at = graph.add_input("at", "int64", (1,))
    shape = (length, WIDTH)
    cache = graph.add_state("cache", zeros((first, *shape)), shape=(rows, *shape))
    total = graph.add_state("total", zeros((first, WIDTH)), shape=(rows, WIDTH))
    means = graph.add_state("means", zeros((2, first)), shape=(2, rows))
    written = graph.add_node("WRITE", [cache, at, graph.add_node("TANH", [x])], {"axis": 1})
    graph.set_next("cache", written)
    added = graph.add_node("ADD", [total, graph.add_node("SUM", [written], {"axes": (1,)})])
    graph.set_next("total", added)
    mean = graph.add_node("MEAN", [added], {"axes": (1,)})
    moved = graph.add_node("ADD", [graph.add_node("MUL", [means, means]), mean])
    graph.set_next("means", moved)
    weight = np.linspace(-1, 1, WIDTH * WIDTH, dtype=np.float32).reshape(WIDTH, WIDTH)
    result = graph.add_node("MATMUL", [added, graph.add_constant("w", weight)])
    table = graph.add_constant("table", np.arange(length - 1, dtype=np.float32)[:, None])
    result = graph.add_node(
        "ADD", [result, graph.add_node("INDEX_SELECT", [table, at], {"axis": 0})]
    )
    if shared:
        steps = graph.add_state("steps", zeros((1,)))
        graph.set_next(
            "steps",
            graph.add_node("ADD", [steps, graph.add_node("CAST", [at], {"dtype": "float32"})]),
        )
    if draws:
        generator = graph.add_state("generator", new_state(0))
        law = {"law": "normal", "limit": 0}
        noise = graph.add_node(
            "RANDOM", [generator], {**law, "shape": (rows, WIDTH), "dtype": "float32"}
        )
        graph.set_next("generator", graph.add_node("RANDOM_NEXT", [generator, noise], law))
        result = graph.add_node("ADD", [result, noise])
    graph.set_outputs([result, graph.add_node("ADD", [moved, moved])])
    compile_graph(graph)
    return make_plan(graph)
