"""Lower writes of elements at given positions; the changed tensor is a new one.

As in torch, negative positions count from the end in ``index_put`` and ``put``, and are refused in
all other ops.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from taper_frontend.lowering.elementwise import is_float
from taper_frontend.lowering.handlers import lowers
from taper_frontend.lowering.indexing import as_index, locate
from taper_frontend.lowering.shape import diagonal_places
from taper_runtime.base.sizes import bounds
from taper_runtime.ops.type_rules import broadcast, replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.lowering.context import Lowering, Operand
    from taper_runtime.ops.opdef import Shape

#: For each value of torch's ``reduce`` arguments, the ``reduce`` of SCATTER.
_REDUCTIONS = {
    "add": "sum",
    "multiply": "prod",
    "sum": "sum",
    "prod": "prod",
    "mean": "sum",
    "amax": "amax",
    "amin": "amin",
}


@lowers("aten.scatter.src", "aten.scatter.reduce")
def scatter(
    ctx: Lowering, x: str, dim: int, index: str, src: str, *, reduce: str | None = None
) -> str:
    """Write, or combine, each element of ``src`` at a position along one axis."""
    return _scatter(ctx, x, dim, index, src, _REDUCTIONS[reduce] if reduce else "none")


@lowers("aten.scatter.value", "aten.scatter.value_reduce")
def scatter_value(
    ctx: Lowering, x: str, dim: int, index: str, value: float, *, reduce: str | None = None
) -> str:
    """Write, or combine, one value at positions along one axis."""
    return scatter(
        ctx, x, dim, index, ctx.full(ctx.shape(index), value, ctx.dtype(x)), reduce=reduce
    )


@lowers("aten.scatter_add.default")
def scatter_add(ctx: Lowering, x: str, dim: int, index: str, src: str) -> str:
    """Add each element of ``src`` at a position along one axis."""
    return _scatter(ctx, x, dim, index, src, "sum")


@lowers("aten.scatter_reduce.two")
def scatter_reduce(
    ctx: Lowering,
    x: str,
    dim: int,
    index: str,
    src: str,
    reduce: str,
    *,
    include_self: bool = True,
) -> str:
    """Combine the elements that ``index`` sends to the same position."""
    dtype = ctx.dtype(x)
    if not include_self:
        start = ctx.full(ctx.shape(index), _neutral(reduce, dtype), dtype)
        x = _scatter(ctx, x, dim, index, start, "none")
    y = _scatter(ctx, x, dim, index, src, _REDUCTIONS[reduce])
    if reduce != "mean":
        return y
    ones = ctx.full(ctx.shape(index), 1, dtype)
    count = _scatter(ctx, ctx.full(ctx.shape(x), int(include_self), dtype), dim, index, ones, "sum")
    count = ctx.apply("MAXIMUM", count, 1, dtype=dtype)
    return ctx.emit("DIV" if is_float(dtype) else "FLOOR_DIV", [y, count])


def _neutral(reduce: str, dtype: str) -> float:
    """Return the value that ``reduce`` combines with x to x."""
    if reduce in ("sum", "mean", "prod"):
        return int(reduce == "prod")
    if dtype == "bool":
        return reduce == "amin"
    if is_float(dtype):
        return -math.inf if reduce == "amax" else math.inf
    limits = np.iinfo(dtype)
    return int(limits.min if reduce == "amax" else limits.max)


def _scatter(ctx: Lowering, x: str, dim: int, index: str, src: str, reduce: str) -> str:
    """Emit SCATTER; ``src`` may be larger than ``index``."""
    shape = ctx.shape(x)
    axis = ctx.axis(x, dim)
    x, index, src = (ctx.at_least_1d(tensor) for tensor in (x, as_index(ctx, index), src))
    for i, size in enumerate(ctx.shape(index)):
        src = ctx.slice(src, i, 0, size)
    y = ctx.emit("SCATTER", [x, index, src], axis=axis, wrap=False, reduce=reduce)
    return ctx.reshape(y, shape)


@lowers("aten.index_put.default")
def index_put(
    ctx: Lowering,
    x: str,
    indices: Sequence[str | None],
    values: str,
    accumulate: bool = False,
) -> str:
    """Write, or add, values at the positions in index tensors, which broadcast together."""
    masks = [name for name in indices if name is not None and ctx.dtype(name) == "bool"]
    if masks and _is_same_everywhere(ctx, x, indices, values):
        return _put_by_mask(ctx, x, indices, values, accumulate)
    if not masks:
        indices, values = _between(ctx, x, indices, values)
    located = locate(ctx, x, indices, lambda axis: _rows(ctx, x, indices, values)[axis])
    if located is None:
        values = ctx.expand(values, ctx.shape(x))
        return ctx.emit("ADD", [x, values]) if accumulate else values
    shape = ctx.shape(located.source)
    before, after = shape[: located.axis], shape[located.axis + 1 :]
    spot = ctx.shape(located.places)
    src = ctx.expand(values, (*before, *spot, *after))
    if accumulate:
        count = math.prod(spot)
        src = ctx.reshape(src, (*before, count, *after))
        places = ctx.reshape(located.places, (count,))
        index = ctx.reshape(places, (count, *[1] * len(after)))
        index = ctx.expand(index, (*before, count, *after))
        inputs = [located.source, index, src]
        y = ctx.emit("SCATTER", inputs, axis=located.axis, reduce="sum")
    else:
        y = ctx.emit("WRITE", [located.source, located.places, src], axis=located.axis)
    y = ctx.reshape(y, [ctx.shape(x)[axis] for axis in located.order])
    return ctx.permute(y, np.argsort(located.order).tolist())


def _between(
    ctx: Lowering, x: str, indices: Sequence[str | None], values: str
) -> tuple[Sequence[str | None], str]:
    """Index the axes between indexed ones too, with all their places.

    The indexed axes then lie side by side, and what is written to stays where it is: a state can be
    written in place. There are more places, though never more than values.
    """
    given = [axis for axis, name in enumerate(indices) if name is not None]
    if not given or given[-1] - given[0] == len(given) - 1:
        return indices, values
    shape = ctx.shape(x)
    spot = broadcast("index_put", [ctx.shape(name) for name in indices if name is not None])
    before = given[0]
    gaps = [axis for axis in range(before, given[-1]) if axis not in given]
    after = shape[given[-1] + 1 :]
    filled: list[str | None] = [None] * before
    for axis in range(before, given[-1] + 1):
        name = indices[axis]
        if name is None:
            places = ctx.emit("ARANGE", [], start=0, stop=shape[axis])
            behind = len(gaps) - gaps.index(axis) - 1
            filled.append(ctx.reshape(places, (shape[axis], *[1] * behind)))
        else:
            filled.append(ctx.reshape(name, (*ctx.shape(name), *[1] * len(gaps))))
    # torch has the places of the indices first
    wide = (*spot, *shape[:before], *(shape[axis] for axis in gaps), *after)
    values = ctx.expand(values, wide)
    first = range(len(spot), len(spot) + before)
    order = [*first, *range(len(spot)), *range(len(spot) + before, len(wide))]
    return filled, ctx.permute(values, order)


def _put_by_mask(
    ctx: Lowering,
    x: str,
    indices: Sequence[str | None],
    values: str,
    accumulate: bool,
) -> str:
    """Write the same values wherever a mask over some of the axes is set."""
    ((axis, mask),) = ((i, name) for i, name in enumerate(indices) if name is not None)
    shape = _rows(ctx, x, indices, values)
    after = len(shape) - axis - 1
    values = ctx.reshape(values, (*shape[:axis], *[1] * ctx.rank(mask), *shape[axis + 1 :]))
    if accumulate:
        values = ctx.emit("ADD", [x, values])
    mask = ctx.reshape(mask, ctx.shape(mask) + (1,) * after)
    return ctx.apply("WHERE", mask, values, x, dtype=ctx.dtype(x))


def _is_same_everywhere(ctx: Lowering, x: str, indices: Sequence[str | None], values: str) -> bool:
    """Return whether the values written by a mask do not depend on its number of places."""
    given = [axis for axis, name in enumerate(indices) if name is not None]
    return len(given) == 1 and _rows(ctx, x, indices, values)[given[0]] == 1


def _rows(ctx: Lowering, x: str, indices: Sequence[str | None], values: str) -> Shape:
    """Return the shape of the values: the mask's axes are replaced by the number of positions."""
    ((axis, mask),) = ((i, name) for i, name in enumerate(indices) if name is not None)
    after = ctx.rank(x) - axis - ctx.rank(mask)
    return (1,) * (axis + 1 + after - ctx.rank(values)) + ctx.shape(values)


