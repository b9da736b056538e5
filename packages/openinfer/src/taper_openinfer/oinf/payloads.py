"""Encode and decode blobs of a model file: values of metadata, and quantisation info."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from taper_openinfer.dtypes import (
    BY_CODE,
    DTYPES,
    NDARRAY,
    STRING,
    ElementType,
    decode,
    encode,
    from_float32,
    to_float32,
)
from taper_openinfer.errors import OinfError, OpenInferError
from taper_openinfer.oinf.contents import ArrayValue, Bitset, Quantization, ScalarValue
from taper_openinfer.oinf.layout import (
    QUANTIZATION,
    checked_bytes,
    dump_string,
    fail,
    padded,
    parse_string,
)
from taper_runtime.base.checks import MAX_RANK

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The types of a metadata value.
Value = ScalarValue | ArrayValue | Bitset | str

_SMALL_FLOATS = ("f16", "bf16", "f8")
_PAIR = struct.Struct("<II")
_SYMMETRIC, _ASYMMETRIC = 1, 2
_NONE, _PER_TENSOR, _PER_CHANNEL = 0, 1, 2


def decoded(dtype: str, data: np.ndarray, shape: Sequence[int], field: str) -> np.ndarray:
    """Call :func:`taper_openinfer.dtypes.decode`; an error names ``field``."""
    try:
        return decode(dtype, data, shape)
    except OpenInferError as error:
        raise OinfError(field, str(error)) from None


def encoded(dtype: str, array: np.ndarray, field: str) -> bytes:
    """Call :func:`taper_openinfer.dtypes.encode`; an error names ``field``."""
    try:
        return encode(dtype, array)
    except OpenInferError as error:
        raise OinfError(field, str(error)) from None


def parse_value(code: int, data: np.ndarray, field: str) -> Value:
    """Decode a value of metadata.

    Parameters
    ----------
    code : int
        The number of its type.
    data : numpy.ndarray of uint8
        The bytes of the value.
    field : str

    Raises
    ------
    OinfError
        If the bytes are not a value of the type.
    """
    if code == STRING:
        text, taken = parse_string(data.data, field)
        _check_taken(taken, data, field)
        return text
    if code == NDARRAY:
        return _parse_array(data, field)
    dtype = BY_CODE[code].name
    if dtype == "bitset":
        return _parse_bitset(data, field)
    return ScalarValue(_number(dtype, decoded(dtype, data, (1,), field)), dtype)


def _number(dtype: str, array: np.ndarray) -> bool | int | float:
    values = to_float32(dtype, array) if dtype in _SMALL_FLOATS else array
    number: bool | int | float = values[0].item()
    return number


def _parse_bitset(data: np.ndarray, field: str) -> Bitset:
    bits, nbytes = _PAIR.unpack_from(data.data)
    if nbytes != -(-bits // 8):
        fail(f"{field}.bytes", f"expected {-(-bits // 8)} for {bits} bits", nbytes)
    _check_taken(_PAIR.size + padded(nbytes), data, field)
    raw = data[_PAIR.size : _PAIR.size + nbytes].copy()
    if bits % 8:
        raw[-1] &= (1 << bits % 8) - 1
    return Bitset(raw.tobytes(), bits)


def _parse_array(data: np.ndarray, field: str) -> ArrayValue:
    """Decode an array of metadata: element type, dims, elements."""
    code, ndim = _PAIR.unpack_from(data.data)
    if code not in BY_CODE:
        fail(f"{field}.element_type", "expected the number of an element type", code)
    if ndim > MAX_RANK:
        fail(f"{field}.ndim", f"expected at most {MAX_RANK}", ndim)
    start = _PAIR.size + 8 * ndim
    if start > data.size:
        fail(f"{field}.dims", f"expected {8 * ndim} bytes", data.size - _PAIR.size)
    dtype = BY_CODE[code].name
    shape = struct.unpack_from(f"<{ndim}Q", data.data, _PAIR.size)
    nbytes = checked_bytes(dtype, shape, f"{field}.dims")
    _check_taken(padded(start + nbytes), data, field)
    return ArrayValue(decoded(dtype, data[start : start + nbytes], shape, field), dtype)


def _check_taken(taken: int, data: np.ndarray, field: str) -> None:
    if taken != data.size:
        fail(f"{field}.nbytes", f"expected {taken} bytes for this value", data.size)


def type_code(value: Value, field: str) -> int:
    """Return the type number of a value of metadata; for an array, that of its elements.

    Raises
    ------
    OinfError
        If the format has no such type.
    """
    if isinstance(value, str):
        return STRING
    return _element("bitset" if isinstance(value, Bitset) else value.dtype, field).code


def dump_value(value: Value, field: str) -> tuple[int, bytes]:
    """Return the type number and the bytes of a value of metadata.

    Raises
    ------
    OinfError
        If the format cannot hold it.
    """
    if isinstance(value, str):
        return STRING, dump_string(value, field)
    if isinstance(value, Bitset):
        head = _PAIR.pack(value.count, len(value.data))
        return DTYPES["bitset"].code, _pad(head + value.data)
    if isinstance(value, ArrayValue):
        array = value.values
        head = _PAIR.pack(_element(value.dtype, field).code, array.ndim)
        head += struct.pack(f"<{array.ndim}Q", *array.shape)
        return NDARRAY, _pad(head + encoded(value.dtype, array, field))
    return _element(value.dtype, field).code, _dump_scalar(value, field)


def _element(dtype: str, field: str) -> ElementType:
    if dtype not in DTYPES:
        fail(f"{field}.dtype", f"expected one of {', '.join(DTYPES)}", dtype)
    return DTYPES[dtype]


def _dump_scalar(value: ScalarValue, field: str) -> bytes:
    """Encode a number of metadata; raise OinfError if its type cannot hold it."""
    dtype, number = DTYPES[value.dtype], value.value
    if dtype.kind == "bitset":
        fail(f"{field}.dtype", "expected a type of numbers (bits are a Bitset)", value.dtype)
    if type(number) not in (bool, int, float):
        fail(field, "expected a bool, an int or a float", number)
    if dtype.kind == "float":
        try:
            wide = np.array([number], np.float64)
            with np.errstate(over="ignore"):
                single = wide.astype(np.float32)
        except OverflowError:
            fail(field, f"expected a number of {value.dtype}", number)
        array = from_float32(value.dtype, single) if value.dtype in _SMALL_FLOATS else wide
        return encoded(value.dtype, array.astype(dtype.storage, copy=False), field)
    if type(number) is float or not dtype.low <= number <= dtype.high:
        fail(field, f"expected {dtype.low} to {dtype.high} of {value.dtype}", number)
    return encoded(value.dtype, np.array([number], dtype.storage), field)


def _pad(data: bytes) -> bytes:
    return data.ljust(padded(len(data)), b"\0")


def parse_quantization(data: np.ndarray, shape: tuple[int, ...], field: str) -> Quantization:
    """Decode the quantisation info of a tensor of this shape.

    Raises
    ------
    OinfError
        If a field breaks a rule of the format; the message names it.
    """
    scheme, scale_mode, zero_mode, reserved, *rest = QUANTIZATION.unpack_from(data.data)
    scale_axis, scale_count, zero_axis, zero_count = rest
    if scheme not in (_SYMMETRIC, _ASYMMETRIC):
        fail(f"{field}.scheme", "expected 1 (symmetric) or 2 (asymmetric)", scheme)
    if scale_mode not in (_PER_TENSOR, _PER_CHANNEL):
        fail(f"{field}.scale_mode", "expected 1 (per tensor) or 2 (per channel)", scale_mode)
    if reserved:
        fail(f"{field}.reserved", "expected 0", reserved)
    _check_channels(scale_mode, scale_axis, scale_count, shape, f"{field}.scale")
    allowed = (_NONE,) if scheme == _SYMMETRIC else (_NONE, scale_mode)
    if zero_mode not in allowed:
        expected = " or ".join(map(str, allowed))
        fail(f"{field}.zp_mode", f"expected {expected} in this scheme and mode", zero_mode)
    wanted = (scale_axis, scale_count) if zero_mode else (0, 0)
    if zero_axis != wanted[0]:
        fail(f"{field}.zp_axis", f"expected {wanted[0]}", zero_axis)
    if zero_count != wanted[1]:
        fail(f"{field}.zp_count", f"expected {wanted[1]}", zero_count)
    end = QUANTIZATION.size + 4 * scale_count
    taken = padded(end + 4 * zero_count)
    if taken != data.size:
        fail(f"{field}.nbytes", f"expected {taken} bytes for the counts", data.size)
    scales = decoded("f32", data[QUANTIZATION.size : end], (scale_count,), field)
    zeros = None
    if zero_mode:
        zeros = decoded("i32", data[end : end + 4 * zero_count], (zero_count,), field)
    axis = scale_axis if scale_mode == _PER_CHANNEL else None
    return Quantization(scales, zeros, axis, scheme == _SYMMETRIC)


def _check_channels(mode: int, axis: int, count: int, shape: tuple[int, ...], field: str) -> None:
    if mode == _PER_TENSOR:
        if axis:
            fail(f"{field}_axis", "expected 0 for a quantization per tensor", axis)
        if count != 1:
            fail(f"{field}_count", "expected 1 for a quantization per tensor", count)
        return
    if axis >= len(shape):
        fail(f"{field}_axis", f"expected less than the tensor's {len(shape)} dims", axis)
    if count != shape[axis]:
        fail(f"{field}_count", f"expected {shape[axis]}, the tensor's dim {axis}", count)


def dump_quantization(quant: Quantization, shape: tuple[int, ...], field: str) -> bytes:
    """Encode the quantisation info of a tensor of this shape.

    Raises
    ------
    OinfError
        If the info breaks a rule of the format.
    """
    scales = np.asarray(quant.scales, order="C")
    zeros = quant.zero_points
    if scales.ndim != 1 or scales.dtype != np.float32:
        fail(f"{field}.scales", "expected float32 of one dim", f"{scales.dtype}{scales.shape}")
    if zeros is not None and (zeros.shape != scales.shape or zeros.dtype != np.int32):
        what = f"expected int32{scales.shape}"
        fail(f"{field}.zero_points", what, f"{zeros.dtype}{zeros.shape}")
    mode = _PER_TENSOR if quant.axis is None else _PER_CHANNEL
    if quant.axis is not None and not 0 <= quant.axis < len(shape):
        fail(f"{field}.axis", f"expected 0 to {len(shape) - 1}", quant.axis)
    where = (quant.axis or 0, scales.size)
    head = QUANTIZATION.pack(
        *(_SYMMETRIC if quant.symmetric else _ASYMMETRIC, mode),
        *(_NONE if zeros is None else mode, 0),
        *where,
        *((0, 0) if zeros is None else where),
    )
    data = _pad(
        head
        + encoded("f32", scales, field)
        + (b"" if zeros is None else encoded("i32", zeros, field))
    )
    parse_quantization(np.frombuffer(data, np.uint8), shape, field)
    return data
