"""Every op of the registry on its samples: type rule, evaluator and view rule agree."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taper_runtime.dtypes import DTYPES
from taper_runtime.errors import InputError, OpError
from taper_runtime.ops import REGISTRY, register
from taper_runtime.ops.opdef import REQUIRED, TensorType, contiguous_strides

NAMES = {dtype.storage: name for name, dtype in DTYPES.items() if name != "bfloat16"}
OPS = pytest.mark.parametrize("op", REGISTRY.values(), ids=lambda op: op.name)


def types(arrays):
    return [TensorType(NAMES[array.dtype], array.shape) for array in arrays]


@OPS
def test_evaluator_has_inferred_type(op):
    count = 0
    for sample in op.samples():
        expected = op.infer_type(types(sample.inputs), sample.attrs)
        result = op.evaluate(sample.inputs, op.complete(sample.attrs))
        assert isinstance(result, np.ndarray)
        assert TensorType(NAMES[result.dtype], result.shape) == expected
        assert result.flags.c_contiguous
        count += 1
    assert count > 0


@OPS
def test_evaluator_leaves_inputs_alone(op):
    for sample in op.samples():
        before = [array.copy() for array in sample.inputs]
        result = op.evaluate(sample.inputs, op.complete(sample.attrs))
        for array, copy in zip(sample.inputs, before, strict=True):
            np.testing.assert_array_equal(array, copy)
            assert op.view is not None or not np.shares_memory(array, result)


@pytest.mark.parametrize("op", [o for o in REGISTRY.values() if o.view], ids=lambda op: op.name)
def test_view_is_the_evaluated_result(op):
    """The view of a contiguous input, and of one with gaps, holds what the evaluator computes."""
    for sample in op.samples():
        (array,) = sample.inputs
        attrs = op.complete(sample.attrs)
        want = op.evaluate([array], attrs)
        spread = np.zeros([2 * size for size in array.shape], array.dtype)
        gapped = spread[(..., *(slice(0, 2 * size, 2) for size in array.shape))]
        gapped[...] = array
        for memory, strides in (
            (np.ascontiguousarray(array), contiguous_strides(array.shape)),
            (spread, tuple(2 * s for s in contiguous_strides(spread.shape))),
        ):
            view = op.view(array.shape, strides, attrs)
            if view is None:
                assert op.name == "RESHAPE"
                assert memory is spread
                continue
            if want.size == 0:
                continue
            size = array.itemsize
            got = np.ndarray(
                want.shape,
                array.dtype,
                memory,
                view.offset * size,
                [s * size for s in view.strides],
            )
            np.testing.assert_array_equal(got, want)


@OPS
def test_op_is_described(op):
    assert op.doc.endswith(".")
    assert op.name == op.name.upper()
    assert all(0 <= index < op.inputs[1] for index in op.inplace)
    for attr in op.attrs.values():
        assert attr.default is REQUIRED or attr.accepts(attr.default)


@OPS
def test_samples_use_every_attr(op):
    seen = set().union(*(sample.attrs for sample in op.samples()))
    scalar = {"scalar", "scalar_index"}
    unary = scalar <= set(op.attrs) and op.inputs == (1, 1)
    assert seen == set(op.attrs) - (scalar if unary else set())


@OPS
def test_bad_attrs_are_refused(op):
    sample = next(iter(op.samples()))
    given_types = types(sample.inputs)
    with pytest.raises(OpError, match="no attr 'nonsense'"):
        op.infer_type(given_types, {**sample.attrs, "nonsense": 1})
    for name, attr in op.attrs.items():
        with pytest.raises(OpError, match=name):
            op.infer_type(given_types, {**sample.attrs, name: object()})
        if attr.default is REQUIRED:
            rest = {key: value for key, value in sample.attrs.items() if key != name}
            with pytest.raises(OpError, match=f"needs attr '{name}'"):
                op.infer_type(given_types, rest)


@OPS
def test_wrong_input_count_is_refused(op):
    sample = next(iter(op.samples()))
    with pytest.raises(OpError, match="inputs"):
        op.infer_type([], sample.attrs)
    too_many = types(sample.inputs)[:1] * (op.inputs[1] + 1)
    if op.inputs[1] < 1000:
        with pytest.raises(OpError, match="inputs"):
            op.infer_type(too_many, sample.attrs)


SIZES = st.lists(st.integers(0, 4), max_size=4).map(tuple)
TYPES = st.builds(TensorType, st.sampled_from(sorted(DTYPES)), SIZES)
INTS = st.integers(-3, 5) | st.just(2**62)
VALUES = {
    "int": INTS,
    "float": st.floats(allow_nan=True),
    "bool": st.booleans(),
    "string": st.sampled_from(["", "float32", "sum", "none", "CAST:bool"]),
    "scalar": INTS | st.floats() | st.booleans(),
    "ints": st.lists(INTS, max_size=6),
    "strings": st.lists(st.sampled_from(["ADD", "GELU", "WHERE", "CAST:int64", "X"]), max_size=3),
    "scalars": st.lists(INTS | st.floats(), max_size=2),
}


@OPS
@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_attrs_and_types_are_accepted_or_refused(op, data):
    """Nothing but OpError comes out of the type rule, and what it accepts has a sane shape."""
    inputs = data.draw(st.lists(TYPES, min_size=1, max_size=4))
    attrs = {name: data.draw(VALUES[attr.type], name) for name, attr in op.attrs.items()}
    try:
        result = op.infer_type(inputs, attrs)
    except OpError:
        return
    assert result.dtype in DTYPES
    assert all(type(size) is int and size >= 0 for size in result.shape)


@pytest.mark.parametrize("name", ["EMBEDDING", "INDEX_SELECT", "GATHER", "SCATTER"])
@pytest.mark.parametrize("index", [-100, 100])
def test_index_out_of_range_is_refused(name, index):
    op = REGISTRY[name]
    sample = next(s for s in op.samples() if s.inputs[1].size)
    arrays = [array.copy() for array in sample.inputs]
    arrays[1].flat[0] = index
    with pytest.raises(InputError, match="expected indices"):
        op.evaluate(arrays, op.complete(sample.attrs))


def test_name_is_registered_once():
    with pytest.raises(ValueError, match="registered already"):
        register(REGISTRY["ADD"])