@lowers("aten.index_copy.default")
def index_copy(ctx: Lowering, x: str, dim: int, index: str, source: str) -> str:
    """Write slices of ``source`` at positions of one axis."""
    if not ctx.rank(x):
        return source
    axis = ctx.axis(x, dim)
    places = ctx.at_least_1d(index)
    source = ctx.reshape(source, replace(ctx.shape(x), axis, *ctx.shape(places)))
    return ctx.emit("WRITE", [x, places, source], axis=axis, wrap=False)


@lowers("aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor")
def index_fill(ctx: Lowering, x: str, dim: int, index: str, value: Operand) -> str:
    """Write one value at positions of one axis."""
    dtype = ctx.dtype(x)
    value = ctx.cast(value, dtype) if isinstance(value, str) else ctx.full((), value, dtype)
    if not ctx.rank(x):
        x = ctx.at_least_1d(x)
        return ctx.reshape(index_put(ctx, x, [ctx.at_least_1d(index)], value), ())
    axis = ctx.axis(x, dim)
    return index_put(ctx, x, [*[None] * axis, ctx.at_least_1d(index)], value)


@lowers("aten.max_unpool2d.default", "aten.max_unpool3d.default")
def max_unpool(
    ctx: Lowering, x: str, indices: str, output_size: Sequence[int], *_: Sequence[int]
) -> str:
    """Write elements at their positions from pooling in the last dims; all others are 0."""
    n = len(output_size)
    shape, small = ctx.output.shape, ctx.shape(x)
    lead, pixels = small[: len(small) - n], math.prod(shape[len(shape) - n :])
    src = ctx.reshape(x, (*lead, math.prod(small[len(small) - n :])))
    index = ctx.reshape(indices, ctx.shape(src))
    zeros = ctx.full((*lead, pixels), 0, ctx.dtype(x))
    y = ctx.emit("SCATTER", [zeros, index, src], axis=len(lead), wrap=False)
    return ctx.reshape(y, shape)


