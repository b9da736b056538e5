"""Choose integers and scales for a matrix.

Scales alone and scales with zero points are searched for here, those with offsets in
:mod:`.factored`. The ways of this file shrink the range that the largest
magnitudes need by some factors and take the one with the least squared error for each group. A
group of few bits loses more by coarse steps than by clipping its one largest number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_frontend.compiler.quantization.factored import FORMAT, ROWS, factored
from taper_frontend.errors import ExportError
from taper_runtime.base.dtypes import cast
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.compiler.quantization.factored import Factored
    from taper_frontend.compiler.quantization.schemes import Scheme

#: Factors of the full range, for 8 bits and for fewer.
_FACTORS = {8: (1.0, 0.95, 0.9), 0: tuple(np.linspace(1.0, 0.5, 21))}

_CHUNK = 1 << 20  # elements that are rounded at a time


class Rounded(NamedTuple):
    """A matrix ``[K, N]`` as integers.

    Attributes
    ----------
    q : numpy.ndarray
        int8 ``[K, N]``.
    scales : numpy.ndarray
        ``[K/group, N]``, of the storage type of the scheme's dtype.
    zeros : numpy.ndarray or None
        int8 ``[K/group, N]``.
    error : float
        The relative error ``|w - decoded| / |w|``, by sums of squares; 0 for zeros.
    offsets : numpy.ndarray or None
        As the scales; both are ``[K/256, N]`` then, and have factors.
    factors, offset_factors : numpy.ndarray or None
        uint8 ``[K/32, N]``.
    """

    q: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None
    error: float
    offsets: np.ndarray | None = None
    factors: np.ndarray | None = None
    offset_factors: np.ndarray | None = None


def round_matrix(
    matrix: np.ndarray, scheme: Scheme, *, search: bool = True, name: str = "weight"
) -> Rounded:
    """Round a matrix to integers with scales.

    Parameters
    ----------
    matrix : numpy.ndarray
        float32 ``[K, N]``; a scale is for the rows of a group in one column.
    scheme : Scheme
        One of integers.
    search : bool
        Whether to search for the scales with the least squared error.
    name : str
        The weight's name in errors.

    Raises
    ------
    ExportError
        If a number is not finite, the group does not divide K, or a scale does not fit its dtype.
    """
    rows, columns = matrix.shape
    has_offsets = scheme.shift == "offsets"
    group = ROWS if has_offsets else scheme.group or max(rows, 1)
    if rows % group:
        raise ExportError(
            f"weight {name!r}: expected groups that divide its {rows} rows, got groups of {group}; "
            f"choose another scheme for it, as in layers={{{name!r}: 'int8'}}"
        )
    parts: list[Rounded] = []
    lost = total = 0.0
    step = max(1, _CHUNK // max(rows, 1))
    for start in range(0, max(columns, 1), step):
        chunk = np.asarray(matrix[:, start : start + step], np.float32)
        if not np.isfinite(chunk).all():
            raise ExportError(f"weight {name!r}: expected finite numbers, got NaN or infinity")
        with np.errstate(invalid="ignore", over="ignore"):  # scales that their dtype does not hold
            part, numbers = (_with_offsets if has_offsets else _with_zeros)(chunk, scheme, search)
        beside = [each for each in (part.scales, part.offsets) if each is not None]
        if not all(np.isfinite(cast(each, "float32")).all() for each in beside):
            raise ExportError(
                f"weight {name!r}: expected scales that {scheme.scales} holds, got numbers of up "
                f"to {np.abs(chunk).max():g}; choose float32 scales"
            )
        lost += float(np.sum(np.square(numbers - chunk), dtype=np.float64))
        total += float(np.sum(np.square(chunk), dtype=np.float64))
        parts.append(part)
    return joined(parts, 1, (lost / total) ** 0.5 if total else 0.0)


def joined(parts: Sequence[Rounded], axis: int, error: float) -> Rounded:
    """Return parts of a matrix as one."""
    first = parts[0]._asdict()
    whole = {
        name: np.concatenate([getattr(part, name) for part in parts], axis)
        for name, array in first.items()
        if isinstance(array, np.ndarray)
    }
    return Rounded(**{**first, **whole, "error": error})


def _with_zeros(chunk: np.ndarray, scheme: Scheme, search: bool) -> tuple[Rounded, np.ndarray]:
    """Round columns with scales and perhaps zero points; return their numbers, too."""
    rows, columns = chunk.shape
    group = scheme.group or max(rows, 1)
    levels, scale, zero = _round(chunk.reshape(rows // group, group, columns), scheme, search)
    zeros = zero[:, 0].astype(np.int8) if scheme.shift else None
    q = levels.reshape(chunk.shape).astype(np.int8)
    numbers = np.asarray(((levels - zero) * scale).reshape(chunk.shape))
    return Rounded(q, cast(scale[:, 0], scheme.scales), zeros, 0.0), numbers


def _with_offsets(chunk: np.ndarray, scheme: Scheme, search: bool) -> tuple[Rounded, np.ndarray]:
    """Round columns with factors of scales and offsets; return their numbers, too."""
    found = factored(chunk, search=search)
    return as_rounded(found), found.numbers.reshape(chunk.shape)


def as_rounded(found: Factored) -> Rounded:
    """Return what is stored of levels with factors."""
    columns = found.levels.shape[-1]
    levels, scales, offsets, factors, offset_factors = (x.reshape(-1, columns) for x in found)
    return Rounded(
        levels.astype(np.int8),
        cast(scales, FORMAT.scales),
        None,
        0.0,
        cast(offsets, FORMAT.scales),
        factors.astype(np.uint8),
        offset_factors.astype(np.uint8),
    )


def parameters_of(blocks: np.ndarray, scheme: Scheme) -> tuple[np.ndarray, np.ndarray]:
    """Return the scales and zero points ``[B, 1, N]`` with the least error for ``[B, K, N]``."""
    return _round(blocks, scheme, search=True)[1:]


def _round(
    blocks: np.ndarray, scheme: Scheme, search: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Round blocks ``[B, group, N]``; return levels, and scales and zero points ``[B, 1, N]``."""
    low = np.minimum(blocks.min(1, keepdims=True), 0)
    high = np.maximum(blocks.max(1, keepdims=True), 0)
    best: tuple[np.ndarray, ...] = ()
    least = np.full(low.shape, np.inf, np.float32)
    for factor in _FACTORS.get(scheme.bits, _FACTORS[0]) if search else (1.0,):
        scale, zero = _parameters(low * np.float32(factor), high * np.float32(factor), scheme)
        levels = quantized(blocks, scale, zero, scheme)
        with np.errstate(invalid="ignore", over="ignore"):  # scales that their dtype does not hold
            lost = np.square((levels - zero) * scale - blocks).sum(1, keepdims=True)
        if not best:
            best, least = (levels, scale, zero), lost
            continue
        is_better = lost < least
        least = np.where(is_better, lost, least)
        best = tuple(
            np.where(is_better, new, old)
            for new, old in zip((levels, scale, zero), best, strict=True)
        )
    levels, scale, zero = best
    return levels, scale, zero


