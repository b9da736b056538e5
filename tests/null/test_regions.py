"""Test the regions and parts of every op on its samples, and that wrong ones are found."""

import numpy as np
import pytest

from op_samples import SAMPLED, name_of, present, sample_types, samples_of
from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import OpError
from taper_runtime.base.size_values import size_at
from taper_runtime.base.sizes import UndecidedError, variable
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import TensorType
from taper_runtime.ops.region import (
    BROADCAST,
    WHOLE,
    Grouped,
    Same,
    Window,
    elementwise,
    output_axes,
    reshape_region,
)
from taper_runtime.ops.region_check import check_region

OPS = pytest.mark.parametrize("op", SAMPLED, ids=name_of)


def check_on_samples(op):
    """Check a third of 150 samples or more, a fifth of 300, and so on: they differ in dtypes."""
    samples = [*samples_of(op.name)]
    for sample in samples[:: 1 + 2 * (len(samples) // 150)]:
        check_region(op, sample.inputs, sample.attrs, sample.formats)


@OPS
def test_region_holds(op):
    check_on_samples(op)


# -- lies ------------------------------------------------------------------------------------------


def moved(rule, **changes):
    """The rule with every window changed."""

    def region(inputs, output, attrs):
        return [
            tuple(
                r._replace(**{k: v(getattr(r, k)) for k, v in changes.items()})
                if isinstance(r, Window)
                else r
                for r in relations
            )
            for relations in rule(inputs, output, attrs)
        ]

    return region


def instead(rule, old, new):
    """The rule with one relation in place of another."""

    def region(inputs, output, attrs):
        return [
            tuple(new(axis) if old(r) else r for axis, r in enumerate(relations))
            for relations in rule(inputs, output, attrs)
        ]

    return region


def is_whole(relation):
    return relation is WHOLE


def is_window(relation):
    return isinstance(relation, Window)


LIES = {
    "SOFTMAX": elementwise,
    "CUMSUM": elementwise,
    "LAYER_NORM": elementwise,
    "ARGSORT": elementwise,
    "FLIP": elementwise,
    "TRANSPOSE": lambda i, o, a: [tuple(map(Same, range(len(o.shape))))],
    "SLICE": lambda i, o, a: moved(REGISTRY["SLICE"].region, first=lambda v: v + 1)(i, o, a),
    "CAT": lambda i, o, a: moved(REGISTRY["CAT"].region, first=lambda v: v - 1)(i, o, a),
    "RESHAPE": lambda i, o, a: [tuple(Grouped((k,), (0,)) for k in range(len(i[0].shape)))],
    "EXPAND": lambda i, o, a: [tuple(map(Same, range(len(i[0].shape))))],
    "GROUPED_MATMUL": instead(REGISTRY["GROUPED_MATMUL"].region, is_window, lambda _: Same(0)),
    "ATTENTION": instead(REGISTRY["ATTENTION"].region, is_window, lambda axis: Same(axis)),
    "MAX_POOL": moved(REGISTRY["MAX_POOL"].region, length=lambda v: max(1, v - 1)),
    "AVG_POOL": moved(REGISTRY["AVG_POOL"].region, stride=lambda v: v + 1),
    "CONV": moved(REGISTRY["CONV"].region, first=lambda v: v + 1),
    "CONV_TRANSPOSE": instead(REGISTRY["CONV_TRANSPOSE"].region, is_whole, Window),
    "MATMUL": instead(REGISTRY["MATMUL"].region, is_whole, lambda _: BROADCAST),
    "EMBEDDING": instead(REGISTRY["EMBEDDING"].region, is_whole, lambda _: Window(0)),
    "SCATTER": instead(REGISTRY["SCATTER"].region, is_window, Same),
    "WRITE": instead(REGISTRY["WRITE"].region, is_window, Same),
    "GRU": instead(REGISTRY["GRU"].region, is_whole, Window),
    "MATRIX_EXP": REGISTRY["INVERSE"].region,  # bits follow from the largest matrix of the batch
    "ADD": lambda i, o, a: [()],
    "MUL": lambda i, o, a: [(Same(9),) * len(t.shape) for t in i],
}


@pytest.mark.parametrize("name", LIES)
def test_lie_is_found(name):
    op = REGISTRY[name]._replace(region=LIES[name])
    where = r"(, inputs of \[.*|\.region)"
    with pytest.raises(OpError, match=f"(?s){name}{where}: expected .*, got "):
        check_on_samples(op)


# -- sizes that inputs decide ----------------------------------------------------------------------


def sized_types(types):
    """Types whose dims above 1 vary, those of one size together; and what they are now."""
    values = {f"n{size}": size for t in present(types) for size in t.shape if size > 1}
    sizes = {size: variable(name, size, 2 * size) for name, size in values.items()}
    return [
        t and TensorType(t.dtype, tuple(sizes.get(size, size) for size in t.shape)) for t in types
    ], values


@OPS
def test_region_of_sizes_that_inputs_decide(op):
    """A region is worked out before sizes are known, and says then no more than afterwards."""
    for sample in samples_of(op.name):
        fixed = sample_types(sample)
        types, values = sized_types(fixed)
        try:
            output, *_ = op.infer_types(types, sample.attrs)
        except OpError:  # these sizes cannot vary one without the other
            continue
        exact = op.needs(fixed, op.infer_types(fixed, sample.attrs)[0], sample.attrs)
        for region, known in zip(op.needs(types, output, sample.attrs), exact, strict=True):
            for relation, want in zip(region, known, strict=True):
                if isinstance(relation, Grouped):
                    assert set(output_axes(want)) <= set(relation.outputs)
                elif isinstance(relation, Window):
                    sizes = [size_at(s, values) for s in relation[1:4]]
                    assert relation._replace(first=sizes[0], length=sizes[2]) == want
                else:
                    assert relation in (want, WHOLE)


def test_undecided_region_is_whole():
    def region(inputs, output, attrs):
        raise UndecidedError("open")

    op = REGISTRY["EXP"]._replace(region=region)
    x = TensorType("float32", (2, 3))
    assert op.needs([x], x, {}) == [(WHOLE, WHOLE)]
    assert op.part([x], x, {}, {0: (0, 1)}) is None


N, M = (variable(name, 1, 64) for name in "nm")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ((2, 3, 4), (6, 4), (Grouped((0, 1), (0,)), Grouped((0, 1), (0,)), Same(1))),
        ((6, 4), (2, 3, 4), (Grouped((0,), (0, 1)), Same(2))),
        ((4, 6), (2, 12), (Grouped((0, 1), (0, 1)),) * 2),
        ((2, 3), (2, 1, 3), (Same(0), Same(2))),
        ((2, 1, 3), (2, 3), (Same(0), BROADCAST, Same(1))),
        ((2, 1, 3), (6,), (Grouped((0, 2), (0,)), BROADCAST, Grouped((0, 2), (0,)))),
        ((1, 2), (1, 2, 1), (Same(0), Same(1))),
        ((), (1, 1), ()),
        ((0, 3), (3, 0, 2), (WHOLE, WHOLE)),
        ((N, 3, 4), (N, 12), (Same(0), *[Grouped((1, 2), (1,))] * 2)),
        ((N, 3, 4), (3 * N, 4), (*[Grouped((0, 1), (0,))] * 2, Same(1))),
        ((N, M, 4), (N * M, 4), (*[Grouped((0, 1), (0,))] * 2, Same(1))),
        ((M * N, 2, 4), (N, M, 8), (Grouped((0,), (0, 1)), *[Grouped((1, 2), (2,))] * 2)),
        ((N, 2 * M, 4), (2 * N, M, 4), (*[Grouped((0, 1), (0, 1))] * 2, Same(2))),
    ],
)
def test_reshape_pairs_axes(old, new, expected):
    region = reshape_region(old, new)
    assert region == expected
    assert all(type(a) is type(b) for a, b in zip(region, expected, strict=True))


