"""Draw random inputs similar to the example's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.dtypes import DTYPES
from taper_runtime.ops.convert import from_bfloat16, to_bfloat16

if TYPE_CHECKING:
    from collections.abc import Sequence

#: A column with at least so many values uses its own mean and deviation, not the whole array's.
_FEW = 8


def draw(
    example: Sequence[np.ndarray],
    shapes: Sequence[tuple[int, ...]],
    rng: np.random.Generator,
    *,
    timid: bool = False,
) -> list[np.ndarray]:
    """Draw inputs similar to those of the example.

    **Integers and bools** keep their values and change their positions: whole slices along an
    array's longest axis are permuted. So a slice along any other axis holds the same values as
    before: ids of different kinds in one array stay in range, the corners of a box stay together,
    and a special token occurs as often as before. Axes of equal length are permuted in the same way
    in all inputs, so data of one token stay together. Floats with fewer than three distinct values,
    or with values that are not finite, are masks and treated like integers. A vector of integers
    that increases from 0 (except 0, 1, 2...) stays increasing: it contains offsets or group
    numbers.

    **Other floats** are normal, with the mean and deviation of their column (an index of the last
    axis), and within its limits: a column may hold another kind of numbers, such as the positions
    of patches next to their pixels. Short columns are combined. Floats that are all equal say
    nothing about their distribution, and become standard normal.

    If a shape differs from the example's, slices are removed or repeated.

    Parameters
    ----------
    example : sequence of numpy.ndarray
    shapes : sequence of tuple of int
        The shapes of the results.
    rng : numpy.random.Generator
    timid : bool
        For a module that refuses other inputs: integers do not change, floats change by a tenth.
    """
    orders: dict[int, np.ndarray] = {}
    return [
        _draw(array, shape, rng, orders, timid=timid)
        for array, shape in zip(example, shapes, strict=True)
    ]


def _draw(
    array: np.ndarray,
    shape: tuple[int, ...],
    rng: np.random.Generator,
    orders: dict[int, np.ndarray],
    *,
    timid: bool,
) -> np.ndarray:
    """Draw one array; ``orders`` holds the permutations of axes by length."""
    if array.size == 0:
        return np.zeros(shape, array.dtype)
    if array.dtype == DTYPES["bfloat16"].storage:
        wide = _draw(from_bfloat16(array), shape, rng, orders, timid=timid)
        return to_bfloat16(wide.astype(np.float32))
    if array.dtype.kind == "f" and (timid or not _is_mask(array)):
        like = _resized(array, shape)
        noise = np.asarray(rng.standard_normal(shape))
        drawn = like * (1 + 0.1 * noise) if timid else _normal(array, noise)
        return np.asarray(drawn, array.dtype)
    rises = _rises(array)
    if array.ndim and not timid:
        axis = max(range(array.ndim), key=lambda axis: (array.shape[axis], axis))
        length = array.shape[axis]
        if length not in orders:
            orders[length] = rng.permutation(length)
        array = array.take(orders[length], axis)
    array = _resized(array, shape)
    return np.sort(array) if rises else array


def _rises(array: np.ndarray) -> bool:
    """Return whether a vector of integers increases from 0, and is not 0, 1, 2 and so on."""
    if array.ndim != 1 or array.dtype.kind not in "iu" or array[0] != 0:
        return False
    return bool((array[1:] >= array[:-1]).all() and array[-1] != len(array) - 1)


def _is_mask(array: np.ndarray) -> bool:
    """Return whether floats are flags or groups rather than quantities."""
    if not np.isfinite(array).all():
        return True
    low, high = array.min(), array.max()
    return bool(low < high and ((array == low) | (array == high)).all())


def _normal(array: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Scale noise to the moments and the limits of the array's columns."""
    values = array.astype(np.float64)
    if values.min() == values.max():
        return noise
    columns = values.reshape(-1, values.shape[-1])
    if len(columns) < _FEW or columns.shape[-1] != noise.shape[-1]:
        columns = values.reshape(-1, 1)
    drawn: np.ndarray = columns.mean(0) + columns.std(0) * noise
    return drawn.clip(columns.min(0), columns.max(0))


def _resized(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the array with slices removed at the end of an axis, or repeated from the start."""
    for axis, (size, wanted) in enumerate(zip(array.shape, shape, strict=True)):
        if size != wanted:
            array = array.take(np.arange(wanted) % size, axis)
    return array