def _parameters(low: np.ndarray, high: np.ndarray, scheme: Scheme) -> tuple[np.ndarray, np.ndarray]:
    """Return scales, rounded to their dtype, and zero points for ranges around 0, as float32."""
    if scheme.shift:
        scale = (high - low) / np.float32(scheme.most - scheme.least)
    else:
        scale = np.maximum(high, -low) / np.float32(scheme.most)
    with np.errstate(over="ignore"):
        scale = cast(cast(scale, scheme.scales), "float32")
    scale = np.where(scale > 0, scale, np.float32(1))  # of zeros, or of numbers that are almost 0
    if not scheme.shift:
        return scale, np.zeros_like(scale)
    with np.errstate(invalid="ignore"):
        zero = np.clip(np.rint(scheme.least - low / scale), scheme.least, scheme.most)
    return scale, zero


def quantized(
    blocks: np.ndarray, scale: np.ndarray, zero: np.ndarray, scheme: Scheme
) -> np.ndarray:
    """Return the levels, whole numbers in float32, that are nearest to numbers."""
    levels: np.ndarray = np.clip(np.rint(blocks / scale) + zero, scheme.least, scheme.most)
    return levels


def rounded_to(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return float32 numbers in a 16-bit dtype; those beyond its range become its largest.

    NaN and infinities stay.

    Returns
    -------
    numpy.ndarray
        Of the dtype's storage type.
    """
    if dtype != "float16":
        return cast(array, dtype)
    limit = np.float32(np.finfo(np.float16).max)
    return cast(np.where(np.isfinite(array), np.clip(array, -limit, limit), array), dtype)
