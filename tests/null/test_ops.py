"""Every op on its samples: type rule, evaluator and view rule agree; what torch does not define."""

import itertools
import math

import numpy as np
import pytest

from op_samples import (
    SAMPLED,
    array_of,
    name_of,
    present,
    sample_types,
    samples_of,
    type_of,
    types_of,
)
from taper_runtime.base.errors import InputError, OpError
from taper_runtime.base.size_values import size_at
from taper_runtime.base.sizes import variable
from taper_runtime.formats.panels import PANEL
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.convert import cast
from taper_runtime.ops.opdef import TensorType, contiguous_strides

OPS = pytest.mark.parametrize("op", SAMPLED, ids=name_of)


def evaluate(name, *inputs, **attrs):
    op = REGISTRY[name]
    op.infer_types(types_of(inputs), attrs)
    return op.evaluate(inputs, op.complete(attrs))


@OPS
def test_evaluator_gives_the_inferred_type(op):
    for sample in samples_of(op.name):
        expected = op.infer_types(sample_types(sample), sample.attrs)
        results = op.evaluate_all(sample.inputs, op.complete(sample.attrs))
        for result, type_ in zip(results, expected, strict=True):
            assert isinstance(result, np.ndarray)
            plain = type_.storage if op.stores else type_._replace(format="plain")
            assert type_of(result) == plain
            assert result.flags.c_contiguous


@OPS
def test_evaluator_leaves_inputs_alone(op):
    for sample in samples_of(op.name):
        before = [array.copy() for array in present(sample.inputs)]
        results = op.evaluate_all(sample.inputs, op.complete(sample.attrs))
        for array, copy in zip(present(sample.inputs), before, strict=True):
            np.testing.assert_array_equal(array, copy)
            for result in results:
                assert op.view is not None or not np.shares_memory(array, result)


def layouts(array):
    """``array`` in memory of its own, in several orders: pairs of the memory and the array."""
    yield array.copy(), ...
    doubled = np.zeros([2 * size for size in array.shape], array.dtype)
    yield doubled, (..., *(slice(0, None, 2) for _ in array.shape))
    yield doubled, (..., *(slice(None, None, -2) for _ in array.shape))
    yield np.zeros(array.shape[::-1], array.dtype), "T"


def lay_out(array, memory, where):
    placed = memory.T if where == "T" else memory[where]
    placed[...] = array
    return placed


@OPS
def test_evaluator_reads_any_strides(op):
    for sample in itertools.islice(samples_of(op.name), 40):
        attrs = op.complete(sample.attrs)
        want = op.evaluate_all(sample.inputs, attrs)
        for choice in zip(*map(layouts, present(sample.inputs)), strict=True):
            places = iter(choice)
            arrays = [x if x is None else lay_out(x, *next(places)) for x in sample.inputs]
            for got, wanted in zip(op.evaluate_all(arrays, attrs), want, strict=True):
                assert got.flags.c_contiguous
                # Sums may be taken in another order.
                np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("op", [op for op in REGISTRY.values() if op.view], ids=name_of)