# -- parts -----------------------------------------------------------------------------------------


def part(name, shapes, attrs, cuts):
    op = REGISTRY[name]
    types = [TensorType("float32", shape) for shape in shapes]
    return op.part(types, op.infer_type(types, attrs), attrs, cuts)


WINDOW = {"kernel": (3,), "stride": (2,), "dilation": (2,)}


@pytest.mark.parametrize(
    ("cut", "read", "padding"),
    [((0, 2), (0, 5), (2, 0)), ((2, 4), (2, 9), (0, 0)), ((3, 5), (4, 10), (0, 1))],
)
def test_part_of_windows_is_padded_where_the_whole_is(cut, read, padding):
    attrs = WINDOW | {"padding": (2, 1)}
    found = part("CONV", [(1, 10, 4), (3, 4, 8)], attrs, {1: cut})
    assert found.inputs[0] == ((0, 1), read, (0, 4))
    assert found.inputs[1] == ((0, 3), (0, 4), (0, 8))
    assert found.attrs == attrs | {"padding": padding}


def test_part_of_a_reshape_is_whole_rows():
    attrs = {"shape": (8, 6)}
    found = part("RESHAPE", [(4, 2, 6)], attrs, {0: (2, 6)})
    assert found.inputs == (((1, 3), (0, 2), (0, 6)),)
    assert found.attrs == {"shape": (4, 6)}
    assert part("RESHAPE", [(4, 2, 6)], attrs, {0: (1, 6)}) is None
    assert part("RESHAPE", [(8, 6)], {"shape": (4, 2, 6)}, {1: (0, 1)}) is None


