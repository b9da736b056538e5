"""Lower reads of elements at given positions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from taper_frontend.lowering.data_dependent import places_of
from taper_frontend.lowering.handlers import lowers
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from taper_frontend.lowering.context import Lowering
    from taper_runtime.ops.opdef import Shape

_INDEX_DTYPES = frozenset({"int64", "int32"})
_MASK_DTYPES = frozenset({"bool", "uint8"})


@lowers("aten.embedding.default")
def embedding(
    ctx: Lowering,
    weight: str,
    indices: str,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> str:
    """Read rows of a table."""
    return ctx.emit("EMBEDDING", [weight, indices])


@lowers("aten.index_select.default")
def index_select(ctx: Lowering, x: str, dim: int, index: str) -> str:
    """Read elements of one axis at the positions in a vector."""
    inputs = [ctx.at_least_1d(x), ctx.at_least_1d(index)]
    y = ctx.emit("INDEX_SELECT", inputs, axis=ctx.axis(x, dim), wrap=False)
    return ctx.reshape(y, ctx.output.shape)


@lowers("aten.take.default")
def take(ctx: Lowering, x: str, index: str) -> str:
    """Read elements of the flattened tensor."""
    return ctx.emit("INDEX_SELECT", [ctx.flat(x), index], axis=0)


@lowers("aten.gather.default")
def gather(ctx: Lowering, x: str, dim: int, index: str, *, sparse_grad: bool = False) -> str:
    """Read elements along one axis, at a position for each element of the index.

    torch accepts an empty index of any rank.
    """
    if not ctx.type(index).size:
        return ctx.full(ctx.output.shape, 0, ctx.output.dtype)
    inputs = [ctx.at_least_1d(x), ctx.at_least_1d(as_index(ctx, index))]
    y = ctx.emit("GATHER", inputs, axis=ctx.axis(x, dim), wrap=False)
    return ctx.reshape(y, ctx.output.shape)


@lowers("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index(ctx: Lowering, x: str, indices: Sequence[str | None]) -> str:
    """Read elements at the positions in index tensors, which broadcast against each other."""
    located = locate(ctx, x, indices, lambda axis: ctx.output.shape[axis])
    if located is None:
        return x
    y = ctx.emit("INDEX_SELECT", [located.source, located.places], axis=located.axis)
    return ctx.reshape(y, ctx.output.shape)


#: The modes of embedding bags, by torch's numbers.
_MODES = ("sum", "mean", "max")


@lowers("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
def embedding_bag(
    ctx: Lowering,
    weight: str,
    indices: str,
    offsets: str,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: str | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[str, None, None, None]:
    """Combine the rows of each bag; ``offsets`` has the start of each bag in ``indices``.

    Rows at ``padding_idx`` are ignored. With ``include_last_offset`` the last offset is the end of
    the last bag. Further results are for training.
    """
    inputs = [weight, indices, offsets]
    if per_sample_weights is not None:
        inputs.append(ctx.cast(per_sample_weights, ctx.dtype(weight)))
    bags = ctx.emit("EMBEDDING_BAG", inputs, mode=_MODES[mode], padding=padding_idx)
    bags = ctx.slice(bags, 0, 0, ctx.output.shape[0])
    return bags, None, None, None


def as_index(ctx: Lowering, index: str) -> str:
    """Convert small integer indices to int64."""
    return index if ctx.dtype(index) in _INDEX_DTYPES else ctx.cast(index, "int64")


class Located(NamedTuple):
    """Several index tensors merged into one.

    Attributes
    ----------
    source : str
        The indexed tensor, with its indexed axes merged into one.
    axis : int
        The merged axis.
    places : str
        int32 or int64 positions on the merged axis, of the shape that the index tensors broadcast
        to.
    order : tuple of int
        The permutation of the indexed tensor's axes before the merge.
    """

    source: str
    axis: int
    places: str
    order: tuple[int, ...]


def locate(
    ctx: Lowering, x: str, indices: Sequence[str | None], count: Callable[[int], int]
) -> Located | None:
    """Merge the indexed axes of ``x`` into one, and the index tensors likewise.

    Indexed axes that are not adjacent move to the front, where torch puts the result's axes, too.
    Return None if nothing is indexed. ``count(axis)`` is the number of positions that a mask over
    axes from ``axis`` on selects.
    """
    given = {axis: index for axis, index in enumerate(indices) if index is not None}
    if not given:
        return None
    if any(ctx.dtype(name) in _MASK_DTYPES for name in given.values()):
        return _locate_by_mask(ctx, x, given, count)
    for name in given.values():
        if ctx.dtype(name) not in _INDEX_DTYPES:
            ctx.unsupported(f"expected indices int64 or int32, got {ctx.dtype(name)}", "dtype")
    axes = list(given)
    others = [axis for axis in range(ctx.rank(x)) if axis not in given]
    first = axes[0] if axes[-1] - axes[0] == len(axes) - 1 else 0
    order = (*others[:first], *axes, *others[first:])
    moved = ctx.permute(x, order)
    shape = ctx.shape(moved)
    sizes = shape[first : first + len(axes)]
    merged = (*shape[:first], math.prod(sizes), *shape[first + len(axes) :])
    places = _merge(ctx, list(given.values()), sizes)
    return Located(ctx.reshape(moved, merged), first, places, order)


def _locate_by_mask(
    ctx: Lowering, x: str, given: Mapping[int, str], count: Callable[[int], int]
) -> Located:
    """Convert a mask over some axes to the positions where it is set."""
    ((axis, mask), *more) = given.items()
    if more:
        ctx.unsupported("expected a mask alone, got one with other indices")
    shape, behind = ctx.shape(x), axis + ctx.rank(mask)
    merged = (*shape[:axis], math.prod(shape[axis:behind]), *shape[behind:])
    places = places_of(ctx, mask, count(axis))
    return Located(ctx.reshape(x, merged), axis, places, tuple(range(ctx.rank(x))))


def _merge(ctx: Lowering, indices: Sequence[str], sizes: Shape) -> str:
    """Return the positions on the merged axis; out-of-range indices stay out of range."""
    if len(indices) == 1:
        return indices[0]
    place = valid = ""
    for name, size in zip(indices, sizes, strict=True):
        index = ctx.cast(name, "int64")
        negative = ctx.apply("LT", index, 0, dtype="int64")
        wrapped = ctx.apply("ADD", index, size, dtype="int64")
        index = ctx.apply("WHERE", negative, wrapped, index, dtype="int64")
        inside = ctx.emit(
            "LOGICAL_AND",
            [
                ctx.apply("GE", index, 0, dtype="int64"),
                ctx.apply("LT", index, size, dtype="int64"),
            ],
        )
        if not place:
            place, valid = index, inside
            continue
        place = ctx.emit("ADD", [ctx.apply("MUL", place, size, dtype="int64"), index])
        valid = ctx.emit("LOGICAL_AND", [valid, inside])
    return ctx.apply("WHERE", valid, place, math.prod(sizes), dtype="int64")
