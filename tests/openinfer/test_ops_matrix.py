"""Every op of OpenInfer's in every element type, against plain Python, extremes included."""

import itertools
import math
import warnings

import numpy as np
import pytest

import openinfer_reference as reference
from openinfer_samples import (
    ELEMENTWISE,
    REDUCTIONS,
    operands,
    random_values,
    specials,
    stored,
    variants,
)
from taper_openinfer.dtypes import DTYPES
from taper_openinfer.ops import OPS, combinations, evaluate, output_type
from taper_openinfer.ops.formulas import FORMULAS
from taper_openinfer.ops.table import ALL, NUMBERS


@pytest.fixture(autouse=True)
def no_warnings():
    """Overflow and division by zero are ordinary here: numpy must not warn of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def check(got, want, dtype, what, tolerance=(0.0, 0.0)):
    assert got.dtype == DTYPES[dtype].storage, what
    values = reference.to_python(got, dtype)
    if dtype in reference.FLOATS:
        np.testing.assert_allclose(values, want, rtol=tolerance[1], atol=tolerance[0], err_msg=what)
    else:
        assert values == want, what


@pytest.mark.parametrize("op", ELEMENTWISE)
def test_elementwise(op):
    rng = np.random.default_rng(1)
    for dtypes, result, chosen in combinations(op):
        arrays = operands(rng, dtypes)
        columns = [
            reference.to_python(array, dtype) for array, dtype in zip(arrays, dtypes, strict=True)
        ]
        for variant in variants(op, dtypes[0]):
            settings = {**variant, **chosen}
            if (
                "to" in chosen
                and DTYPES[chosen["to"]].kind == "float"
                and variant not in ({}, variants(op, dtypes[0])[0])
            ):
                continue  # only casts to integers round as they are told
            types = [(dtype, array.shape) for dtype, array in zip(dtypes, arrays, strict=True)]
            assert output_type(op, types, settings, result) == (result, arrays[0].shape)
            got = evaluate(op, arrays, dtypes, settings, result)
            with np.errstate(all="ignore"):
                want = [
                    reference.as_stored(reference.element(op, dtypes[0], settings, *row), result)
                    for row in zip(*columns, strict=True)
                ]
            check(got, want, result, f"{op} {dtypes} {settings}")


@pytest.mark.parametrize("op", ["add", "mul", "sub", "div", "floor_div", "rem"])
def test_broadcast(op):
    """Shapes broadcast as NumPy's do; so do arrays without axes, whose results are such too."""
    rng = np.random.default_rng(2)
    for shapes in (((2, 1, 3), (4, 1)), ((), (3,)), ((), ()), ((0, 3), (1, 3))):
        for dtype in ("i8", "f16", "u4") if op in ("add", "mul", "sub", "div") else ("i8", "u4"):
            arrays = [
                stored(random_values(rng, dtype, math.prod(shape)), dtype).reshape(shape)
                for shape in shapes
            ]
            shape = np.broadcast_shapes(*shapes)
            got = evaluate(op, arrays, [dtype] * 2, {}, dtype)
            whole = [np.array(np.broadcast_to(array, shape)) for array in arrays]
            want = evaluate(op, [array.reshape(-1) for array in whole], [dtype] * 2, {}, dtype)
            assert got.shape == shape
            np.testing.assert_array_equal(got.reshape(-1), want)


@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions(op):
    rng = np.random.default_rng(3)
    chosen = [{"axis": 1}, {"axis": -1, "keepdims": True}, {"axis": 0, "select_first": False}]
    if OPS[op].shape == "axes":
        chosen = [{"axes": [0]}, {"axes": [-1, 0], "keepdims": True}, {"axes": []}]
    for dtypes, result, extra in combinations(op):
        (dtype,) = dtypes
        values = [*specials(dtype), *random_values(rng, dtype, 24)][:24]
        tolerance = reference.TOLERANCES.get(result, (0.0, 0.0))
        for array in (
            stored(values, dtype).reshape(2, 3, 4),
            stored(random_values(rng, dtype, 24, 1.0), dtype).reshape(2, 3, 4),
        ):
            for variant in chosen:
                settings = {**variant, **extra}
                _, shape = output_type(op, [(dtype, array.shape)], settings)
                got = evaluate(op, [array], dtypes, settings, result)
                assert got.shape == shape
                axes = [a % 3 for a in variant.get("axes", [variant.get("axis")])]
                want = []
                for line in reference.lines(array, axes):
                    elements = np.array([array[index] for index in line], array.dtype)
                    met = reference.to_python(elements, dtype)
                    with np.errstate(all="ignore"):
                        want.append(
                            reference.as_stored(reference.reduced(op, dtype, settings, met), result)
                        )
                check(got, want, result, f"{op} {dtype} {settings}", tolerance)


def test_means_and_sums_of_nothing():
    empty = np.zeros((2, 0), np.float32)
    axes = {"axes": [1]}
    np.testing.assert_array_equal(
        evaluate("mean_axis", [empty], ["f32"], axes, "f32"), [np.nan] * 2
    )
    np.testing.assert_array_equal(evaluate("sum_axis", [empty], ["f32"], axes, "f32"), [0, 0])
    np.testing.assert_array_equal(evaluate("prod_axis", [empty], ["f32"], axes, "f32"), [1, 1])
    none = np.zeros((2, 0), np.int8)
    np.testing.assert_array_equal(evaluate("mean_axis", [none], ["i8"], axes, "i8"), [0, 0])


