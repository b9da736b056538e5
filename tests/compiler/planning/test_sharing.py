"""Tensors that share memory, and tensors that must not."""

import numpy as np
import pytest

from taper_frontend.compiler.graph import Graph, evaluate
from taper_frontend.compiler.planning import make_plan
from taper_runtime import InferenceSession
from taper_runtime.executor.memory_use import memory_use


def graph_of(build, *shapes):
    graph = Graph()
    names = [graph.add_input(f"x{i}", "float32", shape) for i, shape in enumerate(shapes)]
    graph.set_outputs(build(graph, *names))
    return graph


def check(graph):
    """Plan, run with native kernels, compare with the graph's meaning; return the plan."""
    rng = np.random.default_rng(0)
    feed = {
        name: rng.standard_normal(graph.tensors[name].shape).astype(np.float32)
        for name in graph.inputs
    }
    want = evaluate(graph, feed)
    plan = make_plan(graph)
    kept = {name: array.copy() for name, array in feed.items()}
    got = InferenceSession(plan).run(None, feed)
    for name, array in zip(plan.outputs, got, strict=True):
        np.testing.assert_allclose(array, want[name], rtol=1e-5, atol=1e-5)
    for name, array in kept.items():
        np.testing.assert_array_equal(feed[name], array, "an input was written")
    return plan


def executed(plan):
    return [node.op for node in plan.nodes if plan.is_executed(node)]


def scalar(value):
    return {"scalar": value, "scalar_index": 1}


def test_views_cost_nothing():
    def build(g, x):
        y = g.add_node("RELU", [x])
        y = g.add_node("RESHAPE", [y], {"shape": (4, 3, 5)})
        y = g.add_node("TRANSPOSE", [y], {"axis0": 0, "axis1": 1})
        y = g.add_node("SLICE", [y], {"axis": 1, "start": 1, "stop": 4, "step": 2})
        return [g.add_node("NEG", [y])]

    assert executed(check(graph_of(build, (12, 5)))) == ["RELU", "NEG"]


def test_views_of_an_input_cost_nothing():
    def build(g, x):
        y = g.add_node("RESHAPE", [x], {"shape": (60,)})
        y = g.add_node("SLICE", [y], {"axis": 0, "start": 8, "stop": 20})
        return [g.add_node("NEG", [y])]

    assert executed(check(graph_of(build, (12, 5)))) == ["NEG"]


def test_a_view_is_copied_for_a_consumer_that_needs_it_contiguous():
    def build(g, x):
        y = g.add_node("TRANSPOSE", [x], {"axis0": 0, "axis1": 1})
        return [g.add_node("SOFTMAX", [y], {"axis": 1})]

    assert executed(check(graph_of(build, (12, 5)))) == ["TRANSPOSE", "SOFTMAX"]


def test_parts_are_computed_side_by_side():
    def build(g, x, y):
        parts = [g.add_node("NEG", [x]), g.add_node("ABS", [y])]
        return [g.add_node("RELU", [g.add_node("CAT", parts, {"axis": 0})])]

    assert executed(check(graph_of(build, (2, 3), (1, 3)))) == ["NEG", "ABS", "RELU"]


def test_parts_of_parts_and_of_an_output():
    def build(g, x):
        one, two, three = (g.add_node(op, [x]) for op in ("NEG", "ABS", "RELU"))
        flat = g.add_node("RESHAPE", [three], {"shape": (1, 6)})
        pair = g.add_node("CAT", [one, two], {"axis": 1})
        return [
            g.add_node("CAT", [g.add_node("RESHAPE", [pair], {"shape": (2, 6)}), flat], {"axis": 0})
        ]

    plan = check(graph_of(build, (1, 2, 3)))
    assert executed(plan) == ["NEG", "ABS", "RELU"]
    assert memory_use(plan).arena == 0


