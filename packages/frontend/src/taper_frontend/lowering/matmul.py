"""Matrix products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.lowering.registry import lowers

if TYPE_CHECKING:
    from taper_frontend.lowering.context import Lowering


@lowers(
    "aten.bmm.default",
    "aten.dot.default",
    "aten.matmul.default",
    "aten.mm.default",
    "aten.mv.default",
)
def matmul(ctx: Lowering, a: str, b: str) -> str:
    """Multiply as ``torch.matmul`` does for every pair of ranks."""
    return ctx.emit("MATMUL", [a, b])


@lowers("aten.linear.default")
def linear(ctx: Lowering, x: str, weight: str, bias: str | None = None) -> str:
    """Compute ``x @ weight.T + bias``; a weight of rank 1 is one row."""
    if ctx.rank(weight) == 2:
        weight = ctx.emit("TRANSPOSE", [weight], axis0=0, axis1=1)
    y = ctx.emit("MATMUL", [x, weight])
    return y if bias is None else ctx.emit("ADD", [y, bias])


@lowers("aten.addmm.default", "aten.addmv.default", "aten.baddbmm.default")
def addmm(ctx: Lowering, x: str, a: str, b: str, beta: float = 1, alpha: float = 1) -> str:
    """Compute ``beta * x + alpha * (a @ b)``; a ``beta`` of 0 leaves ``x`` out, NaN and all."""
    dtype = ctx.output.dtype
    y = ctx.emit("MATMUL", [a, b])
    if alpha != 1:
        y = ctx.apply("MUL", y, alpha, dtype=dtype)
    if beta == 0:
        return y
    if beta != 1:
        x = ctx.apply("MUL", x, beta, dtype=dtype)
    return ctx.emit("ADD", [y, x])
