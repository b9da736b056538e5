"""Lower sorting, and ops that derive from an order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.lowering.elementwise import is_float
from taper_frontend.lowering.handlers import lowers

if TYPE_CHECKING:
    from taper_frontend.lowering.context import Lowering, Operand


@lowers("aten.sort.default")
def sort(ctx: Lowering, x: str, dim: int = -1, descending: bool = False) -> tuple[str, str]:
    """Sort along an axis; also return the position that each element had. It is stable."""
    vector = ctx.at_least_1d(x)
    return _take(ctx, vector, dim, ctx.shape(vector)[dim], descending)


@lowers("aten.sort.stable")
def sort_stable(
    ctx: Lowering,
    x: str,
    *,
    stable: bool | None = None,
    dim: int = -1,
    descending: bool = False,
) -> tuple[str, str]:
    """Sort like :func:`sort`, which is stable."""
    return sort(ctx, x, dim, descending)


@lowers("aten.topk.default")
def topk(
    ctx: Lowering, x: str, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[str, str]:
    """Return the first ``k`` in order along an axis, and their positions: always sorted."""
    return _take(ctx, ctx.at_least_1d(x), dim, k, largest)


def _take(ctx: Lowering, x: str, dim: int, count: int, descending: bool) -> tuple[str, str]:
    axis = ctx.axis(x, dim)
    order = ctx.emit("ARGSORT", [x], axis=axis, descending=descending, count=count)
    values = ctx.emit("GATHER", [x, order], axis=axis)
    shape = ctx.output.shape
    return ctx.reshape(values, shape), ctx.reshape(order, shape)


@lowers("aten.kthvalue.default")
def kthvalue(
    ctx: Lowering, x: str, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[str, str]:
    """Return the ``k``-th smallest element along an axis and its position; NaN is the largest."""
    x = ctx.at_least_1d(x)
    axis = ctx.axis(x, dim)
    order = ctx.emit("ARGSORT", [x], axis=axis, count=k)
    return _values_at(ctx, x, ctx.slice(order, axis, k - 1, k), axis)


@lowers("aten.median.dim")
def median_dim(ctx: Lowering, x: str, dim: int, keepdim: bool = False) -> tuple[str, str]:
    """Return the lower median along an axis and its position; NaN if any element is NaN."""
    x = ctx.at_least_1d(x)
    return _values_at(ctx, x, _median(ctx, x, ctx.axis(x, dim)), ctx.axis(x, dim))


@lowers("aten.nanmedian.dim")
def nanmedian_dim(ctx: Lowering, x: str, dim: int, keepdim: bool = False) -> tuple[str, str]:
    """Return the lower median of the numbers along an axis, and its position."""
    x = ctx.at_least_1d(x)
    return _values_at(ctx, x, _nanmedian(ctx, x, ctx.axis(x, dim)), ctx.axis(x, dim))


@lowers("aten.median.default", "aten.nanmedian.default")
def median(ctx: Lowering, x: str) -> str:
    """Return the lower median of all elements, or of all numbers."""
    if not ctx.type(x).size:
        ctx.unsupported("expected elements, got an empty tensor")
    x = ctx.flat(x)
    skips = ctx.aten == "nanmedian"
    place = (_nanmedian if skips else _median)(ctx, x, 0)
    return _values_at(ctx, x, place, 0)[0]


def _median(ctx: Lowering, x: str, axis: int) -> str:
    size = ctx.shape(x)[axis]
    count = (size - 1) // 2 + 1
    order = ctx.emit("ARGSORT", [x], axis=axis, count=count)
    middle = ctx.slice(order, axis, count - 1, count)
    if not is_float(ctx.dtype(x)):
        return middle
    largest = ctx.emit("ARGMAX", [x], axis=axis, keepdim=True)  # the position of the first NaN
    is_nan = ctx.emit("ISNAN", [ctx.emit("GATHER", [x, largest], axis=axis)])
    return ctx.apply("WHERE", is_nan, largest, middle, dtype="int64")


def _nanmedian(ctx: Lowering, x: str, axis: int) -> str:
    if not is_float(ctx.dtype(x)):
        return _median(ctx, x, axis)
    order = ctx.emit("ARGSORT", [x], axis=axis)
    is_number = ctx.emit("LOGICAL_NOT", [ctx.emit("ISNAN", [x])])
    count = ctx.emit("SUM", [ctx.cast(is_number, "int64")], axes=[axis], keepdim=True)
    middle = ctx.apply("SUB", count, 1, dtype="int64")
    middle = ctx.apply("FLOOR_DIV", middle, 2, dtype="int64")
    middle = ctx.apply("MAXIMUM", middle, 0, dtype="int64")
    return ctx.emit("GATHER", [order, middle], axis=axis)


def _values_at(ctx: Lowering, x: str, place: str, axis: int) -> tuple[str, str]:
    values = ctx.emit("GATHER", [x, place], axis=axis)
    shape = ctx.output.shape
    return ctx.reshape(values, shape), ctx.reshape(place, shape)


@lowers("aten.searchsorted.Tensor", "aten.searchsorted.Scalar")
def searchsorted(
    ctx: Lowering,
    rows: str,
    values: Operand,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: str | None = None,
) -> str:
    """Count the elements of sorted rows before each value."""
    if sorter is not None:
        rows = ctx.emit("GATHER", [rows, sorter], axis=ctx.rank(rows) - 1)
    return _search(ctx, rows, values, right or side == "right")


@lowers("aten.bucketize.Tensor", "aten.bucketize.Scalar")
def bucketize(
    ctx: Lowering,
    values: Operand,
    boundaries: str,
    *,
    out_int32: bool = False,
    right: bool = False,
) -> str:
    """Count the boundaries before each value."""
    return _search(ctx, boundaries, values, right)


def _search(ctx: Lowering, rows: str, values: Operand, right: bool) -> str:
    dtype = ctx.result_dtype(rows, values)
    if not isinstance(values, str):
        values = ctx.full((), values, dtype)
    inputs = [ctx.cast(rows, dtype), ctx.cast(values, dtype)]
    return ctx.cast(ctx.emit("SEARCHSORTED", inputs, right=right), ctx.output.dtype)
