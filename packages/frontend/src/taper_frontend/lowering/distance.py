"""Lower distances between points."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_frontend.lowering.handlers import lowers
from taper_frontend.lowering.reduce import norm_over

if TYPE_CHECKING:
    from taper_frontend.lowering.context import Lowering


@lowers("aten._cdist_forward.default")
def cdist(ctx: Lowering, a: str, b: str, p: float, compute_mode: int | None) -> str:
    """Compute the p-norm of the difference of every row of ``a`` and every row of ``b``."""
    one, other = ctx.shape(a), ctx.shape(b)
    a = ctx.reshape(a, (*one[:-1], 1, one[-1]))
    b = ctx.reshape(b, (*other[:-2], 1, *other[-2:]))
    return _norm(ctx, ctx.emit("SUB", [a, b]), p)


@lowers("aten._pdist_forward.default")
def pdist(ctx: Lowering, x: str, p: float = 2) -> str:
    """Compute the p-norm of the difference of every two rows."""
    first, second = (ctx.constant(i) for i in np.triu_indices(ctx.shape(x)[0], 1))
    a, b = (ctx.emit("INDEX_SELECT", [x, index], axis=0) for index in (first, second))
    return _norm(ctx, ctx.emit("SUB", [a, b]), p)


@lowers("aten.dist.default")
def dist(ctx: Lowering, a: str, b: str, p: float = 2) -> str:
    """Compute the p-norm of the difference of two tensors."""
    difference = ctx.apply("SUB", a, b, dtype=ctx.result_dtype(a, b))
    return norm_over(ctx, difference, p, None, keepdim=False)


def _norm(ctx: Lowering, x: str, p: float) -> str:
    if not ctx.shape(x)[-1]:
        return ctx.full(ctx.output.shape, 0, ctx.output.dtype)
    return norm_over(ctx, x, p, [-1], keepdim=False)