@pytest.mark.parametrize(
    "build",
    [
        lambda g, a, b: [g.add_node("CAT", [a, b], {"axis": 1})],  # they lie between each other
        lambda g, a, b: [g.add_node("CAT", [a, a], {"axis": 0}), b],  # it cannot be in two places
        lambda g, a, b: [g.add_node("CAT", [a, b], {"axis": 0}), a],  # it is the caller's
        lambda g, a, b: [g.add_node("CAT", [b, "x0"], {"axis": 0})],  # that is an input
        lambda g, a, b: [
            g.add_node("CAT", [a, b], {"axis": 0}),
            g.add_node("CAT", [b, a], {"axis": 0}),
        ],
    ],
)
def test_parts_that_cannot_all_be_computed_in_place(build):
    graph = graph_of(lambda g, x: build(g, g.add_node("NEG", [x]), g.add_node("ABS", [x])), (2, 3))
    assert "CAT" in executed(check(graph))


def test_a_part_is_not_overwritten_while_it_waits():
    def build(g, x):
        one, two = g.add_node("NEG", [x]), g.add_node("ABS", [x])
        half = g.add_node("EXP", [one])  # in place, were it not for the CAT
        return [g.add_node("RELU", [g.add_node("CAT", [one, two], {"axis": 0})]), half]

    assert "CAT" not in executed(check(graph_of(build, (2, 3))))


def test_reshape_of_an_output_is_written_in_place():
    def build(g, x):
        y = g.add_node("NEG", [x])
        return [g.add_node("RESHAPE", [y], {"shape": (60,)})]

    plan = check(graph_of(build, (12, 5)))
    assert executed(plan) == ["NEG"]
    assert memory_use(plan).arena == 0


@pytest.mark.parametrize("op", ["RESHAPE", "SLICE", "TRANSPOSE"])
def test_output_that_views_an_input_is_copied(op):
    attrs = {
        "RESHAPE": {"shape": (60,)},
        "SLICE": {"axis": 0, "start": 2, "stop": 4},
        "TRANSPOSE": {"axis0": 0, "axis1": 1},
    }[op]
    plan = check(graph_of(lambda g, x: [g.add_node(op, [x], attrs)], (12, 5)))
    assert executed(plan) == [op]


def test_two_outputs_never_share():
    def build(g, x):
        y = g.add_node("NEG", [x])
        return [y, g.add_node("RESHAPE", [y], {"shape": (60,)}), g.add_node("ABS", [y])]

    plan = check(graph_of(build, (12, 5)))
    assert len({plan.placements[name].root for name in plan.outputs}) == 3


def test_chains_compute_in_place():
    def build(g, x):
        y = g.add_node("NEG", [x])
        for _ in range(5):
            y = g.add_node("EXP", [g.add_node("TANH", [y])])
        return [y]

    plan = check(graph_of(build, (12, 5)))
    assert memory_use(plan).arena == 0, "all of it happens in the output"


def added(g, x, weight, residual):
    return g.add_node("MATMUL", [x, weight, residual], {"code": ("ADD",), "args": (0, 1)})


def test_product_is_computed_over_its_residual():
    def build(g, x, weight):
        residual = g.add_node("EXP", [x])
        return [g.add_node("RELU", [added(g, x, weight, residual)])]

    plan = check(graph_of(build, (12, 12), (12, 12)))
    made = [name for name, tensor in plan.tensors.items() if tensor.role != "input"]
    assert {plan.placements[name].root for name in made} == set(plan.outputs)


def parts_over(g, x, weight, between=lambda g, y, rows: rows):
    """Two parts of a product over two slices of its residual, and the tensor that they make."""
    y = g.add_node("EXP", [x])
    slices = [
        g.add_node("SLICE", [y], {"axis": 0, "start": first, "stop": first + 32})
        for first in (0, 32)
    ]
    factors = [between(g, y, rows) for rows in slices]
    parts = [added(g, f, weight, rows) for f, rows in zip(factors, slices, strict=True)]
    return g.add_node("CAT", parts, {"axis": 0})


def test_parts_are_computed_over_the_slices_of_one_tensor():
    def build(g, x, weight):
        first = g.add_node("SLICE", [x], {"axis": 0, "start": 0, "stop": 32})
        y = parts_over(g, x, weight, lambda g, y, rows: first)
        return [g.add_node("SUM", [y], {"axes": (0,), "keepdim": False})]

    plan = check(graph_of(build, (64, 16), (16, 16)))
    assert "CAT" not in executed(plan)
    roots = {plan.placements[name].root for name, t in plan.tensors.items() if t.shape == (64, 16)}
    assert len(roots) == 2, "the input, and what the parts are computed over"


