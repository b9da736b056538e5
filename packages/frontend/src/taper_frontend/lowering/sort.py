"""Sorting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.lowering.registry import lowers

if TYPE_CHECKING:
    from taper_frontend.lowering.context import Lowering


@lowers("aten.sort.default")
def sort(ctx: Lowering, x: str, dim: int = -1, descending: bool = False) -> tuple[str, str]:
    """Sort along an axis; also tell where each was. Equal elements keep their order."""
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
    """Sort as :func:`sort` does, which is stable."""
    return sort(ctx, x, dim, descending)


@lowers("aten.topk.default")
def topk(
    ctx: Lowering, x: str, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[str, str]:
    """Take the first ``k`` in order along an axis; also tell where each was."""
    return _take(ctx, ctx.at_least_1d(x), dim, k, largest)


def _take(ctx: Lowering, x: str, dim: int, count: int, descending: bool) -> tuple[str, str]:
    axis = ctx.axis(x, dim)
    order = ctx.slice(ctx.emit("ARGSORT", [x], axis=axis, descending=descending), axis, 0, count)
    values = ctx.emit("GATHER", [x, order], axis=axis)
    shape = ctx.output.shape
    return ctx.reshape(values, shape), ctx.reshape(order, shape)
