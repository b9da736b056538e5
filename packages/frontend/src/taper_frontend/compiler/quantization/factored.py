"""Choose levels whose scales and offsets are small integers times those of 256 rows.

A number is ``level * (scale * factor) + offset * offset_factor``, as in GGUF's Q4_K: levels have 4
bits, each 32 rows of a column have two factors of 6 bits, each 256 rows a scale and an offset.
They are searched for by least squares, first for each 32 rows alone, then together. The offsets
are 0 or less, so that 0 is between the numbers of each group. Numbers that had this form before
come back exactly, with rare exceptions.
"""

from __future__ import annotations

import numpy as np

from taper_runtime.base.dtypes import cast
from taper_runtime.base.records import NamedTuple
from taper_runtime.formats.blocks import LEVELS, Blocks

#: The format of such a matrix.
FORMAT = Blocks("q4k", 32, "float16", "offsets")

GROUP = FORMAT.size

#: The rows of a scale and an offset.
ROWS = FORMAT.rows(GROUP)

_MOST = np.float32(2 ** LEVELS[FORMAT.levels].bits - 1)
_MOST_FACTOR = np.float32(63)

#: How many levels the range of a group is divided into: more than 15 cut its largest numbers, fewer
#: find a group again whose levels were not all used.
_STEPS = tuple(map(np.float32, (13, 14, 14.5, 15, 15.5, 16, 17, 18, 20)))

#: Which factors of a scale are tried, beside the nearest.
_NEAR = (0, -1, 1)

#: How many levels below the smallest number of a group may be unused.
_UNUSED = 2


class Factored(NamedTuple):
    """A matrix ``[K, N]`` as levels; whole numbers are float32, too.

    Attributes
    ----------
    levels : numpy.ndarray
        ``[K/256, 8, 32, N]``.
    scales, offsets : numpy.ndarray
        Numbers of float16, ``[K/256, 1, 1, N]``.
    factors, offset_factors : numpy.ndarray
        ``[K/256, 8, 1, N]``.
    """

    levels: np.ndarray
    scales: np.ndarray
    offsets: np.ndarray
    factors: np.ndarray
    offset_factors: np.ndarray

    @property
    def steps(self) -> np.ndarray:
        """Return the difference of two levels, of each group."""
        return np.asarray(self.scales * self.factors)

    @property
    def lowest(self) -> np.ndarray:
        """Return the number of level 0, of each group."""
        return np.asarray(self.offsets * self.offset_factors)

    @property
    def numbers(self) -> np.ndarray:
        """Return the matrix's numbers, ``[K/256, 8, 32, N]``."""
        return np.asarray(self.levels * self.steps + self.lowest)


