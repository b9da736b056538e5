"""Measure the distance between two results."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.records import NamedTuple
from taper_runtime.ops.convert import from_bfloat16

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from taper_runtime.ops.opdef import TensorType
    from taper_runtime.plan.plan import TensorSpec

#: The largest relative L2 error of a float output. Errors of float32 sums in another order reach
#: 1e-6 for one layer and grow with depth; a wrong kernel or pass has errors that are much larger.
TOLERANCE = 1e-4

#: The same for plans with 16-bit floats: a few units in the last place, because sums are rounded at
#: other points.
_COARSE = {"float16": 1e-2, "bfloat16": 8e-2}


#: How many elements are compared at a time: results are large, and float64 takes twice their bytes.
_BLOCK = 1 << 15

#: A sum of squares in float32 is accurate enough between these.
_SAFE = 1e-20, 1e35


class Difference(NamedTuple):
    """The distance of a result from the expected one; infinite if they cannot be compared.

    Attributes
    ----------
    largest : float
        The largest absolute difference.
    relative : float
        The L2 norm of the difference, relative to that of the expected result; absolute if that is
        0.
    """

    largest: float
    relative: float


def tolerance(types: Iterable[TensorType | TensorSpec]) -> float:
    """Return the largest acceptable relative error of results that are computed from tensors."""
    dtypes = {each.dtype for each in types}
    return max([TOLERANCE, *(_COARSE[dtype] for dtype in dtypes & _COARSE.keys())])


def difference(got: np.ndarray, want: np.ndarray) -> Difference:
    """Compare two results.

    Parameters
    ----------
    got, want : numpy.ndarray
        The two results. Floats may have different widths; bfloat16 is passed as its bits in uint16.

    Returns
    -------
    Difference
        Infinite if shapes differ, an integer or bool differs, or NaNs and infinities are at
        different positions.
    """
    if got.shape != want.shape:
        return Difference(np.inf, np.inf)
    got, want = readable(got), readable(want)
    if want.dtype.kind != "f" or got.dtype.kind != "f":
        return Difference(0.0, 0.0) if np.array_equal(got, want) else Difference(np.inf, np.inf)
    parts = [_part(a, b) for a, b in _blocks(got, want)]
    if any(part is None for part in parts):
        return Difference(np.inf, np.inf)
    largest, distances, norms = zip(*parts, strict=True) if parts else ((0.0,), (0.0,), (0.0,))
    distance, norm = math.hypot(*distances), math.hypot(*norms)
    return Difference(max(largest), distance / norm if norm else distance)


def _blocks(got: np.ndarray, want: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield pieces of two arrays of one shape as vectors, which are copies if necessary."""
    if not want.size:
        return
    axis = int(np.argmax(want.shape)) if want.ndim else 0
    got, want = np.atleast_1d(got), np.atleast_1d(want)
    step = max(1, _BLOCK * want.shape[axis] // want.size)
    for start in range(0, want.shape[axis], step):
        piece = (*[slice(None)] * axis, slice(start, start + step))
        yield got[piece].reshape(-1), want[piece].reshape(-1)


def _part(a: np.ndarray, b: np.ndarray) -> tuple[float, float, float] | None:
    """Return the largest difference, its norm and that of ``b``; None if not comparable."""
    if a.dtype == b.dtype == np.float32:
        with np.errstate(all="ignore"):
            apart = a - b
            squares = float(apart @ apart), float(b @ b)
        if _SAFE[0] < squares[1] < _SAFE[1] and squares[0] < _SAFE[1]:  # no NaN, no overflow
            largest = max(float(apart.max()), -float(apart.min()))
            return largest, math.sqrt(squares[0]), math.sqrt(squares[1])
    finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return None
    b = b[finite].astype(np.float64)
    apart = np.abs(a[finite] - b)
    return float(apart.max(initial=0.0)), float(np.linalg.norm(apart)), float(np.linalg.norm(b))


def describe(got: np.ndarray, want: np.ndarray, limit: float) -> str:
    """Describe a wrong result, with the expected and the actual values.

    Parameters
    ----------
    got, want : numpy.ndarray
    limit : float
        The largest acceptable relative error.
    """
    if got.shape != want.shape:
        return f"expected shape {want.shape}, got {got.shape}"
    got, want = readable(got), readable(want)
    if want.dtype.kind != "f" or got.dtype.kind != "f":
        return (
            "expected the same numbers, except for the order of equal ones and its effects, got "
            f"{np.count_nonzero(got != want)} different ones of {want.size}"
        )
    error = difference(got, want)
    if math.isinf(error.relative):
        return "expected NaNs and infinities at the same indices, got them at others"
    return (
        f"expected a relative error of at most {limit:g}, got {error.relative:.3g} "
        f"(largest difference {error.largest:.3g})"
    )


def power_of_ten(error: float) -> float:
    """Return the next power of ten, or 0; it hardly depends on how a sum was split."""
    return float(f"1e{math.ceil(math.log10(error))}") if error else 0.0


def readable(array: np.ndarray) -> np.ndarray:
    """Convert bfloat16 to float32, and complex numbers to pairs; others are returned unchanged."""
    if array.dtype.kind == "c":
        return np.stack([array.real, array.imag], -1)
    return from_bfloat16(array) if array.dtype == DTYPES["bfloat16"].storage else array
