"""Test the table of OpenInfer's ops, and which calls of them are accepted."""

import numpy as np
import pytest

from taper_openinfer.dtypes import DTYPES
from taper_openinfer.errors import NoKernelError
from taper_openinfer.language.graph import Name
from taper_openinfer.ops import OPS, combinations, complete, evaluate, output_type
from taper_runtime.base.errors import OpError


@pytest.mark.parametrize("dtype", ["i1", "i2", "u1", "i8", "u16", "f16"])
def test_a_bound_beyond_the_type_bounds_nothing(dtype):
    row = DTYPES[dtype]
    above, below = row.high + 1, row.low - 1
    x = np.array([row.low, row.high, 0], row.storage)
    for settings in ({"max": above}, {"min": below}, {"min": below, "max": 2 * above}):
        assert evaluate("clamp", [x], [dtype], settings, dtype).tolist() == x.tolist()
    for settings in ({"min": above}, {"max": below}):  # what no element reaches
        with pytest.raises(OpError, match=f"the range of {dtype}"):
            complete("clamp", [dtype], settings)
    with pytest.raises(OpError, match="the range of i1, got 1"):
        complete("fill", ["i1"], {"value": 1})


def test_there_are_47_ops_and_36_pairs_of_acc():
    assert len(OPS) == 47
    pairs = [inputs[0] + to for inputs, to, settings in combinations("add") if settings]
    assert len(pairs) == 36


@pytest.mark.parametrize(
    ("op", "count"), [("add", 21), ("sub", 19), ("div", 15), ("eq", 20), ("is_neg", 16)]
)
def test_counts_of_element_types(op, count):
    assert len(OPS[op].dtypes) == count


def test_output_dtype_is_the_declared_one_else_the_first_inputs():
    inputs = [("i8", (2,)), ("i8", (2,))]
    assert output_type("add", inputs, {}) == ("i8", (2,))
    assert output_type("add", inputs, {}, "i8") == ("i8", (2,))
    assert output_type("add", inputs, {"acc": "i32"}, "i32") == ("i32", (2,))
    assert output_type("lt", inputs, {}) == ("bool", (2,))
    with pytest.raises(NoKernelError) as error:
        output_type("add", inputs, {}, "i32", "CpuAvx2")
    assert str(error.value).startswith(
        "no kernel computes 'add' of (i8, i8) -> i32 on CpuAvx2; there are: (T, T) -> T with T of "
        "f8 bf16 f16 f32 f64"
    )
    assert str(error.value).endswith("(T, T) -> acc with acc a wider integer of T's sign")


@pytest.mark.parametrize(
    ("op", "dtypes", "settings"),
    [
        ("add", ["f32", "f64"], {}),
        ("sub", ["bool", "bool"], {}),
        ("floor", ["i32"], {}),
        ("neg", ["u8"], {}),
        ("add", ["f32", "f32"], {"acc": "f64"}),
        ("add", ["i8", "i8"], {"acc": "u16"}),
        ("add", ["i8", "i8"], {"acc": "i8"}),
        ("add", ["i64", "i64"], {"acc": "i64"}),
        ("abs", ["u8"], {"acc": "i16"}),
        ("cast", ["i32"], {"to": "i16"}),
        ("cast", ["i32"], {"to": "i32"}),
        ("cast", ["i8"], {"to": "u16"}),
        ("cast", ["f32"], {"to": "bool"}),
        ("cast", ["f32"], {"to": "i4"}),
        ("filter", ["f32", "f32", "i32"], {}),
        ("add", ["t1", "t1"], {}),
    ],
)
def test_what_has_no_kernel(op, dtypes, settings):
    with pytest.raises(NoKernelError, match=r"no kernel computes .* on Cpu; there are: "):
        output_type(op, [(dtype, (3,)) for dtype in dtypes], settings)


@pytest.mark.parametrize(
    ("op", "shapes", "settings", "shape"),
    [
        ("add", [(2, 1, 3), (4, 1)], {}, (2, 4, 3)),
        ("fma", [(2, 3)] * 3, {}, (2, 3)),
        ("matmul", [(2, 1, 4, 5), (3, 5, 6)], {}, (2, 3, 4, 6)),
        ("matmul", [(5,), (5,)], {}, ()),
        ("matmul", [(5,), (2, 5, 3)], {}, (2, 3)),
        ("matmul", [(4, 5), (5,)], {}, (4,)),
        ("is_finite", [(2, 3)], {}, ()),
        ("sum_axis", [(2, 3, 4)], {"axes": [0, -1]}, (3,)),
        ("sum_axis", [(2, 3, 4)], {"axes": [0, -1], "keepdims": True}, (1, 3, 1)),
        ("sum_axis", [(2, 0)], {"axes": [1]}, (2,)),
        ("argmax_axis", [(2, 3)], {"axis": -2}, (3,)),
        ("fill", [()], {"value": 2}, ()),
    ],
)
def test_shapes(op, shapes, settings, shape):
    assert output_type(op, [("f32", shape) for shape in shapes], settings)[1] == shape