def _whole(g, y, rows):
    return g.add_node("SLICE", [y], {"axis": 0, "start": 0, "stop": 32})


def _neighbours(g, y, rows):
    moved = g.add_node("SLICE", [y], {"axis": 0, "start": 31, "stop": 63})
    return g.add_node("NEG", [moved])


@pytest.mark.parametrize("between", [_whole, _neighbours])
def test_parts_are_not_computed_over_what_is_read_later(between):
    """The second part reads rows of the first one's slice."""

    def build(g, x, weight):
        y = parts_over(g, x, weight, between)
        return [g.add_node("SUM", [y], {"axes": (0,), "keepdim": False})]

    check(graph_of(build, (64, 16), (16, 16)))


def test_not_in_place_over_what_is_read_later():
    def build(g, x):
        y = g.add_node("NEG", [x])
        z = g.add_node("EXP", [y])
        return [g.add_node("SUB", [z, y])]

    plan = check(graph_of(build, (12, 5)))
    negated, exponential = (node.output for node in plan.nodes[:2])
    assert plan.placements[negated].root != plan.placements[exponential].root


def test_not_in_place_over_a_tensor_another_view_is_read_from_later():
    """The root's life ends with its last view's reader, not with its own."""

    def build(g, x):
        y = g.add_node("NEG", [x])
        view = g.add_node("SLICE", [y], {"axis": 0, "start": 0, "stop": 6})
        z = g.add_node("EXP", [y])
        w = g.add_node("ABS", [view])
        return [z, w]

    check(graph_of(build, (12, 5)))


def test_not_in_place_while_reading_another_view_of_the_same_memory():
    def build(g, x):
        y = g.add_node("NEG", [x])
        flipped = g.add_node("FLIP", [y], {"axes": (0,)})
        return [g.add_node("ADD", [y, flipped])]

    check(graph_of(build, (13, 5)))


def test_a_refused_alias_keeps_its_source_alive():
    """A transposed view refused by SOFTMAX is a copy; what was viewed lives until then."""

    def build(g, x):
        y = g.add_node("NEG", [x])
        t = g.add_node("TRANSPOSE", [y], {"axis0": 0, "axis1": 1})
        big = g.add_node("EXP", [x])
        big = g.add_node("TANH", [big])
        s = g.add_node("SOFTMAX", [t], {"axis": 1})
        return [g.add_node("ADD", [s, g.add_node("TRANSPOSE", [big], {"axis0": 0, "axis1": 1})])]

    check(graph_of(build, (12, 5)))


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_keep_their_values(seed):
    """Random mixes of views, in-place chains, branches and several outputs run right."""
    rng = np.random.default_rng(seed)

    def build(g, x, y):
        pool = [x, y]
        for _ in range(rng.integers(3, 25)):
            a = pool[rng.integers(max(0, len(pool) - 4), len(pool))]
            shape = g.tensors[a].shape
            kind = rng.integers(0, 8)
            if kind == 0:
                pool.append(g.add_node("TANH", [a]))
            elif kind == 1:
                same = [b for b in pool if g.tensors[b].shape == shape]
                pool.append(g.add_node("ADD", [a, same[rng.integers(len(same))]]))
            elif kind == 2:
                pool.append(g.add_node("RESHAPE", [a], {"shape": (int(np.prod(shape)),)}))
            elif kind == 3 and len(shape) > 1:
                pool.append(g.add_node("TRANSPOSE", [a], {"axis0": 0, "axis1": len(shape) - 1}))
            elif kind == 4 and shape[0] > 1:
                cut = {"axis": 0, "start": int(shape[0] // 2), "stop": int(shape[0])}
                pool.append(g.add_node("SLICE", [a], cut))
            elif kind == 5:
                pool.append(g.add_node("SOFTMAX", [a], {"axis": len(shape) - 1}))
            elif kind == 6:
                pool.append(g.add_node("CAT", [a, a], {"axis": 0}))
            else:
                pool.append(g.add_node("MUL", [a], scalar(0.5)))
        made = [name for name in dict.fromkeys(pool) if name in g.producers]
        picked = rng.choice(made, size=min(len(made), 3), replace=False)
        return list(dict.fromkeys([*map(str, picked), made[-1]]))

    check(graph_of(build, (4, 6), (4, 6)))