@pytest.mark.parametrize(
    ("name", "shapes", "attrs", "axis"),
    [
        ("SOFTMAX", [(4, 4)], {"axis": 1}, 1),
        ("SLICE", [(6, 4)], {"axis": 0, "start": 1, "stop": 5}, 0),
        ("EXPAND", [(1, 4)], {"shape": (4, 4)}, 0),
    ],
)
def test_no_part_of_what_needs_the_whole(name, shapes, attrs, axis):
    assert part(name, shapes, attrs, {axis: (0, 2)}) is None
    assert part(name, shapes, attrs, {axis: (0, 4)}) is not None  # all of it


def test_part_of_causal_attention_has_another_diagonal():
    attrs = {"scale": 1.0, "causal": True, "diagonal": 1}
    found = part("ATTENTION", [(4, 6, 8), (4, 7, 8), (4, 7, 5)], attrs, {1: (2, 5)})
    assert found.inputs[0] == ((0, 4), (2, 5), (0, 8))
    assert found.inputs[1] == ((0, 4), (0, 7), (0, 8))
    assert found.attrs == attrs | {"diagonal": 3}


def test_what_is_packed_is_not_cut():
    a, b = TensorType("float32", (4, 8)), TensorType("float32", (8, 6), "panels.1")
    op = REGISTRY["MATMUL"]
    output = op.infer_type([a, b], {})
    assert op.part([a, b], output, {}, {1: (0, 2)}) is None
    assert op.part([a, b], output, {}, {0: (0, 2)}) is not None


# -- properties ------------------------------------------------------------------------------------


BINARY = [op for op in REGISTRY.values() if op.inputs[1] == 2 and op.region is elementwise]


@pytest.mark.parametrize("op", BINARY, ids=name_of)
def test_inputs_that_may_be_swapped(op):
    """An op of two operands commutes if and only if its samples show no difference."""
    unchecked = {"by_zero": True} if "by_zero" in op.attrs else {}
    pairs = [
        (op.evaluate(s.inputs, attrs), op.evaluate(s.inputs[::-1], attrs))
        for s in samples_of(op.name)
        if len(s.inputs) == 2
        for attrs in [op.complete({**s.attrs, **unchecked})]
    ]
    assert pairs
    same = all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs)
    assert same == op.commutes


@OPS
def test_only_ops_of_two_operands_commute(op):
    assert not op.commutes or op in BINARY


@OPS
def test_weights_are_inputs_that_no_batch_is_in(op):
    for sample in samples_of(op.name):
        types = sample_types(sample)
        output, *_ = op.infer_types(types, sample.attrs)
        regions = op.needs(types, output, sample.attrs)
        for index in op.weights:
            if index < len(types) and len(output.shape) == len(types[0].shape) > 2:
                assert op.name == "MATMUL" or Same(0) not in regions[index]


def test_decoding_is_exact():
    decoded = []
    for source, target in ((a, b) for a in DTYPES for b in DTYPES):
        types = TensorType(source, (3,)), TensorType(target, (3,))
        if REGISTRY["CAST"].decodes(types[:1], types[1]):
            decoded.append((source, target))
            every = np.arange(2**16, dtype=np.uint16).view(DTYPES[source].storage)
            there = REGISTRY["CAST"].evaluate([every], {"dtype": target})
            back = REGISTRY["CAST"].evaluate([there], {"dtype": source})
            numbers = ~np.isnan(there)
            np.testing.assert_array_equal(back[numbers], every[numbers])
    assert ("bfloat16", "float32") in decoded
    assert not any(source == "float32" for source, _ in decoded)
    assert not REGISTRY["EXP"].decodes(types[:1], types[1])
