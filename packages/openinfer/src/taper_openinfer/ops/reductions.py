"""What OpenInfer's other ops compute, in numpy: over axes, matrix products, casts.

The functions are as those of :mod:`taper_openinfer.ops.functions`. Floats are summed and
multiplied in float64 and rounded once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_openinfer.dtypes import DTYPES
from taper_openinfer.ops.functions import round_half_away
from taper_openinfer.ops.rules import reduced_axes

if TYPE_CHECKING:
    from collections.abc import Callable

    from taper_openinfer.ops.functions import Arrays, Function, Settings


def _axes(op: str, x: np.ndarray, settings: Settings) -> dict[str, Any]:
    return {"axis": reduced_axes(op, x.ndim, settings), "keepdims": settings["keepdims"]}


def _fold(op: str, function: Callable[..., Any]) -> Function:
    """A sum or a product: integers wrap in their own width."""

    def fold(arrays: Arrays, settings: Settings, dtype: str) -> Any:
        x = arrays[0]
        wide = np.float64 if x.dtype.kind == "f" else x.dtype
        return np.asarray(function(x, dtype=wide, **_axes(op, x, settings)), x.dtype)

    return fold


def _mean(arrays: Arrays, settings: Settings, dtype: str) -> Any:
    x = arrays[0]
    where = _axes("mean_axis", x, settings)
    count = math.prod(x.shape[axis] for axis in where["axis"])
    if x.dtype.kind == "f":
        total = np.sum(x, dtype=np.float64, **where)
        return np.asarray(np.divide(total, np.float64(count)), x.dtype)
    if not count:
        return np.sum(x, dtype=x.dtype, **where)
    wide = np.dtype(np.uint64 if x.dtype.kind == "u" else np.int64)
    # The sum of 64-bit integers may need more bits: quotients and rests are summed apart.
    wholes, rests = np.divmod(x.astype(wide), wide.type(count))
    rest = np.sum(rests, **where)
    mean = np.asarray(np.sum(wholes, **where) + rest // wide.type(count))
    if wide.kind == "i":  # it is rounded down so far
        mean = mean + ((mean < 0) & (rest % wide.type(count) != 0))
    return mean.astype(x.dtype)


def _extreme(op: str, function: Callable[..., Any]) -> Function:
    return lambda arrays, settings, dtype: function(arrays[0], **_axes(op, arrays[0], settings))


def _search(op: str, function: Callable[..., Any]) -> Function:
    def search(arrays: Arrays, settings: Settings, dtype: str) -> Any:
        x = arrays[0]
        (axis,) = reduced_axes(op, x.ndim, settings)
        if settings["select_first"]:
            return np.asarray(function(x, axis=axis, keepdims=settings["keepdims"]), np.int64)
        behind = function(np.flip(x, axis), axis=axis, keepdims=settings["keepdims"])
        return np.asarray(x.shape[axis] - 1 - behind, np.int64)

    return search


def _is_finite(arrays: Arrays, settings: Settings, dtype: str) -> Any:
    return np.isfinite(arrays[0]).all()


def _matmul(arrays: Arrays, settings: Settings, dtype: str) -> Any:
    a, b = arrays
    if a.dtype.kind in "iu" and _is_exact_in_float64(a, b):  # which numpy multiplies much faster
        return (
            np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(np.int64).astype(a.dtype)
        )
    return np.matmul(a, b)


#: Elements from which it pays to look at them all before they are multiplied.
_MANY = 4096


def _is_exact_in_float64(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether a product of integers has many elements and no sum beyond 2 ** 53."""
    if max(a.size, b.size) < _MANY or not min(a.size, b.size):
        return False
    largest = [max(int(x.max()), -int(x.min())) for x in (a, b)]
    sums: int = math.prod(largest) * a.shape[-1]
    return sums <= 2**53


_ROUNDINGS: dict[str, Callable[..., Any]] = {
    "trunc": np.trunc,
    "floor": np.floor,
    "ceil": np.ceil,
    "nearest": round_half_away,
}


def _cast(arrays: Arrays, settings: Settings, dtype: str) -> Any:
    x, target = arrays[0], DTYPES[settings["to"]]
    if target.kind == "float":
        # f8, bf16 and f16 are rounded from float32, as what is computed in it.
        return x.astype(np.float64 if target.name == "f64" else np.float32)
    if x.dtype.kind != "f":
        return x.astype(target.storage)
    whole = _ROUNDINGS[settings["rounding_mode"]](x.astype(np.float64))
    if settings["saturate"]:
        beyond = whole >= float(target.high)  # of 64 bits the power of two behind it
        below = whole < target.low
        inside = np.where(np.isnan(whole) | beyond | below, 0, whole).astype(target.storage)
        inside = np.where(beyond, target.storage.type(target.high), inside)
        return np.where(below, target.storage.type(target.low), inside)
    low = np.fmod(abs(whole), 2.0**64)
    bits = np.where(np.isnan(low), 0, low).astype(np.uint64)
    return np.where(whole < 0, np.negative(bits), bits).astype(target.storage)


OTHERS: dict[str, Function] = {
    "matmul": _matmul,
    "is_finite": _is_finite,
    "sum_axis": _fold("sum_axis", np.sum),
    "mean_axis": _mean,
    "prod_axis": _fold("prod_axis", np.prod),
    "max_axis": _extreme("max_axis", np.max),
    "min_axis": _extreme("min_axis", np.min),
    "argmax_axis": _search("argmax_axis", np.argmax),
    "argmin_axis": _search("argmin_axis", np.argmin),
    "cast": _cast,
}
