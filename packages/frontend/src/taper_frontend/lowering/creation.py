"""Tensors made from numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_frontend.lowering.registry import lowers
from taper_runtime.sizes import Size

if TYPE_CHECKING:
    from taper_frontend.lowering.context import Lowering, Operand


@lowers(
    "aten.linspace.default",
    "aten.scalar_tensor.default",
    "aten.tril_indices.default",
    "aten.triu_indices.default",
)
def constant(ctx: Lowering, *args: Any, **kwargs: Any) -> str:
    """Make a constant of what torch computes."""
    return ctx.constant(ctx.compute())


@lowers("aten.eye.default", "aten.eye.m")
def eye(ctx: Lowering, *size: int, dtype: str | None = None) -> str:
    """Compare the numbers of rows and columns."""
    rows, columns = ctx.output.shape
    row = ctx.reshape(ctx.emit("ARANGE", [], start=0, stop=rows), (rows, 1))
    column = ctx.emit("ARANGE", [], start=0, stop=columns)
    return ctx.cast(ctx.apply("EQ", row, column, dtype="int64"), ctx.output.dtype)


@lowers("aten.arange.start_step")
def arange(ctx: Lowering, start: Any, end: Any, step: Any = 1, *, dtype: str | None = None) -> str:
    """Count; where the inputs decide how far, in whole numbers."""
    if not any(isinstance(value, Size) for value in (start, end, step)):
        return ctx.constant(ctx.compute())
    (size,) = ctx.output.shape
    if any(isinstance(value, float) and not value.is_integer() for value in (start, step)):
        ctx.unsupported(f"expected whole numbers from {start} in steps of {step}", "dynamic shape")
    start, step = (int(v) if isinstance(v, float) else v for v in (start, step))
    counted = ctx.emit("ARANGE", [], start=start, stop=start + size * step, step=step)
    return ctx.cast(counted, ctx.output.dtype)


@lowers("aten.full.default")
def full(ctx: Lowering, size: list[int], fill_value: float, dtype: str | None = None) -> str:
    """Fill a tensor with one value."""
    return ctx.full(size, fill_value, ctx.output.dtype)


@lowers("aten.full_like.default", "aten.fill.Scalar", "aten.fill.Tensor")
def full_like(ctx: Lowering, x: str, fill_value: Operand, dtype: str | None = None) -> str:
    """Fill a tensor of the shape of ``x`` with one value."""
    if isinstance(fill_value, str):
        return ctx.expand(ctx.cast(fill_value, ctx.output.dtype), ctx.output.shape)
    return ctx.full(ctx.output.shape, fill_value, ctx.output.dtype)


@lowers(
    "aten.empty.memory_format",
    "aten.empty_permuted.default",
    "aten.empty_strided.default",
    "aten.new_empty.default",
    "aten.new_empty_strided.default",
)
def empty(ctx: Lowering, *args: Any, **kwargs: Any) -> str:
    """Give zeros, for any values would do."""
    return ctx.full(ctx.output.shape, 0, ctx.output.dtype)
