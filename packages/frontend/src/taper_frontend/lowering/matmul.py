"""Lower matrix products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.lowering.handlers import lowers

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
    """Multiply like ``torch.matmul``, for every pair of ranks."""
    return ctx.emit("MATMUL", [a, b])


@lowers("aten.linear.default")
def linear(ctx: Lowering, x: str, weight: str, bias: str | None = None) -> str:
    """Compute ``x @ weight.T + bias``; a weight of rank 1 is one row."""
    if ctx.rank(weight) == 2:
        weight = ctx.emit("TRANSPOSE", [weight], axis0=0, axis1=1)
    y = ctx.emit("MATMUL", [x, weight])
    return y if bias is None else ctx.emit("ADD", [y, bias])


@lowers("aten.bilinear.default")
def bilinear(ctx: Lowering, a: str, b: str, weight: str, bias: str | None = None) -> str:
    """Compute ``a @ w @ b`` for each matrix ``w`` of the weight; ``a`` is multiplied first."""
    outputs, rows, columns = ctx.shape(weight)
    batch = ctx.shape(a)[:-1]
    flat = ctx.reshape(ctx.permute(weight, (1, 0, 2)), (rows, outputs * columns))
    half = ctx.reshape(ctx.emit("MATMUL", [a, flat]), (*batch, outputs, columns))
    y = ctx.emit("MATMUL", [half, ctx.reshape(b, (*batch, columns, 1))])
    y = ctx.reshape(y, (*batch, outputs))
    return y if bias is None else ctx.emit("ADD", [y, bias])


@lowers("aten.addmm.default", "aten.addmv.default", "aten.baddbmm.default")
def addmm(ctx: Lowering, x: str, a: str, b: str, beta: float = 1, alpha: float = 1) -> str:
    """Compute ``beta * x + alpha * (a @ b)``; if ``beta`` is 0, ``x`` is ignored, even NaN."""
    dtype = ctx.output.dtype
    y = ctx.emit("MATMUL", [a, b])
    if alpha != 1:
        y = ctx.apply("MUL", y, alpha, dtype=dtype)
    if beta == 0:
        return y
    if beta != 1:
        x = ctx.apply("MUL", x, beta, dtype=dtype)
    return ctx.emit("ADD", [y, x])


@lowers("aten._grouped_mm.default", "transformers.grouped_mm_fallback.default")
def grouped_mm(
    ctx: Lowering,
    a: str,
    b: str,
    offs: str | None = None,
    bias: str | None = None,
    out_dtype: str | None = None,
) -> str:
    """Multiply each group of rows by its own matrix; ``offs`` has the ends of the groups."""
    if offs is None or (ctx.rank(a), ctx.rank(b)) != (2, 3):
        ctx.unsupported("expected groups of rows: offs, a of rank 2 and b of rank 3")
    y = ctx.emit("GROUPED_MATMUL", [a, b, offs])
    if bias is not None:
        y = ctx.emit("ADD", [y, bias])
    return ctx.cast(y, ctx.output.dtype)


@lowers("aten.addbmm.default")
def addbmm(ctx: Lowering, x: str, a: str, b: str, beta: float = 1, alpha: float = 1) -> str:
    """Compute ``beta * x + alpha * sum(a @ b)``, the sum over the batch."""
    dtype = ctx.output.dtype
    y = ctx.emit("SUM", [ctx.emit("MATMUL", [a, b])], axes=[0])
    if alpha != 1:
        y = ctx.apply("MUL", y, alpha, dtype=dtype)
    if beta == 0:
        return y
    return ctx.emit("ADD", [x if beta == 1 else ctx.apply("MUL", x, beta, dtype=dtype), y])
