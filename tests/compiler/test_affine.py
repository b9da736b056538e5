"""Test that the formula of a tensor of positions also holds for every view of it."""

from __future__ import annotations

import numpy as np
import pytest

from graph_checks import Builder, check_fires, only
from op_samples import name_of, samples_of
from taper_frontend.compiler.analysis.affine import Affine, affine, truth
from taper_frontend.compiler.graph import Graph, evaluate
from taper_frontend.compiler.stages import absorb_causal_mask
from taper_runtime.base.sizes import variable
from taper_runtime.ops import REGISTRY

VIEWS = [op for op in REGISTRY.values() if op.view is not None]


def elements(found: Affine, shape: tuple[int, ...]) -> np.ndarray:
    places = np.indices(shape)
    return found.start + sum(
        (step * index for step, index in zip(found.steps, places, strict=True)),
        start=np.zeros(shape, np.int64),
    )


@pytest.mark.parametrize("op", VIEWS, ids=name_of)
def test_of_a_view(op):
    known = 0
    for sample in samples_of(op.name):
        (x,) = sample.inputs
        if x.dtype != np.int64:
            continue
        b = Builder()
        base = b.constant(5 + np.arange(x.size).reshape(x.shape))
        graph = b.done(b.op(op.name, base, **sample.attrs))
        found = affine(graph, graph.outputs[0])
        if found is None:
            continue
        (value,) = evaluate(graph, {}).values()
        np.testing.assert_array_equal(elements(found, value.shape), value)
        known += 1
    assert known > 2


def test_of_large_constants_nothing_is_known():
    """The search would take as long as they are large."""
    b = Builder()
    small, large = b.constant(np.arange(1 << 16)), b.constant(np.arange((1 << 16) + 1))
    assert affine(b.graph, small) == Affine(0, (1,))
    assert affine(b.graph, large) is None


def sized() -> tuple[Graph, int]:
    """A graph of s positions, s from 1 to 64."""
    graph = Graph(sizes={"s": (1, 64)}, examples={"s": 7})
    return graph, variable("s", 1, 64)


def test_of_positions_of_any_number():
    graph, s = sized()
    x = graph.add_node("ARANGE", [], {"stop": 3 * s})
    x = graph.add_node("RESHAPE", [x], {"shape": (s, 3)})
    x = graph.add_node("TRANSPOSE", [x], {"axis0": 0, "axis1": 1})
    x = graph.add_node("FLIP", [x], {"axes": (0,)})
    assert affine(graph, x) == Affine(2, (-1, 3))


def test_comparison_behind_views():
    graph, s = sized()
    x = graph.add_node("ARANGE", [], {"stop": s})
    x = graph.add_node("GE", [x], {"scalar": -1, "scalar_index": 1})
    x = graph.add_node("EXPAND", [x], {"shape": (2, s)})
    assert truth(graph, graph.add_node("TRANSPOSE", [x], {"axis0": 0, "axis1": 1})) is True


@pytest.mark.parametrize(("order", "diagonal"), [("LE", 0), ("LT", -1)])
def test_causal_mask_that_is_transposed(order, diagonal):
    graph, s = sized()
    q = graph.add_input("q", "float32", (1, 2, s, 4))
    keys = graph.add_node("ARANGE", [], {"stop": s})
    keys = graph.add_node("RESHAPE", [keys], {"shape": (s, 1)})
    queries = graph.add_node("RESHAPE", [keys], {"shape": (1, s)})
    mask = graph.add_node(order, [keys, queries])
    mask = graph.add_node("TRANSPOSE", [mask], {"axis0": 0, "axis1": 1})
    graph.set_outputs([graph.add_node("ATTENTION", [q, q, q, mask], {"scale": 0.5})])
    assert absorb_causal_mask(graph)
    graph.verify()
    attrs = only(graph, "ATTENTION").complete_attrs()
    assert (attrs["causal"], attrs["diagonal"]) == (True, diagonal)


def test_causal_mask_of_known_sizes_keeps_its_values():
    b = Builder()
    q = b.input("q", 1, 2, 5, 4)
    keys = b.constant(np.arange(5).reshape(5, 1))
    mask = b.transpose(b.op("LE", keys, b.constant(np.arange(5))), 0, 1)
    check_fires(absorb_causal_mask, b.done(b.op("ATTENTION", q, q, q, mask, scale=0.5)))


def test_a_search_through_a_loop_that_is_unrolled_ends():
    """Each step reads the one before it twice: there are 2 ** 200 paths to the first."""
    b = Builder()
    n = variable("n", 2, 1000)
    kept, later = b.input("kept", n, dtype="bool"), b.op("ARANGE", start=0, stop=n)
    for step in range(200):
        before = b.op("LOGICAL_AND", kept, b.op("GT", later, scalar=step, scalar_index=1))
        kept = b.op("LOGICAL_AND", kept, b.op("LOGICAL_NOT", before))
    counted = later
    for _ in range(200):
        counted = b.op("ADD", counted, counted)
    graph = b.done(kept, counted)
    assert truth(graph, graph.outputs[0]) is None
    assert affine(graph, graph.outputs[1]) is None


def test_what_is_reached_on_several_paths_is_known():
    b = Builder()
    counted = b.op("ARANGE", start=1, stop=variable("n", 2, 1000))
    for _ in range(40):
        counted = b.op("ADD", counted, counted)
    graph = b.done(counted)
    assert affine(graph, graph.outputs[0]) == Affine(2**40, (2**40,))
