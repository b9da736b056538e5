"""Reading elements at given places."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from torch.fx import Node

from taper_frontend.lowering.measured import places_of
from taper_frontend.lowering.registry import lowers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from taper_frontend.lowering.context import Lowering
    from taper_runtime.ops.opdef import Shape

    #: Combines the rows ``[indices, columns]`` of each bag, by their maximum where the number that
    #: changes nothing is infinite, else by their sum.
    Combine = Callable[[str, float], str]

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
    """Take rows of a table."""
    return ctx.emit("EMBEDDING", [weight, indices])


@lowers("aten.index_select.default")
def index_select(ctx: Lowering, x: str, dim: int, index: str) -> str:
    """Take elements of one axis at the places in a vector."""
    inputs = [ctx.at_least_1d(x), ctx.at_least_1d(index)]
    y = ctx.emit("INDEX_SELECT", inputs, axis=ctx.axis(x, dim))
    return ctx.reshape(y, ctx.output.shape)


@lowers("aten.take.default")
def take(ctx: Lowering, x: str, index: str) -> str:
    """Take elements of the flattened tensor."""
    return ctx.emit("INDEX_SELECT", [ctx.flat(x), index], axis=0)


@lowers("aten.gather.default")
def gather(ctx: Lowering, x: str, dim: int, index: str, *, sparse_grad: bool = False) -> str:
    """Take, along one axis, the element each index names in its own line.

    torch takes an empty index of any rank.
    """
    if not ctx.type(index).size:
        return ctx.full(ctx.output.shape, 0, ctx.output.dtype)
    inputs = [ctx.at_least_1d(x), ctx.at_least_1d(as_index(ctx, index))]
    y = ctx.emit("GATHER", inputs, axis=ctx.axis(x, dim))
    return ctx.reshape(y, ctx.output.shape)


@lowers("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index(ctx: Lowering, x: str, indices: Sequence[str | None]) -> str:
    """Take elements at the places that broadcast index tensors name together."""
    located = locate(ctx, x, indices, lambda axis: ctx.output.shape[axis])
    if located is None:
        return x
    y = ctx.emit("INDEX_SELECT", [located.source, located.places], axis=located.axis)
    return ctx.reshape(y, ctx.output.shape)


#: How ``mode`` is spelled.
_SUM, _MEAN, _MAX = 0, 1, 2


@lowers("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
def embedding_bag(
    ctx: Lowering,
    weight: str,
    indices: str,
    offsets: str,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: str | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[str, None, None, None]:
    """Combine the rows of each bag; ``offsets`` says where in ``indices`` each begins.

    The rows at ``padding_idx`` take no part. The other results are for training only.
    """
    bags = ctx.output.shape[0]
    count = ctx.shape(indices)[0]
    dtype = ctx.dtype(weight)
    combine = _combine_equal(ctx, bags, count) or _combine_any(
        ctx, bags, ctx.slice(offsets, 0, 0, bags) if include_last_offset else offsets, count
    )
    rows = ctx.emit("EMBEDDING", [weight, indices])
    if per_sample_weights is not None:
        scale = ctx.reshape(ctx.cast(per_sample_weights, dtype), (count, 1))
        rows = ctx.emit("MUL", [rows, scale])
    present = ctx.full((count, 1), True, "bool")
    if padding_idx >= 0:
        present = ctx.apply("NE", indices, padding_idx, dtype=ctx.dtype(indices))
        present = ctx.reshape(present, (count, 1))
    neutral = -math.inf if mode == _MAX else 0
    if padding_idx >= 0:
        rows = ctx.apply("WHERE", present, rows, neutral, dtype=dtype)

    total = combine(rows, neutral)
    if mode == _SUM:
        return total, None, None, None
    size = combine(ctx.cast(present, dtype), 0)
    if mode == _MEAN:
        size = ctx.apply("MAXIMUM", size, 1, dtype=dtype)
        return ctx.emit("DIV", [total, size]), None, None, None
    is_empty = ctx.apply("EQ", size, 0, dtype=dtype)
    return ctx.apply("WHERE", is_empty, 0, total, dtype=dtype), None, None, None


def _combine_equal(ctx: Lowering, bags: int, count: int) -> Combine | None:
    """Combine bags of one length, which a matrix of indices has; None where they may differ."""
    offsets = ctx.node.args[2]
    if not isinstance(offsets, Node) or str(offsets.target) != "aten.arange.start_step":
        return None
    start, _, step, *_ = (*offsets.args, 1)
    if start != 0 or not isinstance(step, int) or bags * step != count:
        return None

    def combine(rows: str, neutral: float) -> str:
        apart = ctx.reshape(rows, (bags, step, ctx.shape(rows)[1]))
        return ctx.emit("AMAX" if neutral else "SUM", [apart], axes=(1,))

    return combine


def _combine_any(ctx: Lowering, bags: int, starts: str, count: int) -> Combine:
    """Combine bags that begin where ``starts`` says."""
    places = ctx.emit("ARANGE", [], start=0, stop=count)
    bag = ctx.emit("SEARCHSORTED", [ctx.cast(starts, "int64"), places], right=True)
    bag = ctx.reshape(ctx.apply("SUB", bag, 1, dtype="int64"), (count, 1))

    def combine(rows: str, neutral: float) -> str:
        columns = ctx.shape(rows)[1]
        into = ctx.full((bags, columns), neutral, ctx.dtype(rows))
        index = ctx.expand(bag, (count, columns))
        reduce = "amax" if neutral else "sum"
        return ctx.emit("SCATTER", [into, index, rows], axis=0, reduce=reduce)

    return combine


def as_index(ctx: Lowering, index: str) -> str:
    """Widen the small integers that torch takes as indices too."""
    return index if ctx.dtype(index) in _INDEX_DTYPES else ctx.cast(index, "int64")


class Located(NamedTuple):
    """Several index tensors turned into one.

    Attributes
    ----------
    source : str
        The indexed tensor, its indexed axes merged into one.
    axis : int
        The merged axis.
    places : str
        int32 or int64, of the shape the index tensors broadcast to: places on the merged axis.
    order : tuple of int
        How the axes of the indexed tensor were permuted before the merge.
    """

    source: str
    axis: int
    places: str
    order: tuple[int, ...]


def locate(
    ctx: Lowering, x: str, indices: Sequence[str | None], count: Callable[[int], int]
) -> Located | None:
    """Merge the indexed axes of ``x`` into one, and the index tensors likewise.

    Indexed axes that lie apart move to the front, which is where torch puts the result's axes too.
    None if nothing is indexed. ``count(axis)`` is how many places a mask over axes from ``axis`` on
    has.
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
    """Turn a mask over some axes into the places where it is set."""
    ((axis, mask), *more) = given.items()
    if more:
        ctx.unsupported("expected a mask alone, got one beside other indices")
    shape, behind = ctx.shape(x), axis + ctx.rank(mask)
    merged = (*shape[:axis], math.prod(shape[axis:behind]), *shape[behind:])
    places = places_of(ctx, mask, count(axis))
    return Located(ctx.reshape(x, merged), axis, places, tuple(range(ctx.rank(x))))


def _merge(ctx: Lowering, indices: Sequence[str], sizes: Shape) -> str:
    """Return the places in the merged axis; where an index is out of range, so is the place."""
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
