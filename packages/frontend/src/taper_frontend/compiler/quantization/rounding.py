"""Choose integers and scales for a matrix.

Both ways that are searched, symmetric and with zero points, shrink the range that the largest
magnitudes need by some factors and take the one with the least squared error for each group. A
group of few bits loses more by coarse steps than by clipping its one largest number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_frontend.errors import ExportError
from taper_runtime.base.dtypes import cast
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
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
    """

    q: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None
    error: float


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
    group = scheme.group or max(rows, 1)
    if rows % group:
        raise ExportError(
            f"weight {name!r}: expected groups that divide its {rows} rows, got groups of {group}; "
            f"choose another scheme for it, as in layers={{{name!r}: 'int8'}}"
        )
    q = np.empty((rows, columns), np.int8)
    scales = np.empty((rows // group, columns), np.float32)
    zeros = np.zeros((rows // group, columns), np.int8) if scheme.zeros else None
    lost = total = 0.0
    step = max(1, _CHUNK // max(rows, 1))
    for start in range(0, columns, step):
        at = np.s_[:, start : start + step]
        blocks = np.asarray(matrix[at], np.float32).reshape(rows // group, group, -1)
        if not np.isfinite(blocks).all():
            raise ExportError(f"weight {name!r}: expected finite numbers, got NaN or infinity")
        levels, scale, zero = _round(blocks, scheme, search)
        if not np.isfinite(scale).all():
            raise ExportError(
                f"weight {name!r}: expected scales that {scheme.scales} holds, got numbers of up "
                f"to {np.abs(blocks).max():g}; choose float32 scales"
            )
        decoded = (levels - zero) * scale
        lost += float(np.sum(np.square(decoded - blocks), dtype=np.float64))
        total += float(np.sum(np.square(blocks), dtype=np.float64))
        q[at] = levels.reshape(rows, -1)
        scales[at] = scale[:, 0]
        if zeros is not None:
            zeros[at] = zero[:, 0]
    error = (lost / total) ** 0.5 if total else 0.0
    return Rounded(q, cast(scales, scheme.scales), zeros, error)


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
    if scheme.zeros:
        scale = (high - low) / np.float32(scheme.most - scheme.least)
    else:
        scale = np.maximum(high, -low) / np.float32(scheme.most)
    with np.errstate(over="ignore"):
        scale = cast(cast(scale, scheme.scales), "float32")
    scale = np.where(scale > 0, scale, np.float32(1))  # of zeros, or of numbers that are almost 0
    if not scheme.zeros:
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
