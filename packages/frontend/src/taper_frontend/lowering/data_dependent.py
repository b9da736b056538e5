"""Lower ops whose results have sizes that depend on values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_frontend.compiler.analysis.static import static_constants
from taper_frontend.compiler.graph.constants import visible
from taper_frontend.lowering.elementwise import is_float
from taper_frontend.lowering.handlers import lowers
from taper_runtime.base.sizes import Size, bounds, linear
from taper_runtime.ops.type_rules import broadcast
from taper_runtime.plan.trees import NUMBERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.compiler.graph import Graph
    from taper_frontend.lowering.context import Lowering
    from taper_runtime.ops.opdef import Shape


@lowers("aten.nonzero.default", "aten.argwhere.default")
def nonzero(ctx: Lowering, x: str) -> str:
    """Return the indices of the elements that are not zero, one row per element."""
    count = ctx.output.shape[0]
    columns = [ctx.reshape(c, (count, 1)) for c in indices_of(ctx, x, count)]
    if not columns:
        return ctx.full((count, 0), 0, "int64")
    return columns[0] if len(columns) == 1 else ctx.emit("CAT", columns, axis=1)


@lowers("aten.nonzero_numpy.default", "aten.where.default")
def nonzero_numpy(ctx: Lowering, x: str) -> list[str]:
    """Return the indices of the nonzero elements, one tensor per axis."""
    x = ctx.at_least_1d(x)
    return indices_of(ctx, x, ctx.output.shape[0])


@lowers("aten.masked_select.default")
def masked_select(ctx: Lowering, x: str, mask: str) -> str:
    """Return the elements for which the mask, broadcast with x, is set."""
    shape = _broadcast(ctx.shape(x), ctx.shape(mask))
    places = places_of(ctx, ctx.expand(mask, shape), ctx.output.shape[0])
    return ctx.emit("INDEX_SELECT", [ctx.flat(ctx.expand(x, shape)), places], axis=0)


@lowers("aten.item.default", "aten._local_scalar_dense.default")
def item(ctx: Lowering, x: str) -> Any:
    """Extract a number from a tensor: a size if possible, else a scalar tensor."""
    size = ctx.bound_size
    if size is None:
        # torch returns Python's int and float, which are 64 bits wide
        if ctx.dtype(x) not in NUMBERS:
            x = ctx.cast(x, "float32" if is_float(ctx.dtype(x)) else "int64")
        return ctx.reshape(x, ())
    source = ctx.cast(x, "int64")
    ctx.measure(size, ctx.reshape(source, () if ctx.rank(source) else (1,)), number=True)
    return size


@lowers("aten._unique2.default")
def unique2(
    ctx: Lowering,
    x: str,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[str, str, str]:
    """Return the distinct elements in order, the index of each element among them, and counts."""
    flat = ctx.flat(x)
    order = ctx.emit("ARGSORT", [flat], axis=0)
    values = ctx.emit("GATHER", [flat, order], axis=0)
    runs = _Runs(ctx, [values], ctx.output.shape[0])
    inverse = counts = ctx.full((0,), 0, "int64")
    if ctx.reads(1) and return_inverse:
        group = ctx.emit("SCATTER", [order, order, runs.number], axis=0)
        inverse = ctx.reshape(group, ctx.shape(x))
    if ctx.reads(2) and return_counts:
        counts = runs.lengths
    return runs.first_of(values), inverse, counts


@lowers("aten.unique_consecutive.default")
def unique_consecutive(
    ctx: Lowering,
    x: str,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> tuple[str, str, str]:
    """Drop consecutive duplicates; also return inverse indices and counts."""
    if dim is not None:
        ctx.unsupported("expected unique_consecutive of all elements, got one along an axis")
    values = ctx.flat(x)
    runs = _Runs(ctx, [values], ctx.output.shape[0])
    inverse = counts = ctx.full((0,), 0, "int64")
    if ctx.reads(1) and return_inverse:
        inverse = ctx.reshape(runs.number, ctx.shape(x))
    if ctx.reads(2) and return_counts:
        counts = runs.lengths
    return runs.first_of(values), inverse, counts


@lowers("aten.unique_dim.default")
def unique_dim(
    ctx: Lowering,
    x: str,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[str, str, str]:
    """Return the distinct slices along an axis, in lexicographic order."""
    axis, shape = ctx.axis(x, dim), ctx.shape(x)
    others = (*shape[:axis], *shape[axis + 1 :])
    columns = math.prod(others)
    if isinstance(columns, Size) or not 0 < columns <= _MOST_COLUMNS:
        ctx.unsupported(f"expected slices of 1 to {_MOST_COLUMNS} elements, got {columns}")
    rows = ctx.permute(x, [axis, *(a for a in range(len(shape)) if a != axis)])
    rows = ctx.reshape(rows, (shape[axis], columns))
    order = ctx.emit("ARANGE", [], start=0, stop=shape[axis])
    for column in reversed(range(columns)):  # the sort is stable, so the last key is sorted first
        keys = ctx.reshape(ctx.slice(rows, 1, column, column + 1), (shape[axis],))
        by_key = ctx.emit("ARGSORT", [ctx.emit("GATHER", [keys, order], axis=0)], axis=0)
        order = ctx.emit("GATHER", [order, by_key], axis=0)
    in_order = ctx.emit("INDEX_SELECT", [rows, order], axis=0)
    keys_in_order = [
        ctx.reshape(ctx.slice(in_order, 1, column, column + 1), (shape[axis],))
        for column in range(columns)
    ]
    runs = _Runs(ctx, keys_in_order, ctx.output.shape[axis])
    inverse = ctx.emit("SCATTER", [order, order, runs.number], axis=0)
    taken = ctx.emit("INDEX_SELECT", [order, runs.firsts], axis=0)
    return ctx.emit("INDEX_SELECT", [x, taken], axis=axis), inverse, runs.lengths


#: The most keys by which rows are sorted.
_MOST_COLUMNS = 64


class _Runs:
    """Runs of equal elements in vectors that are compared together.

    Attributes
    ----------
    firsts : str
        The start of each run.
    """

    def __init__(self, ctx: Lowering, vectors: Sequence[str], count: int) -> None:
        self._ctx, self._count = ctx, count
        (self._length,) = ctx.shape(vectors[0])
        self._begins = self._find(vectors)
        self.firsts = places_of(ctx, self._begins, count)

    def _find(self, vectors: Sequence[str]) -> str:
        ctx, length = self._ctx, self._length
        place = ctx.emit("ARANGE", [], start=0, stop=length)
        before = ctx.apply("MAXIMUM", ctx.apply("SUB", place, 1, dtype="int64"), 0, dtype="int64")
        begins = ctx.apply("EQ", place, 0, dtype="int64")
        for vector in vectors:
            other = ctx.emit("GATHER", [vector, before], axis=0)
            begins = ctx.emit("LOGICAL_OR", [begins, ctx.emit("NE", [vector, other])])
        return begins

    def first_of(self, vector: str) -> str:
        """Return the first element of each run."""
        return self._ctx.emit("INDEX_SELECT", [vector, self.firsts], axis=0)

    @property
    def number(self) -> str:
        """Return the number of the run of each element."""
        ctx = self._ctx
        begun = ctx.emit("CUMSUM", [ctx.cast(self._begins, "int64")], axis=0)
        return ctx.apply("SUB", begun, 1, dtype="int64")

    @property
    def lengths(self) -> str:
        """Return how many elements each run has."""
        ctx = self._ctx
        ones = ctx.full((self._length,), 1, "int64")
        zeros = ctx.full((self._count,), 0, "int64")
        return ctx.emit("SCATTER", [zeros, self.number, ones], axis=0, reduce="sum")


@lowers("aten.repeat_interleave.Tensor")
def repeat_interleave(ctx: Lowering, repeats: str, *, output_size: int | None = None) -> str:
    """Repeat each index as often as its count says."""
    return _repeated(ctx, repeats, ctx.output.shape[0])


@lowers("aten.repeat_interleave.self_Tensor")
def repeat_interleave_of(
    ctx: Lowering,
    x: str,
    repeats: str,
    dim: int | None = None,
    *,
    output_size: int | None = None,
) -> str:
    """Repeat each slice along an axis as often as its count says."""
    if dim is None:
        x, dim = ctx.flat(x), 0
    axis = ctx.axis(x, dim)
    x, repeats = ctx.at_least_1d(x), ctx.at_least_1d(repeats)
    repeats = ctx.expand(repeats, (ctx.shape(x)[axis],))
    index = _repeated(ctx, repeats, ctx.output.shape[axis])
    return ctx.emit("INDEX_SELECT", [x, index], axis=axis)


def _repeated(ctx: Lowering, repeats: str, total: int) -> str:
    """Repeat position i ``repeats[i]`` times; the sum must be ``total``.

    As in torch, negative numbers are refused, and so is a sum that differs from the size in the
    model.
    """
    repeats = ctx.cast(repeats, "int64")
    ends = ctx.emit("CUMSUM", [repeats], axis=0)
    (length,) = ctx.shape(ends)
    negative = ctx.emit(
        "ANY", [ctx.apply("LT", repeats, 0, dtype="int64")], axes=(0,), keepdim=True
    )
    found = ctx.emit("SUM", [repeats], axes=(0,), keepdim=True)
    found = ctx.apply("WHERE", negative, -1, found, dtype="int64")
    measured = ctx.is_unmeasured(total)
    if measured:
        ctx.measure(total, found)
    place = ctx.emit("ARANGE", [], start=0, stop=total)
    if length == 0:
        return place
    index = ctx.emit("SEARCHSORTED", [ends, place], right=True)
    if measured:
        return index
    wrong = ctx.emit("NE", [found, ctx.reshape(ctx.size_value(total, "int64"), (1,))])
    index = ctx.apply("WHERE", wrong, length, index, dtype="int64")  # no tensor has this size
    places = ctx.emit("ARANGE", [], start=0, stop=length)
    return ctx.emit("INDEX_SELECT", [places, index], axis=0)


@lowers("aten.bincount.default")
def bincount(ctx: Lowering, x: str, weights: str | None = None, minlength: int = 0) -> str:
    """Count how often each number occurs, or add up its weights."""
    x = ctx.cast(x, "int64")
    dtype, count = ctx.output.dtype, ctx.output.shape[0]
    numbers = x
    if bounds(ctx.shape(x)[0])[0] < 1:  # -1 beside the numbers, in case there are none
        numbers = ctx.emit("CAT", [x, ctx.full((1,), -1, "int64")], axis=0)
    most = ctx.emit("AMAX", [numbers], axes=(0,), keepdim=True)
    bins = ctx.apply("MAXIMUM", ctx.apply("ADD", most, 1, dtype="int64"), minlength, dtype="int64")
    ctx.measure(count, bins)
    ones = ctx.full(ctx.shape(x), 1, dtype) if weights is None else ctx.cast(weights, dtype)
    zeros = ctx.full((count,), 0, dtype)
    return ctx.emit("SCATTER", [zeros, x, ones], axis=0, reduce="sum", wrap=False)


@lowers("torchvision.nms.default")
def nms(ctx: Lowering, boxes: str, scores: str, iou_threshold: float) -> str:
    """Return the indices of the boxes that non-maximum suppression keeps, best first."""
    order = ctx.emit("ARGSORT", [scores], axis=0, descending=True)
    ordered = ctx.emit("INDEX_SELECT", [boxes, order], axis=0)
    kept = ctx.emit("NMS", [ordered], iou_threshold=iou_threshold)
    return ctx.emit("INDEX_SELECT", [order, places_of(ctx, kept, ctx.output.shape[0])], axis=0)


def places_of(ctx: Lowering, mask: str, count: int) -> str:
    """Return the row-major positions of the nonzero elements, ``count`` of them.

    Parameters
    ----------
    ctx : Lowering
    mask : str
    count : size
        torch's symbol for their number, which gets its value here. If it has one already, the same
        mask must have given it. If torch knows the number, the mask must not depend on inputs.
    """
    if ctx.type(mask).size == 0:  # torch knows how many there are
        return ctx.full((0,), 0, "int64")
    places = ctx.emit("NONZERO", [_as_taken(ctx, mask)])
    if not isinstance(count, Size) and _has_nonzero(ctx, mask, count):
        return ctx.slice(places, 0, 0, count)
    if not ctx.is_unmeasured(count):
        return ctx.slice(_places_counted(ctx, places, count), 0, 0, count)
    end = ctx.reshape(ctx.size_value(ctx.type(mask).size, "int64"), (1,))
    ctx.measure(count, ctx.emit("SEARCHSORTED", [places, end]), harmless=True)
    return ctx.slice(places, 0, 0, count)


def _has_nonzero(ctx: Lowering, mask: str, count: int) -> bool:
    """Return whether so many elements of a mask are not zero in each run."""
    constant = static_constants(ctx.graph).get(mask)
    value = None if constant is None or ctx.taken is not None else visible(constant)
    return value is not None and np.count_nonzero(value) == count


def _as_taken(ctx: Lowering, mask: str) -> str:
    """Return the mask; in a branch that is not taken, one of the first element alone.

    One element is little work, and what needs at least one, such as a maximum, has it.
    """
    if ctx.taken is None:
        return mask
    place = ctx.emit("ARANGE", [], start=0, stop=ctx.type(mask).size)
    first = ctx.apply("EQ", ctx.reshape(place, ctx.shape(mask)), 0, dtype="int64")
    return ctx.if_taken(ctx.apply("NE", mask, 0, dtype=ctx.dtype(mask)), first)


def _places_counted(ctx: Lowering, places: str, count: int) -> str:
    """Return the positions of an earlier count; they must be computed like ``places``."""
    known = linear(count)
    origin = ctx.graph.origins.get(known[0]) if known is not None else None
    counting = None if origin is None else ctx.graph.producers.get(origin[0])
    counted = counting.inputs[0] if counting is not None and counting.op == "SEARCHSORTED" else ""
    if not _are_equal(ctx.graph, counted, places):
        ctx.unsupported(
            "expected one mask as index, and values whose number comes from the same mask or does "
            "not depend on a mask"
        )
    return counted


def _are_equal(graph: Graph, a: str, b: str) -> bool:
    """Return whether two tensors are equal: the same, or computed in the same way."""
    pairs, seen = [(a, b)], set()
    while pairs:
        pair = pairs.pop()
        if pair[0] == pair[1] or pair in seen:
            continue
        seen.add(pair)
        first, second = map(graph.producers.get, pair)
        if (
            first is None
            or second is None
            or first.blocks
            or first.operation != second.operation
            or first.outputs.index(pair[0]) != second.outputs.index(pair[1])
        ):
            return False
        pairs += zip(first.inputs, second.inputs, strict=True)
    return True


def indices_of(ctx: Lowering, mask: str, count: int) -> list[str]:
    """Return the indices of these elements, as a vector per axis."""
    place = places_of(ctx, mask, count)
    shape = ctx.shape(mask)
    columns = []
    for axis, size in enumerate(shape):
        column = _divided(ctx, place, math.prod(shape[axis + 1 :]))
        if axis:
            above = ctx.apply("MUL", _divided(ctx, column, size), size, dtype="int64")
            column = ctx.emit("SUB", [column, above])
        columns.append(column)
    return columns


def _divided(ctx: Lowering, place: str, size: int) -> str:
    """Return ``place // size``, or ``place // 1`` if the size is 0."""
    if isinstance(size, Size):
        divisor = ctx.apply("MAXIMUM", ctx.size_value(size, "int64"), 1, dtype="int64")
        return ctx.emit("FLOOR_DIV", [place, divisor])
    return ctx.apply("FLOOR_DIV", place, max(size, 1), dtype="int64")


def _broadcast(a: Shape, b: Shape) -> Shape:
    """Return the shape to which two shapes broadcast."""
    return broadcast("masked_select", [a, b])
