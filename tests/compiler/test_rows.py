"""Items of a batch that a plan keeps apart have the same bits whatever stands beside them."""

import numpy as np
import pytest

from random_graphs import random_graph
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.graph import Graph
from taper_frontend.compiler.planning import make_plan
from taper_runtime import InferenceSession
from taper_runtime.base.sizes import variable
from taper_runtime.plan.rows import find_batch

N = variable("n", 1, 64)


def planned(graph):
    compile_graph(graph)
    return make_plan(graph)


def fed(plan, rng, batch):
    """Arrays for a batch of so many items, which are the same for the same generator."""
    feed = {}
    for name in plan.inputs:
        shape = [size if type(size) is int else batch for size in plan.tensors[name].shape]
        drawn = rng.standard_normal(shape)
        feed[name] = (
            np.asarray(drawn > 0, np.int64)
            if plan.tensors[name].dtype == "int64"
            else drawn.astype(np.float32)
        )
    return feed


def test_items_that_are_apart_do_not_see_their_neighbours():
    plans = [planned(random_graph(seed)) for seed in range(16)]
    found = [(plan, find_batch(plan)) for plan in plans]
    found = [(plan, batch) for plan, batch in found if batch is not None and batch.apart]
    assert len(found) >= 8
    for plan, batch in found:
        check_items(plan, batch)


def check_items(plan, batch):
    one, two = (fed(plan, np.random.default_rng(i), 1) for i in (1, 2))
    for name in two:
        if len(two[name]) == batch.size:
            two[name][0] = one[name][0]
        else:
            two[name] = one[name]
    session = InferenceSession(plan)
    for name in batch.apart:
        a, b = (session.run([name], feed)[0] for feed in (one, two))
        rows = len(a) // batch.size
        assert a[:rows].tobytes() == b[:rows].tobytes(), name


def graph_of_rows(*ops, shape=(N, 48)):
    graph = Graph({"n": (1, 64)}, {"n": 4}) if N in shape else Graph()
    x = graph.add_input("x", "float32", shape)
    for op, more, attrs in ops:
        x = graph.add_node(
            op, [x, *(graph.add_constant(f"c{op}", c, "float32") for c in more)], attrs
        )
    graph.set_outputs([x])
    return planned(graph)


def weight(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_bits_do_not_depend_on_how_many_items_there_are():
    plan = graph_of_rows(
        ("MATMUL", [weight(48, 300)], {}),
        ("GELU", [], {}),
        ("MATMUL", [weight(300, 33)], {}),
        ("SOFTMAX", [], {"axis": 1}),
    )
    assert find_batch(plan).apart == plan.outputs
    session = InferenceSession(plan)
    x = weight(64, 48)
    (all_of_them,) = session.run(None, {"x": x})
    for count in (1, 2, 3, 5, 8, 16, 33, 63):
        assert session.run(None, {"x": x[:count]})[0].tobytes() == all_of_them[:count].tobytes()


@pytest.mark.parametrize(
    "op",
    [
        ("SUM", [], {"axes": (0,), "keepdim": True}),
        ("CUMSUM", [], {"axis": 0}),
        ("SOFTMAX", [], {"axis": 0}),
        ("FLIP", [], {"axes": (0,)}),
        ("TRANSPOSE", [], {"axis0": 0, "axis1": 1}),
    ],
    ids=lambda op: op[0],
)
def test_what_mixes_items_is_said(op):
    plan = graph_of_rows(op, ("MATMUL", [weight(4, 4)], {}), shape=(4, 4))
    assert find_batch(plan).mixed == plan.outputs


def test_no_batch():
    assert find_batch(graph_of_rows(("EXP", [], {}), shape=())) is None
