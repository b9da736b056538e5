"""Draw random inputs that look like the example's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.dtypes import DTYPES
from taper_runtime.ops.convert import from_bfloat16, to_bfloat16

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Values that a column needs before its own mean and deviation say more than the whole array's.
_FEW = 8


def draw(
    example: Sequence[np.ndarray],
    shapes: Sequence[tuple[int, ...]],
    rng: np.random.Generator,
    *,
    timid: bool = False,
) -> list[np.ndarray]:
    """Draw inputs like those of the example.

    **Integers and bools** keep their values and change their places: whole slices along an array's
    longest axis are permuted. A slice along any other axis then holds just what it held, so that
    ids of different kinds that are packed side by side stay in range, the corners of a box stay
    together, and a special token occurs as often as before. Axes of one length are permuted alike
    in all inputs: what belongs to one token stays with it. Floats of fewer than three
    values, or that are not all finite, are masks and treated like integers. A vector of integers
    that rises from 0, but for 0, 1, 2 and so on, rises again: it says where something begins, or to
    which group something belongs.

    **Other floats** are normal, with mean and deviation of their column (an index of the last axis)
    and within its limits: numbers of another kind may stand in one column, such as the positions of
    patches beside their pixels. Short columns count together. Floats that are all
    equal tell nothing about their distribution: they become standard normal.

    Where a shape is not the example's, slices are left out or repeated.

    Parameters
    ----------
    example : sequence of numpy.ndarray
    shapes : sequence of tuple of int
        Of the results.
    rng : numpy.random.Generator
    timid : bool
        For a module that refuses the others: integers stay in place, floats change by a tenth.
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
    """Whether a vector of integers rises from 0, and is not that of all places."""
    if array.ndim != 1 or array.dtype.kind not in "iu" or array[0] != 0:
        return False
    return bool((array[1:] >= array[:-1]).all() and array[-1] != len(array) - 1)


def _is_mask(array: np.ndarray) -> bool:
    """Whether floats tell one thing from another, rather than how much."""
    if not np.isfinite(array).all():
        return True
    low, high = array.min(), array.max()
    return bool(low < high and ((array == low) | (array == high)).all())


def _normal(array: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Give noise the moments and the limits of the array's columns."""
    values = array.astype(np.float64)
    if values.min() == values.max():
        return noise
    columns = values.reshape(-1, values.shape[-1])
    if len(columns) < _FEW or columns.shape[-1] != noise.shape[-1]:
        columns = values.reshape(-1, 1)
    drawn: np.ndarray = columns.mean(0) + columns.std(0) * noise
    return drawn.clip(columns.min(0), columns.max(0))


def _resized(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The array with slices left out at the end of an axis, or repeated from its beginning."""
    for axis, (size, wanted) in enumerate(zip(array.shape, shape, strict=True)):
        if size != wanted:
            array = array.take(np.arange(wanted) % size, axis)
    return array
