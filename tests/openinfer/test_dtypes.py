"""Element types: how files pack them, and how small floats round."""

import numpy as np
import pytest

from taper_openinfer.dtypes import (
    BY_CODE,
    BY_JSON_NAME,
    DTYPES,
    check_array,
    decode,
    encode,
    from_float32,
    from_taper_name,
    of_array,
    taper_name,
    to_float32,
)
from taper_openinfer.errors import OpenInferError

NAN, INF = float("nan"), float("inf")


def test_the_numbers_of_the_types():
    names = (
        "i8 i16 i32 i64 u8 u16 u32 u64 f16 f32 f64 bool bitset . . bf16 f8 i4 i2 i1 u4 u2 u1 t2 t1"
    )
    codes = {code: name for code, name in enumerate(names.split(), 1) if name != "."}
    assert {code: dtype.name for code, dtype in BY_CODE.items()} == codes
    assert list(DTYPES) == list(codes.values())


def test_names_in_json():
    assert DTYPES["f32"].json_name == "F32"
    assert DTYPES["bool"].json_name == "Bool"
    assert DTYPES["bitset"].json_name == "Bitset"
    assert BY_JSON_NAME["BF16"].name == "bf16"
    assert len(BY_JSON_NAME) == len(DTYPES)


def test_names_in_plans():
    assert taper_name("bf16") == "bfloat16"
    assert taper_name("u16") is None
    assert [n for n in DTYPES if taper_name(n) and from_taper_name(taper_name(n)) != n] == []


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [("i1", -1, 0), ("i2", -2, 1), ("i4", -8, 7), ("u1", 0, 1), ("u2", 0, 3), ("u4", 0, 15),
     ("t1", -1, 1), ("t2", -1, 1), ("i8", -128, 127), ("u64", 0, 2**64 - 1), ("f8", -57344, 57344),
     ("bf16", -3.3895313892515355e38, 3.3895313892515355e38)],
)  # fmt: skip
def test_ranges(dtype, low, high):
    assert (DTYPES[dtype].low, DTYPES[dtype].high) == (low, high)


@pytest.mark.parametrize(
    ("dtype", "elements", "stored"),
    [
        ("i1", [-1, 0, 0, -1, 0, 0, 0, 0, -1], "09 01"),
        ("i2", [0, 1, -2, -1, 1], "e4 01"),
        ("i4", [1, -1, -8, 7, 0], "f1 78 00"),
        ("u1", [1, 0, 0, 0, 0, 0, 1, 1, 1], "c1 01"),
        ("u2", [0, 1, 2, 3, 2], "e4 02"),
        ("u4", [1, 15, 8], "f1 08"),
        ("t1", [1, -1, -1, 1, 1, 1, 1, 1, -1, 1], "f9 02"),
        ("t2", [0, 1, -1, 0, -1], "34 03"),
        ("bool", [True, False, True], "01 00 01"),
        ("i16", [1, -2], "01 00 fe ff"),
        ("u32", [0x01020304], "04 03 02 01"),
        ("f32", [1.0, -2.0], "00 00 80 3f 00 00 00 c0"),
        ("f16", [1.5], "00 3e"),
        ("bf16", [0x3F80], "80 3f"),
        ("f8", [0x3C, 0xBD], "3c bd"),
        ("i4", [], ""),
    ],
)
def test_bytes_in_a_file(dtype, elements, stored):
    array = np.array(elements, DTYPES[dtype].storage)
    assert encode(dtype, array).hex(" ") == stored
    read = decode(dtype, bytes.fromhex(stored), array.shape)
    assert read.dtype == array.dtype
    assert read.tolist() == elements
    assert not read.flags.writeable


@pytest.mark.parametrize("dtype", [name for name, row in DTYPES.items() if row.is_packed])
def test_every_byte_of_packed_elements(dtype):
    """Against a reader of one bit at a time."""
    row, every = DTYPES[dtype], bytes(range(256))
    per_byte = 8 // row.bits
    expected = []
    for byte in every:
        for k in range(per_byte):
            field = byte >> k * row.bits & (1 << row.bits) - 1
            if dtype == "t1":
                field = (-1, 1)[field]
            elif row.kind == "packed_signed" and field >> row.bits - 1:
                field -= 1 << row.bits
            expected.append(field)
    if dtype == "t2":
        with pytest.raises(OpenInferError, match="expected -1 to 1 of t2, got -2"):
            decode(dtype, every, (len(expected),))
        return
    array = decode(dtype, every, (len(expected),))
    assert array.tolist() == expected
    assert encode(dtype, array) == every


def test_shapes_and_orders():
    array = np.arange(6, dtype=np.uint8).reshape(2, 3) % 4
    assert encode("u2", np.asfortranarray(array)) == encode("u2", array)
    assert decode("u2", encode("u2", array), (2, 3)).tolist() == array.tolist()
    assert encode("i16", np.array([1], ">i2")) == b"\1\0"
    scalar = decode("t1", encode("t1", np.array(-1, np.int8)), ())
    assert scalar.shape == ()
    assert scalar == -1