def test_view_holds_what_is_evaluated(op):
    for sample in samples_of(op.name):
        (array,) = sample.inputs
        attrs = op.complete(sample.attrs)
        want = op.evaluate([array], attrs)
        for memory, where in layouts(array):
            placed = lay_out(array, memory, where)
            strides = tuple(stride // array.itemsize for stride in placed.strides)
            view = op.view(array.shape, strides, attrs)
            if view is None:
                assert op.name == "RESHAPE"
                assert where is not ...
                continue
            assert len(view.strides) == want.ndim
            start = placed.ctypes.data - memory.ctypes.data if placed.size else 0
            got = np.ndarray(  # checks that the view stays inside the memory
                want.shape,
                array.dtype,
                memory,
                start + view.offset * array.itemsize,
                [stride * array.itemsize for stride in view.strides],
            )
            np.testing.assert_array_equal(got, want)
            if got.flags.c_contiguous:
                assert view.strides == contiguous_strides(want.shape)


@pytest.mark.parametrize(
    ("shape", "strides", "new", "expected"),
    [
        ((4, 6), (12, 1), (2, 2, 6), (24, 12, 1)),  # rows with gaps may be grouped
        ((4, 6), (12, 1), (24,), None),  # but not joined
        ((4, 6), (1, 4), (4, 2, 3), (1, 12, 4)),  # columns may be split
        ((4, 6), (1, 4), (2, 12), None),
        ((4, 6), (0, 1), (2, 2, 6), (0, 0, 1)),  # repeated rows
        ((4, 6), (-6, 1), (2, 2, 6), (-12, -6, 1)),
        ((4, 6), (-6, -1), (24,), (-1,)),
        ((2, 1, 3), (3, 99, 1), (6,), (1,)),  # the stride of a single element says nothing
        ((1,), (99,), (), ()),
        ((6,), (2,), (1, 6, 1), (12, 2, 1)),
        ((0, 3), (7, 7), (3, 0, 2), (0, 2, 1)),
        ((2, 3, 4), (12, 4, 1), (2, 4, 3), (12, 3, 1)),
        ((2, 3, 4), (24, 4, 1), (2, 12), (24, 1)),
        ((2, 12), (24, 1), (3, 8), None),
    ],
)
def test_reshape_views_what_lies_evenly(shape, strides, new, expected):
    view = REGISTRY["RESHAPE"].view(shape, strides, {"shape": new})
    assert view is None if expected is None else view == (0, expected)


#: Ops that take any element; the others refuse bfloat16.
MOVES = {
    *("RESHAPE", "TRANSPOSE", "PERMUTE", "SLICE", "EXPAND", "FLIP", "COPY", "CAT"),
    *("PAD", "EMBEDDING", "INDEX_SELECT", "GATHER", "SCATTER", "WRITE", "CAST", "PACK"),
    "UNPACK",
}


@pytest.mark.parametrize("op", [op for op in SAMPLED if op.inputs[1]], ids=name_of)
def test_bfloat16_is_only_moved_and_cast(op):
    sample = next(iter(samples_of(op.name)))
    rng = np.random.default_rng(0)
    computed = type_of(sample.inputs[1 if op.name == "WHERE" else 0]).dtype
    types = [
        t._replace(dtype="bfloat16") if t.dtype == computed else t for t in types_of(sample.inputs)
    ]
    arrays = [
        array_of(t, rng) if t.dtype == "bfloat16" else x
        for t, x in zip(types, sample.inputs, strict=True)
    ]
    if op.name not in MOVES:
        with pytest.raises(OpError, match="bfloat16"):
            op.infer_type(types, sample.attrs)
        return
    target = {"dtype": "bfloat16"} if op.name == "CAST" else {}
    attrs = op.complete({**sample.attrs, **target})
    assert op.infer_type(types, attrs).dtype == "bfloat16"
    got = op.evaluate(arrays, attrs)
    assert got.dtype == np.uint16
    assert set(got.ravel()) <= {bits for array in arrays for bits in array.ravel()}


@pytest.mark.parametrize(
    ("b", "attrs"),
    [
        (TensorType("float16", (7, 20)), {}),
        (TensorType("float16", (20, 7)), {"transpose_b": True}),
        (TensorType("float64", (7, 20), "panels.1"), {}),
        (TensorType("int16", (7, 20), "panels.1"), {}),
    ],
)
def test_product_of_floats_takes_no_others_but_packed_narrow_ones(b, attrs):
    a = TensorType("float32", (3, 7))
    with pytest.raises(OpError, match=b.dtype):
        REGISTRY["MATMUL"].infer_type([a, b], attrs)
    narrow = [a, TensorType("bfloat16", (7, 20), "panels.1")]
    assert REGISTRY["MATMUL"].infer_type(narrow, {}) == TensorType("float32", (3, 20))


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (1.0, 0x3F80),
        (-0.0, 0x8000),
        (1 + 2**-8, 0x3F80),  # half way, to even
        (1 + 3 * 2**-8, 0x3F82),
        (1 + 2**-8 + 2**-20, 0x3F81),
        (3.4e38, 0x7F80),  # beyond the largest
        (np.inf, 0x7F80),
        (np.nan, 0x7FC0),
        (2.0**-149, 0),
        (2.0**-133, 1),
    ],
)
def test_cast_rounds_to_bfloat16(value, bits):
    assert cast(np.array(value, np.float32), "bfloat16") == bits
    assert cast(np.array([value], np.float64), "bfloat16") == [bits]


def test_cast_from_bfloat16_is_exact():
    bits = np.arange(0, 2**16, 7, np.uint16)
    values = cast(bits, "float32")
    np.testing.assert_array_equal(values.view(np.uint32) >> 16, bits)
    back = cast(values, "bfloat16")
    np.testing.assert_array_equal(back, np.where(np.isnan(values), 0x7FC0, bits))
    np.testing.assert_array_equal(cast(bits, "bool"), values != 0)