@lowers("aten.one_hot.default")
def one_hot(ctx: Lowering, x: str, num_classes: int | str = -1) -> str:
    """Write a 1 at the position of each class; a class out of range is refused."""
    shape = ctx.output.shape
    if isinstance(num_classes, str) or bounds(num_classes)[0] < 1:
        ctx.unsupported("expected a fixed number of classes, got one that depends on values")
    index = ctx.reshape(x, (*ctx.shape(x), 1))
    zeros, ones = ctx.full(shape, 0, "int64"), ctx.full(ctx.shape(index), 1, "int64")
    axis = len(shape) - 1
    return ctx.emit("SCATTER", [zeros, index, ones], axis=axis, wrap=False)


@lowers("aten.index_add.default")
def index_add(ctx: Lowering, x: str, dim: int, index: str, source: str, *, alpha: float = 1) -> str:
    """Add ``alpha`` times slices of ``source`` at positions of one axis."""
    shape = ctx.shape(x)
    axis, dtype = ctx.axis(x, dim), ctx.dtype(x)
    x, index = ctx.at_least_1d(x), ctx.at_least_1d(index)
    spot = replace(ctx.shape(x), axis, *ctx.shape(index))
    source = ctx.reshape(source, spot)
    if alpha != 1:
        source = ctx.apply("MUL", source, alpha, dtype=dtype)
    index = ctx.reshape(index, (*ctx.shape(index), *[1] * (len(spot) - axis - 1)))
    inputs = [x, ctx.expand(index, spot), source]
    y = ctx.emit("SCATTER", inputs, axis=axis, wrap=False, reduce="sum")
    return ctx.reshape(y, shape)


