"""Lower ops that move or repeat elements without computing."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np

from taper_frontend.lowering.handlers import lowers
from taper_runtime.base.sizes import Size, bounds, largest, smallest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.lowering.context import Lowering


@lowers(
    "aten._unsafe_view.default",
    "aten.squeeze.default",
    "aten.squeeze.dim",
    "aten.squeeze.dims",
    "aten.unsqueeze.default",
    "aten.view.default",
)
def reshape(ctx: Lowering, x: str, *_: object) -> str:
    """Reshape to the shape that torch has worked out."""
    return ctx.reshape(x, ctx.output.shape)


@lowers("aten.expand.default")
def expand(ctx: Lowering, x: str, size: Sequence[int], *, implicit: bool = False) -> str:
    """Repeat dimensions of size 1 and add leading ones."""
    return ctx.expand(x, ctx.output.shape)


@lowers("aten.permute.default")
def permute(ctx: Lowering, x: str, dims: Sequence[int]) -> str:
    """Reorder the axes."""
    return ctx.permute(x, [ctx.axis(x, dim) for dim in dims])


@lowers("aten.slice.Tensor")
def slice_(
    ctx: Lowering,
    x: str,
    dim: int = 0,
    start: int | str | None = None,
    end: int | str | None = None,
    step: int = 1,
) -> str:
    """Return every ``step``-th element of a range of one axis; its ends may be tensors."""
    axis = ctx.axis(x, dim)
    if isinstance(start, str) or isinstance(end, str):
        return _between(ctx, x, axis, start, end, step)
    return ctx.slice(x, axis, *ctx.range(x, axis, start, end), step)


def _between(
    ctx: Lowering, x: str, axis: int, start: int | str | None, end: int | str | None, step: int
) -> str:
    """Return the elements between two positions, of which at least one is a tensor."""
    count, size = ctx.output.shape[axis], ctx.shape(x)[axis]
    if not ctx.is_unmeasured(count):
        ctx.unsupported(f"expected a slice whose size depends only on its ends, got one of {count}")
    low, high = ctx.range(x, axis, *(None if isinstance(e, str) else e for e in (start, end)))
    first = _place(ctx, start, size) if isinstance(start, str) else low
    last = _place(ctx, end, size) if isinstance(end, str) else high
    last = ctx.apply("MAXIMUM", last, first, dtype="int64")
    length = ctx.apply("SUB", last, first, dtype="int64")
    rounded = ctx.apply("ADD", length, step - 1, dtype="int64")
    ctx.measure(count, ctx.apply("FLOOR_DIV", rounded, step, dtype="int64"))
    if first == 0 and step == 1:
        return ctx.slice(x, axis, 0, count)
    index = ctx.emit("ARANGE", [], start=0, stop=step * count, step=step)
    index = ctx.apply("ADD", index, first, dtype="int64")
    return ctx.emit("INDEX_SELECT", [x, index], axis=axis)


def _place(ctx: Lowering, place: str, size: int) -> str:
    """Return a position of an axis in a tensor, which may count from the end, as a vector."""
    place = ctx.reshape(ctx.cast(place, "int64"), (1,))
    from_end = ctx.apply("ADD", place, size, dtype="int64")
    negative = ctx.apply("LT", place, 0, dtype="int64")
    place = ctx.apply("WHERE", negative, from_end, place, dtype="int64")
    return ctx.apply("MAXIMUM", ctx.apply("MINIMUM", place, size, dtype="int64"), 0, dtype="int64")


@lowers("aten.select.int")
def select(ctx: Lowering, x: str, dim: int, index: int | str) -> str:
    """Return one element of one axis."""
    axis = ctx.axis(x, dim)
    if isinstance(index, str):
        place = ctx.reshape(ctx.cast(index, "int64"), (1,))
        return ctx.reshape(ctx.emit("INDEX_SELECT", [x, place], axis=axis), ctx.output.shape)
    index %= ctx.shape(x)[axis]
    return ctx.reshape(ctx.slice(x, axis, index, index + 1), ctx.output.shape)


@lowers("aten.split_with_sizes.default")
def split_with_sizes(ctx: Lowering, x: str, sizes: Sequence[int], dim: int = 0) -> list[str]:
    """Split one axis into consecutive parts."""
    axis = ctx.axis(x, dim)
    stops = list(itertools.accumulate(sizes))
    return [ctx.slice(x, axis, stop - size, stop) for stop, size in zip(stops, sizes, strict=True)]


@lowers("aten.cat.default")
def cat(ctx: Lowering, tensors: Sequence[str], dim: int = 0) -> str:
    """Concatenate along one axis; torch's legacy empty vectors are ignored."""
    dtype = ctx.output.dtype
    parts = [ctx.cast(x, dtype) for x in tensors if ctx.shape(x) != (0,)] or [tensors[0]]
    if len(parts) == 1:
        return ctx.cast(parts[0], dtype)
    return ctx.emit("CAT", parts, axis=ctx.axis(parts[0], dim))