@pytest.mark.parametrize("dtype", ["int64", "int32", "int8", "uint8"])
@pytest.mark.parametrize("name", ["FLOOR_DIV", "TRUNC_DIV", "REMAINDER", "FMOD"])
def test_integer_division_by_zero_is_zero(name, dtype):
    limits = np.iinfo(dtype)
    a = np.array([limits.min, 0, 5, limits.max], dtype)
    np.testing.assert_array_equal(evaluate(name, a, np.zeros_like(a)), np.zeros_like(a))
    np.testing.assert_array_equal(evaluate(name, a, scalar=0, scalar_index=1), np.zeros_like(a))


@pytest.mark.parametrize("dtype", ["int64", "int32", "int8"])
def test_lowest_integer_wraps(dtype):
    lowest = np.array([np.iinfo(dtype).min], dtype)
    for name in ("FLOOR_DIV", "TRUNC_DIV"):
        assert evaluate(name, lowest, np.array([-1], dtype)) == lowest
    for name in ("REMAINDER", "FMOD"):
        assert evaluate(name, lowest, np.array([-1], dtype)) == 0
    for name in ("NEG", "ABS"):
        assert evaluate(name, lowest) == lowest


def test_scalar_stands_at_its_place():
    x = np.array([1.0, 4.0], np.float32)
    np.testing.assert_array_equal(evaluate("SUB", x, scalar=3, scalar_index=0), [2, -1])
    np.testing.assert_array_equal(evaluate("SUB", x, scalar=3, scalar_index=1), [-2, 1])
    keep = np.array([True, False])
    chosen = evaluate("WHERE", keep, x, scalar=-math.inf, scalar_index=2)
    assert chosen.dtype == np.float32
    np.testing.assert_array_equal(chosen, [1, -np.inf])
    np.testing.assert_array_equal(evaluate("WHERE", x, -x, scalar=False, scalar_index=0), -x)


def test_program_is_its_instructions():
    for sample in samples_of("MAP"):
        code, args = sample.attrs["code"], list(sample.attrs["args"])
        values = list(sample.inputs)
        for name in code:
            name, _, suffix = name.partition(":")
            arity = REGISTRY[name].inputs[1]
            operands, args = args[:arity], args[arity:]
            attrs = {"dtype": suffix} if name == "CAST" else {}
            if suffix == "nonzero":
                attrs["by_zero"] = False
            for place, v in enumerate(operands):
                if v < 0:
                    scalar = sample.attrs["scalars"][-1 - v]
                    attrs |= {"scalar": scalar, "scalar_index": place}
            values.append(evaluate(name, *[values[v] for v in operands if v >= 0], **attrs))
        got = evaluate("MAP", *sample.inputs, **sample.attrs)
        np.testing.assert_array_equal(got, np.broadcast_to(values[-1], got.shape))


def test_epilogue_is_a_program_on_the_product():
    rng = np.random.default_rng(0)
    a, b, bias, residual = (
        rng.standard_normal(shape).astype(np.float32)
        for shape in ((2, 5, 7), (7, 5), (5,), (2, 5, 5))
    )
    program = {"code": ["ADD", "TANH", "SUB"], "args": [0, 1, 3, 4, 2]}
    got = evaluate("MATMUL", a, b, bias, residual, alpha=0.5, **program)
    product = evaluate("MATMUL", a, b, alpha=0.5)
    np.testing.assert_array_equal(got, evaluate("MAP", product, bias, residual, **program))


def test_activations_are_rounded_to_multiples_of_their_groups_largest():
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    x[1, :16], x[1, 16:32], x[2, 5] = 0, 1e-38, -np.inf
    got = evaluate("MATMUL", x, np.eye(64, dtype=np.float32), activation_group=16)
    groups = x[:2].astype(np.float64).reshape(2, 4, 16)
    step = np.abs(groups).max(2, keepdims=True) / 127
    step[1, 1] = 1  # so small numbers count as 0
    want = np.where(step > 0, np.rint(groups / np.where(step > 0, step, 1)) * step, 0)
    np.testing.assert_allclose(got[:2], want.reshape(2, 64), rtol=1e-6)
    assert np.isnan(got[2]).all()


@pytest.mark.parametrize("name", ["EMBEDDING", "INDEX_SELECT", "GATHER", "SCATTER"])
@pytest.mark.parametrize("index", [-(2**31), -8, 7, 2**31 - 1])
def test_index_out_of_range_is_refused(name, index):
    x = np.ones((7, 7), np.float32)
    indices = np.zeros((3, 2), np.int32)
    indices[2, 1] = index
    more = [np.ones((3, 2), np.float32)] if name == "SCATTER" else []
    attrs = {} if name == "EMBEDDING" else {"axis": 0}
    with pytest.raises(InputError, match=rf"{name}: expected indices in \[.*, 7\), got .*{index}"):
        evaluate(name, x, indices, *more, **attrs)


