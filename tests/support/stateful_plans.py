"""A small plan with states, one of which is written in place."""

import numpy as np

from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.graph import Graph
from taper_frontend.compiler.planning import make_plan
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
