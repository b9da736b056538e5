"""How far two results are apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taper_runtime.dtypes import DTYPES
from taper_runtime.ops.convert import from_bfloat16

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Largest relative L2 error of a float output. Float32 sums in another order reach 1e-6 on one
#: layer and grow with depth; a wrong kernel or pass is off by orders of magnitude more.
TOLERANCE = 1e-4

#: The same where a plan holds numbers of fewer bits: a few of their units, for sums rounded at
#: other places.
_COARSE = {"float16": 1e-2, "bfloat16": 8e-2}


class Difference(NamedTuple):
    """How far a result is from the one wanted; infinite where they cannot be compared.

    Attributes
    ----------
    largest : float
        Largest absolute difference.
    relative : float
        L2 norm of the difference, relative to that of the result wanted; absolute where that is 0.
    """

    largest: float
    relative: float


def tolerance(dtypes: Iterable[str]) -> float:
    """Return the largest relative error of a plan whose tensors have these dtypes."""
    return max([TOLERANCE, *(_COARSE[dtype] for dtype in set(dtypes) & _COARSE.keys())])


def difference(got: np.ndarray, want: np.ndarray) -> Difference:
    """Compare two results.

    Parameters
    ----------
    got, want : numpy.ndarray
        Floats may be of different widths; bfloat16 comes as its bits in uint16, as plans store it.

    Returns
    -------
    Difference
        Infinite where shapes differ, or any integer or bool, or NaNs and infinities stand in
        other places.
    """
    if got.shape != want.shape:
        return Difference(np.inf, np.inf)
    got, want = readable(got), readable(want)
    if want.dtype.kind != "f" or got.dtype.kind != "f":
        return Difference(0.0, 0.0) if np.array_equal(got, want) else Difference(np.inf, np.inf)
    finite = np.isfinite(got) & np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True):
        return Difference(np.inf, np.inf)
    a, b = got[finite].astype(np.float64), want[finite].astype(np.float64)
    apart = np.abs(a - b)
    norm, distance = float(np.linalg.norm(b)), float(np.linalg.norm(apart))
    return Difference(float(apart.max(initial=0.0)), distance / norm if norm else distance)


def readable(array: np.ndarray) -> np.ndarray:
    """Return bfloat16 as float32, complex numbers as pairs, other arrays as they are."""
    if array.dtype.kind == "c":
        return np.stack([array.real, array.imag], -1)
    return from_bfloat16(array) if array.dtype == DTYPES["bfloat16"].storage else array