#: f8 is 1 bit of sign, 5 of exponent with a bias of 15, 2 of mantissa.
F8 = {
    0x00: 0.0, 0x80: -0.0, 0x01: 2.0**-16, 0x03: 3 * 2.0**-16, 0x04: 2.0**-14, 0x3C: 1.0,
    0x3D: 1.25, 0x3E: 1.5, 0x3F: 1.75, 0x40: 2.0, 0xC1: -2.5, 0x7B: 57344.0, 0x7C: INF,
    0xFC: -INF, 0x7D: NAN, 0x7E: NAN, 0x7F: NAN, 0xFF: NAN,
}  # fmt: skip


def test_f8_values():
    decoded = to_float32("f8", np.array(list(F8), np.uint8))
    assert decoded.dtype == np.float32
    np.testing.assert_array_equal(decoded, np.array(list(F8.values()), np.float32))
    assert np.signbit(decoded[1])


@pytest.mark.parametrize(
    ("value", "bits"),
    [(1.125, 0x3D), (-1.125, 0xBD), (1.1249999, 0x3C), (1.375, 0x3E), (1.875, 0x40),
     (2.0**-17, 0x01), (0.99 * 2.0**-17, 0x00), (-(2.0**-18), 0x80), (3.5 * 2.0**-16, 0x04),
     (61439.996, 0x7B), (61440.0, 0x7C), (-1e38, 0xFC), (INF, 0x7C), (NAN, 0x7D), (-NAN, 0x7D),
     (1e-45, 0x00), (0.0, 0x00), (-0.0, 0x80)],
)  # fmt: skip
def test_f8_rounding(value, bits):
    """To the nearest, ties away from zero; there is one NaN."""
    assert from_float32("f8", np.array([value], np.float32)).tolist() == [bits]


def test_f8_is_the_nearest_of_all():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 20000, dtype=np.uint32)
    bits[:10000] = (bits[:10000] & 0x8FFFFFFF) + 0x38000000 - 0x04000000  # of f8's range
    x = bits.view(np.float32)
    x = x[np.isfinite(x) & (abs(x) < 61440)]
    finite = to_float32("f8", np.arange(0x7C, dtype=np.uint8)).astype(np.float64)
    distance = abs(abs(x.astype(np.float64))[:, None] - finite)
    nearest = 0x7B - np.argmin(distance[:, ::-1], axis=1)  # of two, the larger
    expected = nearest | np.signbit(x) * 0x80
    np.testing.assert_array_equal(from_float32("f8", x), expected)


def test_every_f8_comes_back():
    every = np.arange(256, dtype=np.uint8)
    values = to_float32("f8", every)
    back = from_float32("f8", values)
    np.testing.assert_array_equal(back, np.where(np.isnan(values), 0x7D, every))


@pytest.mark.parametrize(
    ("value", "bits"),
    [(1.0, 0x3F80), (1.00390625, 0x3F80), (1.01171875, 0x3F82), (3.4e38, 0x7F80), (NAN, 0x7FC0),
     (-INF, 0xFF80), (1e-45, 0x0000), (-0.0, 0x8000)],
)  # fmt: skip
def test_bf16_rounding(value, bits):
    """To the nearest, ties to the even; a NaN whose upper half were infinity stays a NaN."""
    assert from_float32("bf16", np.array([value], np.float32)).tolist() == [bits]
    sneaky = np.array([0x7F800001], np.uint32).view(np.float32)
    assert np.isnan(to_float32("bf16", from_float32("bf16", sneaky))).all()


def test_f16_rounding():
    x = np.array([1.0, 65520.0, -1e10, NAN, 2.0**-25], np.float32)
    assert from_float32("f16", x).view(np.uint16).tolist() == [0x3C00, 0x7C00, 0xFC00, 0x7E00, 0]
    assert to_float32("f16", np.array([1.5], np.float16)).dtype == np.float32


@pytest.mark.parametrize(
    ("dtype", "data", "shape", "message"),
    [
        ("i32", b"\0" * 7, (2,), "expected 8 bytes of i32, got 7"),
        ("u1", b"\0" * 2, (8,), "expected 1 bytes of u1, got 2"),
        ("bool", b"\0\2", (2,), "expected only bytes 0 and 1 of bool, got 2"),
        ("t2", b"\2", (1,), "expected -1 to 1 of t2, got -2"),
    ],
)
def test_bytes_that_are_no_values(dtype, data, shape, message):
    with pytest.raises(OpenInferError, match=message):
        decode(dtype, data, shape)


@pytest.mark.parametrize(
    ("dtype", "array", "message"),
    [
        ("t1", np.array([1, 0], np.int8), "expected -1 and 1 of t1, got 0"),
        ("i4", np.array([8], np.int8), "expected -8 to 7 of i4, got 8"),
        ("u2", np.array([4], np.uint8), "expected 0 to 3 of u2, got 4"),
        ("f8", np.array([1.0], np.float32), "expected uint8 elements of f8, got float32"),
    ],
)
def test_arrays_that_do_not_fit(dtype, array, message):
    with pytest.raises(OpenInferError, match=message):
        encode(dtype, array)
    with pytest.raises(OpenInferError, match=message):
        check_array(dtype, array)


def test_types_of_arrays():
    assert of_array(np.zeros(1, ">f4")) == "f32"
    assert of_array(np.zeros(1, np.uint16)) == "u16"
    assert of_array(np.zeros(1, np.uint8)) == "u8"
    with pytest.raises(OpenInferError, match="complex64"):
        of_array(np.zeros(1, np.complex64))