@lowers("aten.repeat.default")
def repeat(ctx: Lowering, x: str, repeats: Sequence[int]) -> str:
    """Repeat the tensor along each axis."""
    shape = (1,) * (len(repeats) - ctx.rank(x)) + ctx.shape(x)
    spread = [n for size in shape for n in (1, size)]
    full = [n for times, size in zip(repeats, shape, strict=True) for n in (times, size)]
    if all(times == 1 for times in repeats):
        return ctx.reshape(x, shape)
    return ctx.reshape(ctx.expand(ctx.reshape(x, spread), full), ctx.output.shape)


@lowers("aten.flip.default")
def flip(ctx: Lowering, x: str, dims: Sequence[int]) -> str:
    """Reverse axes."""
    axes = sorted(ctx.axis(x, dim) for dim in dims)
    return ctx.emit("FLIP", [x], axes=axes) if axes and ctx.rank(x) else x


@lowers("aten.diagonal.default")
def diagonal(ctx: Lowering, x: str, offset: int = 0, dim1: int = 0, dim2: int = 1) -> str:
    """Return the elements whose indices on two axes differ by ``offset``."""
    pair = [ctx.axis(x, dim1), ctx.axis(x, dim2)]
    others = [axis for axis in range(ctx.rank(x)) if axis not in pair]
    x = ctx.permute(x, [*others, *pair])
    *outer, rows, columns = ctx.shape(x)
    flat = ctx.reshape(x, (*outer, rows * columns))
    places = diagonal_places(ctx, rows, columns, offset)
    return ctx.emit("INDEX_SELECT", [flat, places], axis=len(outer))


def diagonal_places(ctx: Lowering, rows: int, columns: int, offset: int) -> str:
    """Return the row-major positions of the elements of a matrix's diagonal."""
    row, column = max(-offset, 0), max(offset, 0)
    count = largest(smallest(rows - row, columns - column), 0)
    index = ctx.emit("ARANGE", [], start=0, stop=count)
    index = ctx.apply("MUL", index, columns + 1, dtype="int64")
    return ctx.apply("ADD", index, row * columns + column, dtype="int64")


