"""Lower ops that make tensors from numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taper_frontend.lowering.elementwise import is_float
from taper_frontend.lowering.handlers import lowers
from taper_frontend.lowering.representation import computed, is_complex
from taper_runtime.base.sizes import Size

if TYPE_CHECKING:
    from taper_frontend.lowering.context import Lowering, Operand


@lowers(
    "aten.bartlett_window.default",
    "aten.bartlett_window.periodic",
    "aten.blackman_window.default",
    "aten.blackman_window.periodic",
    "aten.fft_fftfreq.default",
    "aten.fft_rfftfreq.default",
    "aten.hamming_window.default",
    "aten.hamming_window.periodic",
    "aten.hamming_window.periodic_alpha",
    "aten.hamming_window.periodic_alpha_beta",
    "aten.hann_window.default",
    "aten.hann_window.periodic",
    "aten.kaiser_window.default",
    "aten.kaiser_window.periodic",
    "aten.kaiser_window.beta",
    "aten.logspace.default",
    "aten.tril_indices.default",
    "aten.triu_indices.default",
)
def constant(ctx: Lowering, *args: Any, **kwargs: Any) -> str:
    """Make a constant of the tensor that torch computes."""
    return ctx.compute()


@lowers("aten.scalar_tensor.default")
def scalar_tensor(ctx: Lowering, value: Operand, **options: Any) -> str:
    """Make a tensor of one number, which may be a size."""
    return ctx.full((), value, ctx.output.dtype)


@lowers(
    "aten.linspace.default",
    "aten.linspace.Tensor_Tensor",
    "aten.linspace.Tensor_Scalar",
    "aten.linspace.Scalar_Tensor",
)
def linspace(ctx: Lowering, start: Operand, end: Operand, steps: int, **options: Any) -> str:
    """Return evenly spaced numbers, counted from the start in the first half, then from the end."""
    if not any(isinstance(value, Size | str) for value in (start, end)):
        return ctx.compute()
    dtype = ctx.output.dtype
    # for integers torch rounds the ends, and computes between the rounded ends
    whole = not (is_float(dtype) or is_complex(dtype))
    real = "float64" if whole else computed(dtype)
    start, end = (ctx.cast(ctx.full((), x, dtype), dtype if whole else real) for x in (start, end))
    index = ctx.constant(np.arange(steps))
    back = ctx.apply("SUB", steps - 1, index, dtype=real)
    step = ctx.apply("DIV", ctx.apply("SUB", end, start, dtype=real), max(steps - 1, 1), dtype=real)
    forth = ctx.apply("ADD", start, ctx.apply("MUL", step, index, dtype=real), dtype=real)
    back = ctx.apply("SUB", end, ctx.apply("MUL", step, back, dtype=real), dtype=real)
    first = ctx.constant(np.arange(steps) < max(steps // 2, steps == 1))
    return ctx.cast(ctx.apply("WHERE", first, forth, back, dtype=real), dtype)


@lowers("aten.eye.default", "aten.eye.m")
def eye(ctx: Lowering, *size: int, dtype: str | None = None) -> str:
    """Return ones where row and column numbers are equal."""
    rows, columns = ctx.output.shape
    row = ctx.reshape(ctx.emit("ARANGE", [], start=0, stop=rows), (rows, 1))
    column = ctx.emit("ARANGE", [], start=0, stop=columns)
    return ctx.cast(ctx.apply("EQ", row, column, dtype="int64"), ctx.output.dtype)


@lowers("aten.arange.start_step")
def arange(ctx: Lowering, start: Any, end: Any, step: Any = 1, *, dtype: str | None = None) -> str:
    """Return a range; its ends and its length may depend on sizes."""
    if not any(isinstance(value, Size | str) for value in (start, end, step)):
        return ctx.compute()
    (size,) = ctx.output.shape
    start, step = (int(v) if isinstance(v, float) and v.is_integer() else v for v in (start, step))
    whole = all(isinstance(value, int | Size) for value in (start, step))
    if whole and isinstance(step, int):
        counted = ctx.emit("ARANGE", [], start=start, stop=start + size * step, step=step)
        return ctx.cast(counted, ctx.output.dtype)
    index = ctx.emit("ARANGE", [], start=0, stop=size)
    exact = "int64" if whole else "float64"  # as torch computes
    moved = ctx.apply("MUL", index, step, dtype=exact)
    return ctx.cast(ctx.apply("ADD", moved, start, dtype=exact), ctx.output.dtype)


@lowers("aten.full.default")
def full(ctx: Lowering, size: list[int], fill_value: Operand, dtype: str | None = None) -> str:
    """Fill a tensor with one value."""
    return ctx.full(size, fill_value, ctx.output.dtype)


@lowers("aten.full_like.default", "aten.fill.Scalar", "aten.fill.Tensor")
def full_like(ctx: Lowering, x: str, fill_value: Operand, dtype: str | None = None) -> str:
    """Fill a tensor of the shape of ``x`` with one value."""
    return ctx.full(ctx.output.shape, fill_value, ctx.output.dtype)


@lowers(
    "aten.empty.memory_format",
    "aten.empty_permuted.default",
    "aten.empty_strided.default",
    "aten.new_empty.default",
    "aten.new_empty_strided.default",
)
def empty(ctx: Lowering, *args: Any, **kwargs: Any) -> str:
    """Return zeros, since any values are allowed."""
    return ctx.full(ctx.output.shape, 0, ctx.output.dtype)