@pytest.mark.parametrize("high", [2**63 - 1, -(2**63)])
def test_the_mean_of_large_integers_does_not_wrap(high):
    x = np.array([high, high, high - (1 if high > 0 else -1)])
    mean = evaluate("mean_axis", [x], ["i64"], {"axes": [0]}, "i64")
    assert mean == reference.reduced("mean_axis", "i64", {}, x.tolist())


def test_the_mean_of_large_unsigned_integers_does_not_wrap():
    x = np.array([2**64 - 1, 2**64 - 1, 2**64 - 2], np.uint64)
    mean = evaluate("mean_axis", [x], ["u64"], {"axes": [0]}, "u64")
    assert mean == reference.reduced("mean_axis", "u64", {}, x.tolist())


def test_every_op_but_popcount_has_a_formula():
    assert set(OPS) - set(FORMULAS) == {"popcount"}
    assert not set(FORMULAS) - set(OPS)


@pytest.mark.parametrize("dtype", ALL)
def test_matmul(dtype):
    rng = np.random.default_rng(4)
    pairs = [
        (result, extra) for inputs, result, extra in combinations("matmul") if inputs[0] == dtype
    ]
    shapes = [((2, 3), (3, 4)), ((3,), (3,)), ((2, 1, 2, 3), (2, 3, 2)), ((2, 0), (0, 3))]
    for (result, extra), (a_shape, b_shape) in itertools.product(pairs, shapes):
        a, b = (
            stored(random_values(rng, dtype, math.prod(shape), 1.0), dtype).reshape(shape)
            for shape in (a_shape, b_shape)
        )
        got = evaluate("matmul", [a, b], [dtype] * 2, extra, result)
        _, shape = output_type("matmul", [(dtype, a_shape), (dtype, b_shape)], extra, result)
        assert got.shape == shape
        want = product(a, b, dtype, shape)
        if dtype == "bool":
            want = [bool(value) for value in want]
        else:
            want = [reference.as_stored(value, result) for value in want]
        check(got, want, result, f"{dtype} {a_shape}", reference.TOLERANCES.get(result, (0.0, 0.0)))


@pytest.mark.parametrize("low", [-(2**7), -(2**31)])
@pytest.mark.parametrize(("dtype", "acc"), [("i8", "i32"), ("i32", "i64"), ("i64", None)])
def test_large_products_of_integers_wrap(dtype, acc, low):
    """Also those that floats of 64 bits do not hold."""
    rng = np.random.default_rng(6)
    a, b = (
        rng.integers(max(low, reference.limits(dtype)[0]), 128, shape).astype(DTYPES[dtype].storage)
        for shape in ((64, 96), (96, 3))
    )
    a[0], b[:, 0] = reference.limits(dtype)[0], reference.limits(dtype)[0]
    result = acc or dtype
    got = evaluate("matmul", [a, b], [dtype] * 2, {"acc": acc} if acc else {}, result)
    want = [reference.as_stored(value, result) for value in product(a, b, dtype, got.shape)]
    check(got, want, result, dtype)


def product(a, b, dtype, shape):
    """Sums of products of Python's numbers, for each element of the result in order."""

    def numbers(array):
        return np.array(reference.to_python(array, dtype), object).reshape(array.shape)

    rows = numbers(a if a.ndim > 1 else a[None])
    columns = numbers(b if b.ndim > 1 else b[:, None])
    batch = np.broadcast_shapes(rows.shape[:-2], columns.shape[:-2])
    rows = np.broadcast_to(rows, (*batch, *rows.shape[-2:]))
    columns = np.broadcast_to(columns, (*batch, *columns.shape[-2:]))
    found = []
    for at in np.ndindex(*batch):
        for i in range(rows.shape[-2]):
            for j in range(columns.shape[-1]):
                pairs = zip(rows[at][i], columns[at][:, j], strict=True)
                found.append(sum((x * y for x, y in pairs), 0.0 if dtype[0] == "f" else 0))
    return found


@pytest.mark.parametrize("dtype", OPS["is_finite"].dtypes)
def test_is_finite(dtype):
    for values, want in (
        ([0.5, 1], True),
        ([1, math.nan], False),
        ([-math.inf], False),
        ([], True),
    ):
        got = evaluate("is_finite", [stored(values, dtype)], [dtype], {}, "bool")
        assert got.shape == ()
        assert got.dtype == bool
        assert got == want


def test_inputs_are_left_alone():
    for op in ELEMENTWISE:
        dtypes, result, chosen = max(combinations(op), key=lambda each: "f32" in each[0])
        arrays = operands(np.random.default_rng(5), dtypes)
        before = [array.copy() for array in arrays]
        for array in arrays:
            array.flags.writeable = False
        for variant in variants(op, dtypes[0]):
            got = evaluate(op, arrays, dtypes, {**variant, **chosen}, result)
            assert not any(np.shares_memory(got, array) for array in arrays)
        for array, old in zip(arrays, before, strict=True):
            np.testing.assert_array_equal(array, old)


def test_every_number_type_has_an_evaluated_op():
    assert {inputs[0] for inputs, *_ in combinations("sub")} == set(NUMBERS)