@lowers("aten.unfold.default")
def unfold(ctx: Lowering, x: str, dimension: int, size: int, step: int) -> str:
    """Return windows of one axis along a new last axis."""
    x = ctx.at_least_1d(x)
    axis = ctx.axis(x, dimension)
    shape = ctx.shape(x)
    count = (shape[axis] - size) // step + 1
    if step == size and not isinstance(count, Size):
        windows = ctx.reshape(
            ctx.slice(x, axis, 0, count * size), (*shape[:axis], count, size, *shape[axis + 1 :])
        )
    else:
        run = math.gcd(size, step)  # the elements that all windows cover together
        if run > 1:
            used = (count - 1) * step + size
            x = ctx.reshape(
                ctx.slice(x, axis, 0, used), (*shape[:axis], used // run, run, *shape[axis + 1 :])
            )
        first = ctx.emit("ARANGE", [], start=0, stop=count * (step // run), step=step // run)
        within = ctx.constant(np.arange(size // run))
        index = ctx.emit("ADD", [ctx.reshape(first, (count, 1)), within])
        windows = ctx.emit("INDEX_SELECT", [x, index], axis=axis)
        windows = ctx.reshape(windows, (*shape[:axis], count, size, *shape[axis + 1 :]))
    last = [*range(axis + 1), *range(axis + 2, len(shape) + 1), axis + 1]
    return ctx.reshape(ctx.permute(windows, last), ctx.output.shape)


@lowers("aten.as_strided.default")
def as_strided(
    ctx: Lowering,
    x: str,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> str:
    """Return elements of a contiguous tensor by their positions in memory."""
    shape = ctx.shape(x)
    contiguous = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    # torch's own rules request a memory format this way: an axis of size 1 may have any stride
    same = tuple(size) == shape and not storage_offset and _is_contiguous(ctx, x)
    if same and all(n == 1 or s == c for n, s, c in zip(size, stride, contiguous, strict=True)):
        return x
    return _pick(ctx, x, _in_memory(ctx, x, size, stride, storage_offset))


@lowers("aten.as_strided_scatter.default")
def as_strided_scatter(
    ctx: Lowering,
    x: str,
    src: str,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> str:
    """Write elements of a contiguous tensor by their positions in memory."""
    places = _in_memory(ctx, x, size, stride, storage_offset)
    source = ctx.flat(ctx.cast(src, ctx.dtype(x)))
    written = ctx.emit("SCATTER", [ctx.flat(x), ctx.constant(places.ravel()), source], axis=0)
    return ctx.reshape(written, ctx.shape(x))


def _in_memory(
    ctx: Lowering,
    x: str,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None,
) -> np.ndarray:
    """Return the positions in the memory of a contiguous tensor that strides lead to."""
    if any(isinstance(n, Size) for n in (*ctx.shape(x), *size, *stride)):
        ctx.unsupported("expected fixed sizes and strides", "dynamic shape")
    if not _is_contiguous(ctx, x) or not ctx.node.all_input_nodes[0].value.has_own_memory:
        ctx.unsupported("expected a contiguous tensor with its own memory, got a view")
    grid = np.indices(tuple(size), sparse=True)
    places = sum((g * s for g, s in zip(grid, stride, strict=True)), np.int64(storage_offset or 0))
    return np.broadcast_to(places, tuple(size))


def _is_contiguous(ctx: Lowering, x: str) -> bool:
    """Return whether the first tensor of the call, which is ``x`` here, is contiguous in torch."""
    shape = ctx.shape(x)
    strides = map(ctx.sizes.size, ctx.node.all_input_nodes[0].value.strides)
    expected = (math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return 0 in shape or all(
        n == 1 or have == want for n, have, want in zip(shape, strides, expected, strict=True)
    )


def _pick(ctx: Lowering, x: str, positions: np.ndarray) -> str:
    """Return the elements of ``x`` at these positions of its memory, in their shape."""
    return ctx.emit("INDEX_SELECT", [ctx.flat(x), ctx.constant(positions)], axis=0)


@lowers("aten.roll.default")
def roll(ctx: Lowering, x: str, shifts: Sequence[int], dims: Sequence[int] = ()) -> str:
    """Move elements along axes; those that leave at one end enter at the other.

    Without axes, along the flattened tensor. Along the last axis this is two slices, which are
    copied as a whole. Along others a selection copies rows as fast, and the compiler joins it with
    the permutations around it, as in Swin's windows.
    """
    if not dims:
        return ctx.reshape(roll(ctx, ctx.flat(x), shifts, (0,)), ctx.output.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        axis = ctx.axis(x, dim)
        size = ctx.shape(x)[axis]
        least, most = bounds(size)
        if most == 0:
            continue
        if isinstance(shift, Size) or (isinstance(size, Size) and abs(shift) > least):
            places = ctx.emit("ARANGE", [], start=0, stop=size)
            moved = ctx.apply("SUB", places, ctx.size_value(shift, "int64"), dtype="int64")
            index = ctx.apply("REMAINDER", moved, ctx.size_value(size, "int64"), dtype="int64")
            x = ctx.emit("INDEX_SELECT", [x, index], axis=axis)
            continue
        split = -shift if isinstance(size, Size) else -shift % size
        split = split + size if isinstance(size, Size) and shift > 0 else split
        if split == 0:
            continue
        if isinstance(size, Size) or axis == len(ctx.shape(x)) - 1:
            parts = [ctx.slice(x, axis, split, size), ctx.slice(x, axis, 0, split)]
            x = ctx.emit("CAT", parts, axis=axis)
        else:
            index = ctx.constant(np.roll(np.arange(size), shift))
            x = ctx.emit("INDEX_SELECT", [x, index], axis=axis)
    return x