def factored(matrix: np.ndarray, *, search: bool = True) -> Factored:
    """Return a float32 matrix ``[K, N]``, K a multiple of 256, as levels.

    Scales that float16 does not hold become infinite. Without a search the range of each group is
    that of its numbers.
    """
    x = matrix.reshape(-1, ROWS // GROUP, GROUP, matrix.shape[-1])
    with np.errstate(over="ignore", invalid="ignore"):  # what float16 does not hold
        steps, lowest = _fit(x, _STEPS if search else (_MOST,), is_free=search)
        scales, offsets = _common(steps), -_common(-lowest)
        found = _divide(x, steps, lowest, scales, offsets, search=search)
        return _refit(x, found) if search else found


def _fit(
    x: np.ndarray, divisions: tuple[np.float32, ...], *, is_free: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the step and the lowest number of each group that lose least.

    Each division of a group's range into levels says which level is whose; the line through these
    is that of least squares, where ``is_free``.
    """
    low = np.minimum(x.min(2, keepdims=True), 0)
    span = x.max(2, keepdims=True) - low
    total, squares = _sum(x), _sum(x * x)
    best: list[np.ndarray] = []
    for count in divisions:
        level = np.clip(np.rint((x - low) * _divided(count, span)), 0, _MOST)
        step, lowest = span / count, low
        sums, of_squares, products = _sum(level), _sum(level * level), _sum(level * x)
        spread = GROUP * of_squares - sums * sums
        if is_free:
            is_line = spread > 0  # not all levels are equal
            lowest = np.where(
                is_line, _divided(of_squares * total - sums * products, spread), lowest
            )
            step = np.where(is_line, _divided(GROUP * products - sums * total, spread), step)
            is_above = is_line & (lowest > 0)
            lowest = np.where(is_above, 0, lowest)
            step = np.where(is_above, _divided(products, of_squares), step)
        lost = squares + step * step * of_squares + GROUP * lowest * lowest
        lost += 2 * (step * lowest * sums - step * products - lowest * total)
        best = _better([step, lowest, lost], best)
    return best[0], best[1]


def _divide(
    x: np.ndarray,
    steps: np.ndarray,
    lowest: np.ndarray,
    scales: np.ndarray,
    offsets: np.ndarray,
    *,
    search: bool = True,
) -> Factored:
    """Return levels and factors near the steps and lowest numbers that are wanted."""
    best: list[np.ndarray] = []
    nearest = np.rint(_divided(steps, scales))
    for near in _NEAR if search else _NEAR[:1]:
        factors = np.clip(nearest + near, 0, _MOST_FACTOR)
        step = scales * factors
        for unused in range(_UNUSED + 1 if search else 1):
            below = _whole(lowest - unused * step, offsets)
            level = nearest_levels(x, step, offsets * below)
            if search and not unused:  # the lowest number that is best for these levels
                below = _whole(_sum(x - level * step) / GROUP, offsets)
                level = nearest_levels(x, step, offsets * below)
            lost = _sum(np.square(level * step + offsets * below - x))
            best = _better([level, factors, below, lost], best)
    level, factors, below, _ = best
    return Factored(level, scales, offsets, factors, below)


def _refit(x: np.ndarray, found: Factored) -> Factored:
    """Fit the common scales and offsets to the levels, and divide again where that loses less."""
    a, b = found.levels * found.factors, np.broadcast_to(found.offset_factors, x.shape)
    aa, ab, bb, ax, bx = (_sum(p, (1, 2)) for p in (a * a, a * b, b * b, a * x, b * x))
    spread = aa * bb - ab * ab
    scales = _rounded(_divided(bb * ax - ab * bx, spread))
    offsets = _rounded(_divided(aa * bx - ab * ax, spread))
    is_possible = (scales > 0) & (offsets <= 0)
    scales = np.where(is_possible, scales, found.scales)
    offsets = np.where(is_possible, offsets, found.offsets)
    again = _divide(x, found.steps, found.lowest, scales, offsets)
    is_better = _lost(x, again) < _lost(x, found)
    return Factored(*(np.where(is_better, new, old) for new, old in zip(again, found, strict=True)))


def _lost(x: np.ndarray, found: Factored) -> np.ndarray:
    return _sum(np.square(found.numbers - x), (1, 2))


def _better(new: list[np.ndarray], best: list[np.ndarray]) -> list[np.ndarray]:
    """Return the arrays of both that lose less, group by group; the last array is what is lost."""
    if not best:
        return new
    is_better = new[-1] < best[-1]
    return [np.where(is_better, a, b) for a, b in zip(new, best, strict=True)]


def nearest_levels(x: np.ndarray, step: np.ndarray, lowest: np.ndarray) -> np.ndarray:
    """Return the levels whose numbers are nearest."""
    levels: np.ndarray = np.clip(np.rint((x - lowest) * _divided(np.float32(1), step)), 0, _MOST)
    return levels


def _whole(numbers: np.ndarray, common: np.ndarray) -> np.ndarray:
    """Return the nearest factors."""
    factors: np.ndarray = np.clip(np.rint(_divided(numbers, common)), 0, _MOST_FACTOR)
    return factors


def _common(numbers: np.ndarray) -> np.ndarray:
    """Return what the largest number is 63 times of."""
    return _rounded(numbers.max(1, keepdims=True) / _MOST_FACTOR)


def _rounded(numbers: np.ndarray) -> np.ndarray:
    return cast(cast(numbers, FORMAT.scales), "float32")


def _sum(x: np.ndarray, axes: int | tuple[int, ...] = 2) -> np.ndarray:
    return np.asarray(x.sum(axes, keepdims=True))


def _divided(x: np.ndarray | np.float32, y: np.ndarray) -> np.ndarray:
    """Return the quotient, 0 where the divisor is 0."""
    out = np.zeros(np.broadcast_shapes(np.shape(x), y.shape), np.float32)
    quotient: np.ndarray = np.divide(x, y, out=out, where=y != 0)
    return quotient