@pytest.mark.parametrize(
    ("op", "inputs", "settings", "message"),
    [
        ("addd", [], {}, "no op 'addd'; do you mean 'add'"),
        ("nothing_like_it", [], {}, "no op 'nothing_like_it'; there are add, mul, sub"),
        ("add", [(3,)], {}, r"add: expected 2 inputs \(a, b\), got 1"),
        ("add", [(3,), (2,)], {}, "add: expected shapes that broadcast, got"),
        ("max", [(3,), (1,)], {}, r"max: expected inputs of one shape, got \[\[3\], \[1\]\]"),
        ("matmul", [(), (2,)], {}, "of rank 1 or more"),
        ("matmul", [(2, 3), (2, 3)], {}, "as many columns of a as rows of b"),
        ("relu", [(3,)], {"slope": 1}, "relu: expected settings of alpha, clamp_max, got 'slope'"),
        ("neg", [(3,)], {"alpha": 1}, "settings of no name, got 'alpha'"),
        ("relu", [(3,)], {"alpha": 0.5, "negative_slope": 0.5}, "alpha once, got it twice"),
        ("relu", [(3,)], {"alpha": "f32"}, "alpha, a number of f32, got 'f32'"),
        ("relu", [(3,)], {"alpha": True}, "alpha, a number of f32, got True"),
        (
            "relu",
            [(3,)],
            {"alpha": 1e39},
            r"alpha from -3.4.* to 3.4.*, the range of f32, got 1e\+39",
        ),
        ("cast", [(3,)], {}, "cast: expected the setting to, an element type, got none"),
        ("cast", [(3,)], {"to": [1]}, r"to, an element type, got \[1\]"),
        ("cast", [(3,)], {"to": "i8", "rounding_mode": (1,)}, "of trunc, floor, ceil, nearest"),
        ("cast", [(3,)], {"to": "f128"}, "to, an element type, got 'f128'"),
        ("cast", [(3,)], {"to": "i8", "rounding_mode": "up"}, "of trunc, floor, ceil, nearest"),
        ("cast", [(3,)], {"to": "i8", "saturate": 1}, "saturate, true or false, got 1"),
        ("sum_axis", [(3,)], {}, "the setting axes, a list of integers, got none"),
        ("sum_axis", [(3,)], {"axes": 0}, "axes, a list of integers, got 0"),
        ("sum_axis", [(3,)], {"axes": [1]}, r"axes in \[-1, 1\), got 1"),
        ("sum_axis", [(3, 4)], {"axes": [1, -1]}, r"each axis once, got \[1, -1\]"),
        ("max_axis", [(3, 0)], {"axes": [1]}, r"axes that hold elements, got \[3, 0\]"),
        ("argmin_axis", [(0,)], {"axis": 0}, r"axes that hold elements, got \[0\]"),
        ("argmin_axis", [(3,)], {"axis": 0.0}, "axis, an integer, got 0.0"),
    ],
)
def test_calls_that_are_wrong(op, inputs, settings, message):
    with pytest.raises(OpError, match=message):
        output_type(op, [("f32", shape) for shape in inputs], settings)


def test_the_infinity_that_bounds_nothing_is_a_bound_of_every_type():
    inf = float("inf")
    for dtype in ("i8", "u4", "f16"):
        given = {"min": -inf, "max": inf}
        assert complete("clamp", [dtype], given) == given
    assert complete("clamp", ["f32"], {"min": inf})["min"] == inf
    for given in ({"min": inf}, {"max": -inf}):
        with pytest.raises(
            OpError, match=r"an integer from -128 to 127, the range of i8, got -?inf"
        ):
            complete("clamp", ["i8"], given)


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        ("i8", 128, "value, an integer from -128 to 127, the range of i8, got 128"),
        ("i8", 0.5, "an integer from -128 to 127"),
        ("i8", float("nan"), "an integer from -128 to 127"),
        ("i8", float("inf"), "an integer from -128 to 127"),
        ("u4", -1, "an integer from 0 to 15"),
        ("i1", 1, "an integer from -1 to 0"),
        ("bool", 2, "an integer from 0 to 1"),
        ("i64", True, "a number of i64, got True"),
        ("f16", 65536.0, "from -65504.0 to 65504.0, the range of f16"),
        ("f64", 10**400, "from .* the range of f64"),
    ],
)
def test_a_value_must_fit(dtype, value, message):
    with pytest.raises(OpError, match=message):
        complete("fill", [dtype], {"value": value})


def test_settings_are_completed():
    assert complete("relu", ["f32"], {"negative_slope": 1}) == {
        "alpha": 1.0,
        "clamp_max": float("inf"),
    }
    assert complete("relu", ["i32"], {"alpha": 2.0}) == {"alpha": 2, "clamp_max": float("inf")}
    assert type(complete("cast", ["f32"], {"to": Name("i8")})["to"]) is str
    assert complete("fill", ["bool"], {"value": 1}) == {"value": True}
    assert complete("clamp", ["u8"], {"max": 3})["min"] == -float("inf")


def test_first_era():
    x = np.array([[1.0, -2.0], [3.0, np.nan]], np.float32)
    np.testing.assert_array_equal(evaluate("add", [x, x[0]], ["f32", "f32"], {}, "f32"), x + x[0])
    big = np.array([2**63 - 1, -(2**63)])
    np.testing.assert_array_equal(evaluate("add", [big, big], ["i64"] * 2, {}, "i64"), [-2, 0])
    flags = np.array([True, False])
    np.testing.assert_array_equal(
        evaluate("mul", [flags, ~flags], ["bool"] * 2, {}, "bool"), [False, False]
    )