@pytest.mark.parametrize("place", [-(2**31), -8, 7, 2**31 - 1])
def test_place_out_of_range_is_refused(place):
    x, places = np.ones((7, 2), np.float32), np.array([0, place], np.int32)
    with pytest.raises(InputError, match=rf"WRITE: expected indices in \[.*, 7\), got .*{place}"):
        evaluate("WRITE", x, places, x[:2], axis=0)


def test_the_last_of_several_writes_to_one_place_stays():
    x, src = np.zeros((3, 2)), np.arange(8.0).reshape(4, 2)
    got = evaluate("WRITE", x, np.array([1, -1, 1, 2]), src, axis=0)
    np.testing.assert_array_equal(got, [[0, 0], [4, 5], [6, 7]])


def test_negative_index_counts_from_the_end_but_in_a_table():
    x = np.arange(7)
    last = np.array([-7, -1])
    np.testing.assert_array_equal(evaluate("INDEX_SELECT", x, last, axis=0), [0, 6])
    np.testing.assert_array_equal(evaluate("GATHER", x, last, axis=0), [0, 6])
    with pytest.raises(InputError):
        evaluate("EMBEDDING", x, last)


@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 8), (8, 3), (0, 4), (4, 0)])
@pytest.mark.parametrize("diagonal", [-9, -3, 0, 2, 99])
def test_attention_counts_the_pairs_it_computes(queries, keys, diagonal):
    rows, columns = np.ogrid[:queries, :keys]
    pairs = int((columns <= rows + diagonal).sum())
    q, k, v = (TensorType("float32", (2, 3, n, d)) for n, d in ((queries, 8), (keys, 8), (keys, 4)))
    attrs = REGISTRY["ATTENTION"].complete({"scale": 1.0, "causal": True, "diagonal": diagonal})
    output = REGISTRY["ATTENTION"].infer_type([q, k, v], attrs)
    cost = REGISTRY["ATTENTION"].cost([q, k, v], output, attrs)
    assert cost.flops == 2 * 3 * pairs * (2 * 8 + 2 * 4 + 4)


@OPS
def test_cost_counts_what_is_written(op):
    for sample in samples_of(op.name):
        types = sample_types(sample)
        output, *_ = op.infer_types(types, sample.attrs)
        cost = op.cost(types, output, op.complete(sample.attrs))
        assert cost.bytes >= output.nbytes


@OPS
def test_cost_of_sizes_that_inputs_decide(op):
    """What an op costs is worked out before its sizes are known, and is then what it will be."""
    for sample in samples_of(op.name):
        types, values = sized_types(types_of(sample.inputs))
        attrs = op.complete(sample.attrs)
        try:
            output, *_ = op.infer_types(types, sample.attrs)
        except OpError:  # these sizes cannot vary one without the other
            continue
        fixed = types_of(sample.inputs)
        exact = op.cost(fixed, op.infer_types(fixed, sample.attrs)[0], attrs)
        cost = op.cost(types, output, attrs)
        functions = tuple(
            (name, dtype, size_at(count, values)) for name, dtype, count in cost.functions
        )
        cost = cost._replace(functions=())
        amounts = [size_at(amount, values) for amount in cost if amount != ()]
        assert amounts == [amount for amount in exact._replace(functions=()) if amount != ()]
        assert functions == exact.functions


def sized_types(types):
    """Types whose dims above 1 vary, those of one size together; and what they are now."""
    values = {f"n{size}": size for t in present(types) for size in t.shape if size > 1}
    sizes = {size: variable(name, size, 2 * size) for name, size in values.items()}
    return [
        t and TensorType(t.dtype, tuple(sizes.get(size, size) for size in t.shape)) for t in types
    ], values


@pytest.mark.parametrize(("name", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_steps_of_an_empty_batch(name, gates):
    """There is nothing to compute in 2147483647 steps: the evaluators take none of them."""
    h, w = np.zeros((0, 3), "f"), np.zeros((1, gates, 3, PANEL), "f")
    extra = {"LSTM": [h, h, w], "GRU": [h, w, np.zeros(3, "f")], "RNN": [h, w]}[name]
    y = evaluate(name, np.zeros((2**31 - 1, 0, 3 * gates), "f"), *extra)
    assert (y[0] if name == "LSTM" else y).shape == (2**31 - 1, 0, 3)


def test_the_logarithm_of_gamma_has_no_end():
    """It exceeds all floats where its argument does not, and has poles."""
    x = np.array([1e306, np.finfo(np.float64).max, np.inf, 0, -1, -1e308])
    op = REGISTRY["LGAMMA"]
    np.testing.assert_array_equal(op.evaluate([x], op.complete({})), np.full(6, np.inf))
