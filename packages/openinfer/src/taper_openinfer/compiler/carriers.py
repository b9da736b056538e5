"""Carry element types that plans lack in types that they have: u16 in int32, i4 in int8.

The carrier holds the same number. Arithmetic on such elements is done in a wider integer type and
wrapped to their width at the end. The low bits of sums and products do not depend on the width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_openinfer.compiler.refusal import CannotLower
from taper_openinfer.dtypes import DTYPES, taper_name, to_float32
from taper_runtime.base.dtypes import DTYPES as TAPER_DTYPES

if TYPE_CHECKING:
    from taper_openinfer.compiler.scope import Scope

#: Types packed in a file are listed by kind, the others by name.
_CARRIERS = {
    "packed_signed": "int8",
    "packed_unsigned": "uint8",
    "bitset": "uint8",
    "u16": "int32",
    "u32": "int64",
    "u64": "int64",
    "f8": "float32",
}


def is_carried(dtype: str) -> bool:
    """Return whether plans lack an element type of OpenInfer."""
    return taper_name(dtype) is None


def carrier(dtype: str) -> str:
    """Return Taper's dtype that holds every value of an element type; of u64, those below 2**63."""
    return taper_name(dtype) or _CARRIERS.get(dtype) or _CARRIERS[DTYPES[dtype].kind]


def carried(dtype: str, array: np.ndarray) -> np.ndarray:
    """Convert elements from storage form to the carrier's form.

    Raises
    ------
    CannotLower
        If an element of u64 is 2**63 or more.
    """
    if not is_carried(dtype):
        return array
    if dtype == "f8":
        return to_float32(dtype, array)
    if dtype == "u64" and array.max(initial=0) > np.iinfo("i8").max:
        raise CannotLower(
            f"expected u64 integers of at most 2**63 - 1 in a plan, got {array.max()}"
        )
    return array.astype(TAPER_DTYPES[carrier(dtype)].storage)


def computed(dtype: str, result: str) -> str:
    """Return the element type in which an op on carried elements is computed."""
    if dtype == "f8":
        return "f32"
    is_long = dtype in ("u32", "u64") or result in ("i64", "u32", "u64")
    return "i64" if is_long else "i32"


def wrapped(scope: Scope, tensor: str, dtype: str) -> str:
    """Wrap integers to the width of a carried element type; the result has the carrier's dtype."""
    row, wide = DTYPES[dtype], scope.type(tensor).dtype
    free = 8 * TAPER_DTYPES[wide].size - row.bits
    if row.kind == "packed_signed":
        by = scope.constant(free, wide, "bits")
        tensor = scope.emit("RIGHT_SHIFT", [scope.emit("LEFT_SHIFT", [tensor, by]), by])
    elif free:
        tensor = scope.binary("BITWISE_AND", tensor, (1 << row.bits) - 1)
    return scope.cast(tensor, carrier(dtype))
