"""What OpenInfer's elementwise ops compute, in numpy.

A function takes arrays as values are computed with, all settings of the call, and the element type
that it computes in. Its result has the type that it computes in, or that of the op's result;
:mod:`taper_openinfer.ops.evaluate` rounds and wraps it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taper_openinfer.dtypes import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Arrays = Sequence[np.ndarray]
    Settings = Mapping[str, Any]
    Function = Callable[[Arrays, Settings, str], Any]


def _plain(function: Callable[..., Any]) -> Function:
    """A numpy function of the inputs alone."""
    return lambda arrays, settings, dtype: function(*arrays)


def _masked(quotient: Any, divisor: np.ndarray, settings: Settings, rule: Any) -> Any:
    """Put the mask, or what the rule says, where the divisor is 0."""
    mask = settings["div_by_zero_mask"]
    value = rule if mask is None else mask
    is_zero = divisor == 0
    return np.where(is_zero, quotient.dtype.type(value), quotient) if is_zero.any() else quotient


def _div(arrays: Arrays, settings: Settings, dtype: str) -> Any:
    a, b = arrays
    if a.dtype.kind == "f":
        return _masked(np.divide(a, b), b, settings, np.nan)
    quotient = np.floor_divide(a, b)
    if a.dtype.kind == "i":  # rounded down, one too low where it is negative and not exact
        quotient = quotient + ((quotient < 0) & (quotient * b != a)).astype(a.dtype)
    return _masked(quotient, b, settings, 0)


def _floor_div(arrays: Arrays, settings: Settings, dtype: str) -> Any:
    return _masked(np.floor_divide(*arrays), arrays[1], settings, 0)


def _recip(arrays: Arrays, settings: Settings, dtype: str) -> Any:
    x = arrays[0]
    return _masked(np.divide(x.dtype.type(1), x), x, settings, np.nan)


def _fma(arrays: Arrays, settings: Settings, dtype: str) -> Any:
    a, b, c = arrays
    return a * b + c


def _relu(arrays: Arrays, settings: Settings, dtype: str) -> Any:
    x, alpha = arrays[0], settings["alpha"]
    if dtype == "bool":
        return np.minimum(x, bool(settings["clamp_max"]))
    if alpha == 0:
        x = np.maximum(x, x.dtype.type(0))  # of NaN that
    else:
        x = np.where(x < 0, np.multiply(x, x.dtype.type(alpha)), x)
    return _at_most(x, settings["clamp_max"])


def _at_most(x: Any, bound: float) -> Any:
    return x if bound == np.inf else np.minimum(x, x.dtype.type(bound))


def _at_least(x: Any, bound: float) -> Any:
    return x if bound == -np.inf else np.maximum(x, x.dtype.type(bound))


def _clamp(arrays: Arrays, settings: Settings, dtype: str) -> Any:
    x = arrays[0]
    clamped = _at_most(_at_least(x, settings["min"]), settings["max"])
    return x.copy() if clamped is x else clamped


def round_half_away(x: np.ndarray) -> Any:
    """Round to the nearest integer, halves away from zero; to -0 from above -0.5 to -0."""
    whole = np.trunc(x)
    return whole + np.copysign((abs(x - whole) >= 0.5).astype(x.dtype), x)


def _sign(arrays: Arrays, settings: Settings, dtype: str) -> Any:
    x = arrays[0]
    return (x > 0).astype(np.int8) - (x < 0).astype(np.int8)


def _shift(function: Callable[..., Any]) -> Function:
    # numpy shifts all bits out where the count is that of an element or more; 64 is in each type.
    return lambda arrays, settings, dtype: function(
        arrays[0], arrays[0].dtype.type(min(settings["bits"], 64))
    )


_ONES = np.array([bin(byte).count("1") for byte in range(256)], np.uint8)


def _popcount(arrays: Arrays, settings: Settings, dtype: str) -> Any:
    x = np.asarray(arrays[0], order="C")
    if DTYPES[dtype].is_packed:
        x = x & x.dtype.type((1 << DTYPES[dtype].bits) - 1)
    octets = x.reshape(*x.shape, 1).view(np.uint8)
    return _ONES[octets].sum(axis=-1, dtype=np.uint8)


def _filter(arrays: Arrays, settings: Settings, dtype: str) -> Any:
    a, b, condition = arrays
    return np.where(condition != 0, a, b)


def _fill(arrays: Arrays, settings: Settings, dtype: str) -> Any:
    x = arrays[0]
    return np.full(x.shape, settings["value"], x.dtype)


ELEMENTWISE: dict[str, Function] = {
    "add": _plain(np.add),
    "mul": _plain(np.multiply),
    "sub": _plain(np.subtract),
    "div": _div,
    "floor_div": _floor_div,
    "rem": _plain(np.fmod),
    "fma": _fma,
    "recip": _recip,
    "neg": _plain(np.negative),
    "abs": _plain(np.abs),
    "relu": _relu,
    "floor": _plain(np.floor),
    "ceil": _plain(np.ceil),
    "round": _plain(round_half_away),
    "trunc": _plain(np.trunc),
    "clamp": _clamp,
    "min": _plain(np.minimum),
    "max": _plain(np.maximum),
    "sign": _sign,
    "and": _plain(np.bitwise_and),
    "or": _plain(np.bitwise_or),
    "xor": _plain(np.bitwise_xor),
    "not": _plain(np.invert),
    "shl": _shift(np.left_shift),
    "shr": _shift(np.right_shift),
    "popcount": _popcount,
    "eq": _plain(np.equal),
    "ne": _plain(np.not_equal),
    "lt": _plain(np.less),
    "le": _plain(np.less_equal),
    "gt": _plain(np.greater),
    "ge": _plain(np.greater_equal),
    "is_nan": _plain(np.isnan),
    "is_inf": _plain(np.isinf),
    "is_neg": lambda arrays, settings, dtype: arrays[0] < 0,
    "filter": _filter,
    "fill": _fill,
}