@lowers("aten.slice_scatter.default")
def slice_scatter(
    ctx: Lowering,
    x: str,
    src: str,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> str:
    """Replace a range of one axis."""
    axis = ctx.axis(x, dim)
    return _replace(
        ctx, x, ctx.cast(src, ctx.dtype(x)), axis, *ctx.range(x, axis, start, end), step
    )


@lowers("aten.select_scatter.default")
def select_scatter(ctx: Lowering, x: str, src: str, dim: int, index: int | str) -> str:
    """Replace one element of one axis; the index may be a tensor."""
    axis = ctx.axis(x, dim)
    shape = ctx.shape(x)
    src = ctx.reshape(src, (*shape[:axis], 1, *shape[axis + 1 :]))
    if isinstance(index, str):
        return index_put(ctx, x, [*[None] * axis, ctx.at_least_1d(index)], src)
    index %= shape[axis]
    return _replace(ctx, x, src, axis, index, index + 1)


@lowers("aten.diagonal_scatter.default")
def diagonal_scatter(
    ctx: Lowering, x: str, src: str, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> str:
    """Replace the elements whose indices on two axes differ by ``offset``."""
    shape = ctx.shape(x)
    pair = [ctx.axis(x, dim1), ctx.axis(x, dim2)]
    axes = [*(axis for axis in range(len(shape)) if axis not in pair), *pair]
    x = ctx.permute(x, axes)
    *outer, rows, columns = ctx.shape(x)
    places = diagonal_places(ctx, rows, columns, offset)
    places = ctx.expand(places, (*outer, *ctx.shape(places)))
    flat = ctx.reshape(x, (*outer, rows * columns))
    y = ctx.emit("SCATTER", [flat, places, src], axis=len(outer))
    y = ctx.reshape(y, (*outer, rows, columns))
    return ctx.permute(y, np.argsort(axes).tolist())


@lowers("aten.put.default")
def put(ctx: Lowering, x: str, index: str, source: str, accumulate: bool = False) -> str:
    """Write, or add, elements at positions of the flattened tensor."""
    inputs = [ctx.flat(x), ctx.flat(index), ctx.flat(source)]
    y = ctx.emit("SCATTER", inputs, axis=0, reduce="sum" if accumulate else "none")
    return ctx.reshape(y, ctx.shape(x))


def _replace(
    ctx: Lowering, x: str, src: str, axis: int, start: int, stop: int, step: int = 1
) -> str:
    """Replace every ``step``-th element of a range of one axis by the elements of ``src``."""
    size = ctx.shape(x)[axis]
    if start == stop:
        return x
    ends = [(0, start), (stop, size)]
    may_be_empty = any(low != high and bounds(high - low)[0] < 1 for low, high in ends)
    if step != 1 or may_be_empty:
        return _replace_every(ctx, x, src, axis, start, stop, step)
    before, after = ([ctx.slice(x, axis, low, high)] if low != high else [] for low, high in ends)
    parts = [*before, src, *after]
    return ctx.emit("CAT", parts, axis=axis) if len(parts) > 1 else src


def _replace_every(
    ctx: Lowering, x: str, src: str, axis: int, start: int, stop: int, step: int
) -> str:
    """Select each element of one axis from ``src`` inside the range, else from ``x``."""
    size = ctx.shape(x)[axis]
    place = ctx.emit("ARANGE", [], start=0, stop=size)
    offset = ctx.apply("SUB", place, start, dtype="int64")
    among = ctx.apply("FLOOR_DIV", offset, step, dtype="int64")
    chosen = ctx.emit("EQ", [ctx.apply("MUL", among, step, dtype="int64"), offset])
    chosen = ctx.emit("LOGICAL_AND", [chosen, ctx.apply("GE", place, start, dtype="int64")])
    chosen = ctx.emit("LOGICAL_AND", [chosen, ctx.apply("LT", place, stop, dtype="int64")])
    other = ctx.apply("ADD", among, size, dtype="int64")
    index = ctx.apply("WHERE", chosen, other, place, dtype="int64")
    both = ctx.emit("CAT", [x, src], axis=axis)
    return ctx.emit("INDEX_SELECT", [both, index], axis=axis)


@lowers("aten.masked_scatter.default")
def masked_scatter(ctx: Lowering, x: str, mask: str, source: str) -> str:
    """Replace the elements where the mask is set by those of ``source``, in order."""
    shape, dtype = ctx.output.shape, ctx.dtype(x)
    mask = ctx.expand(mask, shape)
    flat = ctx.flat(ctx.cast(mask, "int64"))
    rank = ctx.apply("SUB", ctx.emit("CUMSUM", [flat], axis=0), 1, dtype="int64")
    # -1 before the first one, which is not read
    rank = ctx.apply("MAXIMUM", rank, 0, dtype="int64")
    chosen = ctx.reshape(ctx.emit("INDEX_SELECT", [ctx.flat(source), rank], axis=0), shape)
    return ctx.apply("WHERE", mask, chosen, x, dtype=dtype)
