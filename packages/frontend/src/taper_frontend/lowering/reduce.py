"""Lower reductions and scans."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from taper_frontend.lowering.handlers import lowers
from taper_frontend.lowering.representation import is_complex

if TYPE_CHECKING:
    from taper_frontend.lowering.context import Lowering

Dims = int | list[int] | None


@lowers("aten.sum.default", "aten.sum.dim_IntList")
def sum_(
    ctx: Lowering, x: str, dim: Dims = None, keepdim: bool = False, *, dtype: str | None = None
) -> str:
    """Sum in the dtype of the result: int64 for integers and bools."""
    return _reduce(ctx, "SUM", ctx.cast(x, ctx.output.dtype), dim, keepdim)


@lowers("aten.mean.default", "aten.mean.dim")
def mean(
    ctx: Lowering, x: str, dim: Dims = None, keepdim: bool = False, *, dtype: str | None = None
) -> str:
    """Average, in the dtype of the result."""
    return _reduce(ctx, "MEAN", ctx.cast(x, ctx.output.dtype), dim, keepdim)


@lowers("aten.prod.default", "aten.prod.dim_int")
def prod(
    ctx: Lowering, x: str, dim: Dims = None, keepdim: bool = False, *, dtype: str | None = None
) -> str:
    """Multiply, in the dtype of the result."""
    if ctx.output.dtype == "bool":
        return _reduce_bool(ctx, "ALL", x, dim, keepdim)
    return _reduce(ctx, "PROD", ctx.cast(x, ctx.output.dtype), dim, keepdim)


@lowers("aten.amax.default", "aten.max.default")
def amax(ctx: Lowering, x: str, dim: Dims = None, keepdim: bool = False) -> str:
    """Return the largest element; NaN if there is one."""
    return _reduce(ctx, "AMAX", x, dim, keepdim)


@lowers("aten.amin.default", "aten.min.default")
def amin(ctx: Lowering, x: str, dim: Dims = None, keepdim: bool = False) -> str:
    """Return the smallest element; NaN if there is one."""
    return _reduce(ctx, "AMIN", x, dim, keepdim)


@lowers("aten.any.default", "aten.any.dim", "aten.any.dims")
def any_(ctx: Lowering, x: str, dim: Dims = None, keepdim: bool = False) -> str:
    """Return whether an element is not zero; an empty list of dimensions reduces none."""
    return _reduce_bool(ctx, "ANY", x, dim, keepdim)


@lowers("aten.all.default", "aten.all.dim", "aten.all.dims")
def all_(ctx: Lowering, x: str, dim: Dims = None, keepdim: bool = False) -> str:
    """Return whether no element is zero; an empty list of dimensions reduces none."""
    return _reduce_bool(ctx, "ALL", x, dim, keepdim)


@lowers("aten.max.dim")
def max_dim(ctx: Lowering, x: str, dim: int, keepdim: bool = False) -> tuple[str, str]:
    """Return the largest element along an axis and its first position."""
    return _reduce(ctx, "AMAX", x, dim, keepdim), _arg(ctx, "ARGMAX", x, dim, keepdim)


@lowers("aten.min.dim")
def min_dim(ctx: Lowering, x: str, dim: int, keepdim: bool = False) -> tuple[str, str]:
    """Return the smallest element along an axis and its first position."""
    return _reduce(ctx, "AMIN", x, dim, keepdim), _arg(ctx, "ARGMIN", x, dim, keepdim)


@lowers("aten.argmax.default")
def argmax(ctx: Lowering, x: str, dim: int | None = None, keepdim: bool = False) -> str:
    """Return the first position of the largest element."""
    return _arg(ctx, "ARGMAX", x, dim, keepdim)


@lowers("aten.argmin.default")
def argmin(ctx: Lowering, x: str, dim: int | None = None, keepdim: bool = False) -> str:
    """Return the first position of the smallest element."""
    return _arg(ctx, "ARGMIN", x, dim, keepdim)


@lowers("aten.var.correction")
def var(
    ctx: Lowering,
    x: str,
    dim: Dims = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> str:
    """Compute the variance; ``correction``, by default 1, is subtracted from the count."""
    x = ctx.at_least_1d(x)
    y = ctx.emit(
        "VAR",
        [x],
        axes=_axes(ctx, x, dim),
        keepdim=keepdim,
        correction=1.0 if correction is None else float(correction),
    )
    return ctx.reshape(y, ctx.output.shape)


@lowers("aten.var.dim")
def var_dim(
    ctx: Lowering, x: str, dim: Dims = None, unbiased: bool = True, keepdim: bool = False
) -> str:
    """Compute the variance, in the older form of its arguments."""
    return var(ctx, x, dim, correction=int(unbiased), keepdim=keepdim)


@lowers("aten.var_mean.correction")
def var_mean(
    ctx: Lowering,
    x: str,
    dim: Dims = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[str, str]:
    """Compute variance and mean."""
    variance = var(ctx, x, dim, correction=correction, keepdim=keepdim)
    return variance, _reduce(ctx, "MEAN", x, dim, keepdim)


@lowers("aten.linalg_vector_norm.default")
def vector_norm(
    ctx: Lowering,
    x: str,
    ord: float = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: str | None = None,
) -> str:
    """Compute ``sum(|x| ** ord) ** (1 / ord)`` or its limit for 0 and infinities."""
    return norm_over(ctx, x, ord, dim, keepdim)


def norm_over(ctx: Lowering, x: str, ord: float, dim: Dims, keepdim: bool) -> str:
    """Emit a norm over dimensions, in the dtype of the result."""
    dtype = ctx.output.dtype
    x = ctx.cast(ctx.emit("ABS", [x]) if is_complex(ctx.dtype(x)) else x, dtype)
    if ord == 2:
        return ctx.emit("SQRT", [_reduce(ctx, "SUM", ctx.emit("SQUARE", [x]), dim, keepdim)])
    if ord == 0:
        counted = ctx.cast(ctx.apply("NE", x, 0, dtype=dtype), dtype)
        return _reduce(ctx, "SUM", counted, dim, keepdim)
    size = ctx.emit("ABS", [x])
    if math.isinf(ord):
        return _reduce(ctx, "AMAX" if ord > 0 else "AMIN", size, dim, keepdim)
    if ord == 1:
        return _reduce(ctx, "SUM", size, dim, keepdim)
    total = _reduce(ctx, "SUM", ctx.apply("POW", size, ord, dtype=dtype), dim, keepdim)
    return ctx.apply("POW", total, 1 / ord, dtype=dtype)


@lowers("aten.cumsum.default")
def cumsum(ctx: Lowering, x: str, dim: int, *, dtype: str | None = None) -> str:
    """Return running sums, in the dtype of the result."""
    return _scan(ctx, "CUMSUM", x, dim)


@lowers("aten.cumprod.default")
def cumprod(ctx: Lowering, x: str, dim: int, *, dtype: str | None = None) -> str:
    """Return running products, in the dtype of the result."""
    return _scan(ctx, "CUMPROD", x, dim)


@lowers("aten.logcumsumexp.default")
def logcumsumexp(ctx: Lowering, x: str, dim: int) -> str:
    """Compute the logarithm of the running sum of exponentials."""
    return _scan(ctx, "LOGCUMSUMEXP", x, dim)


@lowers("aten.cummax.default")
def cummax(ctx: Lowering, x: str, dim: int) -> tuple[str, str]:
    """Return the largest element up to each position, and its last position."""
    return _running(ctx, "MAX", x, dim)


@lowers("aten.cummin.default")
def cummin(ctx: Lowering, x: str, dim: int) -> tuple[str, str]:
    """Return the smallest element up to each position, and its last position."""
    return _running(ctx, "MIN", x, dim)


def _running(ctx: Lowering, op: str, x: str, dim: int) -> tuple[str, str]:
    shape = ctx.shape(x)
    x = ctx.at_least_1d(x)
    axis = ctx.axis(x, dim)
    values = ctx.emit(f"CUM{op}", [x], axis=axis)
    places = ctx.emit(f"CUMARG{op}", [x], axis=axis)
    return ctx.reshape(values, shape), ctx.reshape(places, shape)


def _axes(ctx: Lowering, x: str, dim: Dims) -> list[int]:
    """Return the axes to reduce, sorted; all of them for None and for an empty list."""
    if dim is None or dim == []:
        return list(range(ctx.rank(x)))
    dims = [dim] if isinstance(dim, int) else dim
    return sorted(ctx.axis(x, d) for d in dims) if ctx.rank(x) else []


def _reduce(ctx: Lowering, op: str, x: str, dim: Dims, keepdim: bool) -> str:
    return ctx.emit(op, [x], axes=_axes(ctx, x, dim), keepdim=keepdim)


def _reduce_bool(ctx: Lowering, op: str, x: str, dim: Dims, keepdim: bool) -> str:
    result = ctx.cast(x, "bool")
    if dim != []:
        result = _reduce(ctx, op, result, dim, keepdim)
    return ctx.cast(result, ctx.output.dtype)  # the result of uint8 is uint8


def _arg(ctx: Lowering, op: str, x: str, dim: int | None, keepdim: bool) -> str:
    """Emit ARGMAX or ARGMIN; without a dimension, over the flattened tensor."""
    shape = ctx.shape(x)
    if ctx.dtype(x) == "bool":
        x = ctx.cast(x, "int32")
    x = ctx.flat(x) if dim is None else ctx.at_least_1d(x)
    axis = 0 if dim is None else ctx.axis(x, dim)
    index = ctx.emit(op, [x], axis=axis)
    if dim is None:
        return ctx.reshape(index, ctx.output.shape)
    result = (*shape[:axis], *([1] if keepdim else []), *shape[axis + 1 :]) if shape else ()
    return ctx.reshape(index, result)


def _scan(ctx: Lowering, op: str, x: str, dim: int) -> str:
    y = ctx.cast(ctx.at_least_1d(x), ctx.output.dtype)
    return ctx.reshape(ctx.emit(op, [y], axis=ctx.axis(y, dim)), ctx.output.shape)


@lowers("aten.histc.default")
def histc(ctx: Lowering, x: str, bins: int = 100, min: float = 0, max: float = 0) -> str:
    """Count the elements in each of ``bins`` equal parts of ``[min, max]``.

    If ``min`` and ``max`` are equal the range is that of the elements. If these are all equal, too,
    the range is widened around them.
    """
    dtype = ctx.output.dtype
    x = ctx.flat(x)
    low, high = ctx.full((), min, dtype), ctx.full((), max, dtype)
    if min == max and ctx.type(x).size:
        low = ctx.emit("AMIN", [x], axes=(0,))
        high = ctx.emit("AMAX", [x], axes=(0,))
        same = ctx.emit("EQ", [low, high])
        low, high = (
            ctx.emit("WHERE", [same, ctx.apply("ADD", end, by, dtype=dtype), end])
            for end, by in ((low, -1), (high, 1))
        )
    width = ctx.emit("SUB", [high, low])
    place = ctx.apply("MUL", ctx.emit("SUB", [x, low]), bins, dtype=dtype)
    place = ctx.emit("FLOOR", [ctx.emit("DIV", [place, width])])
    # the last part includes its upper end; a part beyond it has what is outside
    place = ctx.apply("MINIMUM", place, bins - 1, dtype=dtype)
    inside = ctx.emit("LOGICAL_AND", [ctx.emit("LE", [low, x]), ctx.emit("LE", [x, high])])
    place = ctx.cast(ctx.apply("WHERE", inside, place, bins, dtype=dtype), "int32")
    zeros, ones = ctx.full((bins + 1,), 0, "int32"), ctx.full(ctx.shape(x), 1, "int32")
    counts = ctx.emit("SCATTER", [zeros, place, ones], axis=0, reduce="sum")
    return ctx.cast(ctx.slice(counts, 0, 0, bins), dtype)
