"""Regions and roles of attrs let permutations cross an op without changing its values."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from graph_checks import Builder, check_fires, op_counts
from op_samples import SAMPLED, name_of, present, samples_of, type_of
from taper_frontend.compiler.graph import Graph
from taper_frontend.compiler.stages import Group, remove_noops, sink_permutations
from taper_frontend.compiler.stages.movement.crossing import inverse, padded, reorder
from taper_runtime.base.sizes import variable
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.elementwise import MICROOPS
from taper_runtime.ops.opdef import Attr, OpDef
from taper_runtime.ops.region import along, elementwise, trailing, whole

#: One op of each family of elementwise ops stands for all.
OPS = [op for op in SAMPLED if op.name not in {*MICROOPS} - {"NEG", "ADD", "WHERE"}]

#: Ops that some permutation has to cross in some sample.
MUST = {
    *("NEG", "ADD", "WHERE", "CAST", "MAP", "MAX_POOL", "AVG_POOL", "RESAMPLE", "SOFTMAX"),
    *("LAYER_NORM", "RMS_NORM", "SUM", "MEAN", "VAR", "ANY", "ARGMAX", "SLICE", "FLIP", "CAT"),
    *("PAD", "EMBEDDING", "INDEX_SELECT", "GATHER", "ARGSORT", "CUMSUM", "CUMARGMAX", "MATMUL"),
}


def crossings(op, sample):
    """Every way to permute one input of a sample that crosses, of many axes some."""
    for index, x in enumerate(sample.inputs):
        if x is None or not 1 < x.ndim < 6 or x.size > 2000:
            continue
        orders = list(itertools.permutations(range(x.ndim)))[1:]
        for axes in orders[:: max(1, len(orders) // 24)]:
            b = Builder()
            names = [
                None if array is None else b.graph.add_input(f"x{i}", *type_of(array)[:2])
                for i, array in enumerate(sample.inputs)
            ]
            output, *_ = b.graph.add_multi_output(op.name, names, sample.attrs)
            moved = reorder(b.graph, b.graph.nodes[output], index, axes)
            if moved is not None:
                yield index, axes, moved


@pytest.mark.parametrize("op", OPS, ids=name_of)
def test_what_crosses_keeps_its_values(op):
    crossed = 0
    for number, sample in enumerate(samples_of(op.name)):
        if number > 60 or not sample.inputs or 0 in {x.size for x in present(sample.inputs)}:
            continue
        if sample.formats:  # what is packed has no axes to permute
            continue
        expected = op.evaluate(sample.inputs, op.complete(sample.attrs))
        for index, axes, moved in crossings(op, sample):
            assert moved.follows[index]
            inputs = [
                np.ascontiguousarray(x.reshape(padded(x.shape, len(axes))).transpose(inverse(axes)))
                if follows
                else x
                for x, follows in zip(sample.inputs, moved.follows, strict=True)
            ]
            got = op.evaluate(inputs, op.complete(moved.attrs)).transpose(moved.axes)
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5, err_msg=str(moved))
            crossed += 1
    assert crossed or op.name not in MUST


def outside(monkeypatch, **fields):
    """Register an op from outside, which no pass knows by name: it works along an axis."""
    monkeypatch.delitem(REGISTRY, "OUTSIDE", raising=False)
    fields = {
        "name": "OUTSIDE",
        "doc": "",
        "inputs": (1, 1),
        "infer": lambda inputs, attrs: inputs[0],
        "evaluate": lambda x, attrs: x[0] - x[0].max(attrs["axis"], keepdims=True),
        "attrs": {"axis": Attr("int", role="axis")},
        "region": along("axis"),
        "native": False,
    } | fields
    monkeypatch.setitem(REGISTRY, "OUTSIDE", OpDef(**fields))
    return "OUTSIDE"


def sandwich(op, **attrs):
    """The op between two permutations that undo each other."""
    b = Builder()
    x = b.op("PERMUTE", b.input("x", 2, 4, 5, 6), axes=(0, 3, 1, 2))
    return b.done(b.op("PERMUTE", b.op(op, x, **attrs), axes=(0, 2, 3, 1)))


settle = Group(sink_permutations, remove_noops)


def test_op_from_outside_is_crossed(monkeypatch):
    op = outside(monkeypatch)
    graph = check_fires(settle, sandwich(op, axis=1))
    assert op_counts(graph) == {op: 1}
    assert graph.nodes[graph.outputs[0]].attrs == {"axis": 3}


def test_elementwise_op_from_outside_is_crossed(monkeypatch):
    op = outside(monkeypatch, attrs={}, region=elementwise, evaluate=lambda x, attrs: x[0] * 2)
    assert op_counts(check_fires(settle, sandwich(op))) == {op: 1}


def test_op_that_says_nothing_is_not_crossed(monkeypatch):
    op = outside(monkeypatch, region=whole)
    assert not sink_permutations(sandwich(op, axis=1))


def test_axis_that_no_attr_names_stays_at_its_place(monkeypatch):
    fields = {
        "attrs": {"dims": Attr("int")},
        "region": trailing,
        "evaluate": lambda x, attrs: x[0] - x[0].max(-1, keepdims=True),
    }
    op = outside(monkeypatch, **fields)
    assert not sink_permutations(sandwich(op, dims=1))
    b = Builder()
    x = b.transpose(b.input("x", 2, 4, 5, 6), 1, 2)
    graph = check_fires(settle, b.done(b.transpose(b.op(op, x, dims=1), 1, 2)))
    assert op_counts(graph) == {op: 1}


def test_sizes_that_decide_nothing_stop_nothing_else():
    s = variable("s", 1, 64)
    graph = Graph(sizes={"s": (1, 64)}, examples={"s": 7})
    x = graph.add_input("x", "float32", (s, 3, s))
    y = graph.add_node("PERMUTE", [x], {"axes": (2, 0, 1)})
    y = graph.add_node("SOFTMAX", [y], {"axis": 1})
    y = graph.add_node("RESHAPE", [y], {"shape": (s * s, 3)})
    graph.set_outputs([y])
    sink_permutations(graph)
    graph.verify()
    moved = graph.nodes[graph.nodes[y].inputs[0]]
    assert (moved.op, graph.nodes[moved.inputs[0]].attrs["axis"]) == ("PERMUTE", 0)
