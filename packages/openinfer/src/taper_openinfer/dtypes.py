"""Define the element types of OpenInfer's files and programs, and how files store elements.

In memory an array has one numpy element per element. Integers narrower than a byte are held as int8
or uint8, and ``f8`` and ``bf16`` as their bits. In files, narrow integers are packed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from taper_openinfer.errors import OpenInferError
from taper_runtime.base.records import NamedTuple
from taper_runtime.ops.convert import from_bfloat16, to_bfloat16

if TYPE_CHECKING:
    from collections.abc import Sequence


class ElementType(NamedTuple):
    """One element type.

    Attributes
    ----------
    name : str
        As programs spell it: ``"f32"``.
    code : int
        Its number in a file.
    storage : numpy.dtype
        The numpy type of an array in memory.
    bits : int
        The size of an element in a file.
    kind : str
        ``"float"``, ``"signed"``, ``"unsigned"``, ``"bool"``, ``"bitset"``, ``"packed_signed"`` or
        ``"packed_unsigned"``. Packed types share bytes in a file.
    low, high : int or float
        The least and the largest finite value.
    """

    name: str
    code: int
    storage: np.dtype
    bits: int
    kind: str
    low: int | float
    high: int | float

    @property
    def json_name(self) -> str:
        """Return the name that graphs in JSON use: ``"F32"``, ``"Bool"``."""
        return self.name.capitalize() if self.kind in ("bool", "bitset") else self.name.upper()

    @property
    def is_packed(self) -> bool:
        """Return whether elements share bytes in a file."""
        return self.bits < 8


def _integer(name: str, code: int) -> ElementType:
    """Return the row of an integer type by its name: ``i8``, ``u64``, ``i4``."""
    bits, signed = int(name[1:]), name[0] == "i"
    storage = np.dtype(f"{name[0]}{max(bits, 8) // 8}")
    kind = "signed" if signed else "unsigned"
    low = -(1 << bits - 1) if signed else 0
    high = low + (1 << bits) - 1
    return ElementType(
        name, code, storage, bits, kind if bits >= 8 else f"packed_{kind}", low, high
    )


def _float(name: str, code: int, storage: str, high: float) -> ElementType:
    dtype = np.dtype(storage)
    return ElementType(name, code, dtype, dtype.itemsize * 8, "float", -high, high)


_BF16_HIGH = float.fromhex("0x1.fep127")
_F8_HIGH = 57344.0  # 1.75 * 2 ** 15

_ROWS = (
    *(_integer(name, code) for code, name in enumerate(("i8", "i16", "i32", "i64"), 1)),
    *(_integer(name, code) for code, name in enumerate(("u8", "u16", "u32", "u64"), 5)),
    _float("f16", 9, "f2", float(np.finfo("f2").max)),
    _float("f32", 10, "f4", float(np.finfo("f4").max)),
    _float("f64", 11, "f8", float(np.finfo("f8").max)),
    ElementType("bool", 12, np.dtype("?"), 8, "bool", 0, 1),
    ElementType("bitset", 13, np.dtype("u1"), 8, "bitset", 0, 255),
    _float("bf16", 16, "u2", _BF16_HIGH),
    _float("f8", 17, "u1", _F8_HIGH),
    *(_integer(name, code) for code, name in enumerate(("i4", "i2", "i1"), 18)),
    *(_integer(name, code) for code, name in enumerate(("u4", "u2", "u1"), 21)),
    ElementType("t2", 24, np.dtype("i1"), 2, "packed_signed", -1, 1),
    ElementType("t1", 25, np.dtype("i1"), 1, "packed_signed", -1, 1),
)

#: Element types by name. A file knows two more types, of metadata alone: :data:`STRING` and
#: :data:`NDARRAY`.
DTYPES: dict[str, ElementType] = {row.name: row for row in _ROWS}

BY_CODE: dict[int, ElementType] = {row.code: row for row in _ROWS}
BY_JSON_NAME: dict[str, ElementType] = {row.json_name: row for row in _ROWS}

#: Types of metadata that are not element types, by their numbers.
STRING, NDARRAY = 14, 15

_TAPER_NAMES = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u8": "uint8",
    "bool": "bool",
}
_FROM_TAPER = {taper: name for name, taper in _TAPER_NAMES.items()}


def taper_name(dtype: str) -> str | None:
    """Return the name of an element type in Taper's plans, or None if plans lack it."""
    return _TAPER_NAMES.get(dtype)


def from_taper_name(dtype: str) -> str:
    """Return the element type that has this name in Taper's plans."""
    return _FROM_TAPER[dtype]


def of_array(array: np.ndarray) -> str:
    """Return the element type of a numpy array: uint16 is u16, float32 is f32.

    Raises
    ------
    OpenInferError
        If no element type has this numpy type.
    """
    for row in _ROWS:
        if row.storage == array.dtype.newbyteorder("=") and row.name not in ("bf16", "f8"):
            return row.name
    raise OpenInferError(f"expected numbers of a type in {', '.join(DTYPES)}, got {array.dtype}")


def stored_bytes(dtype: str, count: int) -> int:
    """Return the size in bytes of ``count`` elements in a file."""
    return -(-count * DTYPES[dtype].bits // 8)


def decode(dtype: str, data: bytes | np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Return the array that the bytes of a file represent.

    Parameters
    ----------
    dtype : str
    data : bytes or numpy.ndarray of uint8
        Little-endian, row-major. In a type of w < 8 bits, element k has the w bits from bit k * w
        on, counted from the lowest bit of the first byte; unused bits are ignored.
    shape : sequence of int

    Returns
    -------
    numpy.ndarray
        An array of the type's ``storage``, read-only; a view of ``data`` unless the type is packed.

    Raises
    ------
    OpenInferError
        If the number of bytes is wrong, or some are not a value of the type: a bool other than 0
        and 1, or a t2 other than -1, 0 and 1.
    """
    row, count = DTYPES[dtype], math.prod(shape)
    raw = np.frombuffer(data, np.uint8)
    if raw.size != stored_bytes(dtype, count):
        raise OpenInferError(
            f"expected {stored_bytes(dtype, count)} bytes of {dtype}, got {raw.size}"
        )
    if row.is_packed:
        array = _TABLES[dtype][raw].reshape(-1)[:count]
        if dtype == "t2":
            _check_values(dtype, array)
    else:
        if dtype == "bool" and raw.max(initial=0) > 1:
            raise OpenInferError(f"expected only bytes 0 and 1 of bool, got {raw.max()}")
        array = raw.view(row.storage.newbyteorder("<")).astype(row.storage, copy=False)
    array = array.reshape(tuple(shape))
    array.flags.writeable = False
    return array


def encode(dtype: str, array: np.ndarray) -> bytes:
    """Return the bytes of an array in a file; the inverse of :func:`decode`.

    Raises
    ------
    OpenInferError
        If the array is not of the type's ``storage``, or has values that the type lacks.
    """
    row = DTYPES[dtype]
    check_array(dtype, array)
    flat = np.asarray(array, order="C").reshape(-1)
    if not row.is_packed:
        return flat.astype(row.storage.newbyteorder("<"), copy=False).tobytes()
    per_byte = 8 // row.bits
    # t1 stores -1 as 0 and 1 as 1, the others their lowest bits.
    bits = (flat > 0 if dtype == "t1" else flat).astype(np.uint8) & ((1 << row.bits) - 1)
    bits = np.pad(bits, (0, -bits.size % per_byte)).reshape(-1, per_byte)
    shifts = np.arange(per_byte, dtype=np.uint8) * row.bits
    packed: np.ndarray = np.bitwise_or.reduce(bits << shifts, axis=1)
    return packed.tobytes()


def check_array(dtype: str, array: np.ndarray) -> None:
    """Check that an array has the type's ``storage`` and no values that the type lacks.

    Raises
    ------
    OpenInferError
        If it has another dtype or an invalid value; the message names the first one.
    """
    row = DTYPES[dtype]
    if array.dtype is not row.storage and array.dtype.newbyteorder("=") != row.storage:
        raise OpenInferError(f"expected {row.storage} elements of {dtype}, got {array.dtype}")
    if row.is_packed:
        _check_values(dtype, array)


def _check_values(dtype: str, array: np.ndarray) -> None:
    row = DTYPES[dtype]
    wrong = (array < row.low) | (array > row.high)
    if dtype == "t1":
        wrong |= array == 0
    if wrong.any():
        values = "-1 and 1" if dtype == "t1" else f"{row.low} to {row.high}"
        raise OpenInferError(f"expected {values} of {dtype}, got {array[wrong].flat[0]}")


def to_float32(dtype: str, array: np.ndarray) -> np.ndarray:
    """Convert f8, bf16 or f16 elements to float32, exactly."""
    if dtype == "bf16":
        return from_bfloat16(array)
    if dtype == "f8":  # e5m2 is the upper half of a float16
        return np.asarray(np.left_shift(array, 8, dtype=np.uint16)).view(np.float16).astype("f4")
    return array.astype(np.float32)


def from_float32(dtype: str, array: np.ndarray) -> np.ndarray:
    """Round float32 values to f8, bf16 or f16.

    NaN stays NaN, and values that are too large become infinite. Ties round to even in bf16 and
    f16, and away from zero in f8, whose NaN is 0x7D.
    """
    if dtype == "bf16":
        return to_bfloat16(array)
    if dtype == "f8":
        return _to_f8(np.asarray(array, np.float32))
    with np.errstate(over="ignore"):
        return array.astype(np.float16)


def _to_f8(array: np.ndarray) -> np.ndarray:
    """Round to e5m2: 5 bits of exponent with a bias of 15, 2 of mantissa."""
    bits = np.asarray(array, order="C").view(np.uint32)
    magnitude = bits & 0x7FFFFFFF
    # A float32 has 21 bits of mantissa more, and a bias that is larger by 112.
    normal = (np.maximum(magnitude, 113 << 23) - (112 << 23) + (1 << 20)) >> 21
    with np.errstate(invalid="ignore", over="ignore"):
        small = np.floor(np.minimum(abs(array), 1).astype(np.float64) * 2**16 + 0.5)
        small = np.where(np.isnan(array), 0, small)
    rounded = np.where(magnitude < 113 << 23, small.astype(np.uint32), np.minimum(normal, 0x7C))
    signed = rounded | (bits >> 24 & 0x80)
    return np.where(np.isnan(array), 0x7D, signed).astype(np.uint8)


def _table(row: ElementType) -> np.ndarray:
    """Return the elements that each byte holds, shape (256, 8 // bits)."""
    shifts = np.arange(8 // row.bits) * row.bits
    fields = np.arange(256)[:, None] >> shifts & ((1 << row.bits) - 1)
    if row.name == "t1":
        fields = 2 * fields - 1
    elif row.kind == "packed_signed":
        fields = np.where(fields >> row.bits - 1, fields - (1 << row.bits), fields)
    return fields.astype(row.storage)


_TABLES = {row.name: _table(row) for row in _ROWS if row.is_packed}
