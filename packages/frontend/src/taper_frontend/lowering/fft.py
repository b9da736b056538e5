"""Fourier transforms."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from taper_frontend.lowering.complex_parts import conjugate
from taper_frontend.lowering.registry import lowers
from taper_frontend.lowering.representation import Pairs
from taper_runtime.ops.fft import table
from taper_runtime.sizes import Size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.lowering.context import Lowering

#: ATen's numbers for what a transform is divided by: nothing, the square root of n, n.
_ROOT, _WHOLE = 1, 2


@lowers("aten._fft_c2c.default")
def c2c(ctx: Lowering, x: str, dim: Sequence[int], normalization: int, forward: bool) -> str:
    """Transform complex numbers along axes, one after the other."""
    sizes = ctx.shape(x)
    scale = _scale(ctx, [sizes[d] for d in dim], normalization)
    for index, axis in enumerate(dim):
        x = _transform(ctx, x, ctx.axis(x, axis), not forward, 1.0 if index else scale)
    return x


@lowers("aten._fft_r2c.default")
def r2c(ctx: Lowering, x: str, dim: Sequence[int], normalization: int, onesided: bool) -> str:
    """Transform real numbers: the last axis given, then the others as complex ones."""
    shape = ctx.shape(x)
    *others, last = [ctx.axis(x, d) for d in dim]
    scale = _scale(ctx, [shape[axis] for axis in (*others, last)], normalization)
    operands = [x, *_table(ctx, x, shape[last], real=True)]
    y: str = Pairs(ctx.emit("RFFT", operands, axis=last, scale=scale))
    for axis in reversed(others):
        y = _transform(ctx, y, axis, False, 1.0)
    return y if onesided else _mirrored(ctx, y, [*others, last], shape[last])


@lowers("aten._fft_c2r.default")
def c2r(ctx: Lowering, x: str, dim: Sequence[int], normalization: int, last_dim_size: int) -> str:
    """Go back to real numbers: the axes before the last as complex ones, then the last."""
    *others, last = [ctx.axis(x, d) for d in dim]
    shape = ctx.shape(x)
    sizes = [*(shape[axis] for axis in others), last_dim_size]
    scale = _scale(ctx, sizes, normalization)
    for axis in others:
        x = _transform(ctx, x, axis, True, 1.0)
    operands = [str(x), *_table(ctx, str(x), last_dim_size, real=True)]
    return ctx.emit("IRFFT", operands, axis=last, size=last_dim_size, scale=scale)


def _transform(ctx: Lowering, x: str, axis: int, inverse: bool, scale: float) -> Pairs:
    operands = [str(x), *_table(ctx, str(x), ctx.shape(x)[axis], real=False)]
    return Pairs(ctx.emit("FFT", operands, axis=axis, inverse=inverse, scale=scale))


def _table(ctx: Lowering, x: str, n: int, *, real: bool) -> list[str]:
    """Return the table that native kernels read; there is none of a length that varies."""
    if isinstance(n, Size) or ctx.dtype(x) != "float32":
        return []
    return [ctx.constant(table(n, real=real))]


def _scale(ctx: Lowering, sizes: Sequence[int], normalization: int) -> float:
    if normalization not in (_ROOT, _WHOLE):
        return 1.0
    count = math.prod(sizes)
    if isinstance(count, Size):
        ctx.unsupported(
            "its norm divides by a length that varies; norm='backward' of the forward transform "
            "does not",
            "dynamic shape",
        )
    return 1 / math.sqrt(count) if normalization == _ROOT else 1 / count


def _mirrored(ctx: Lowering, y: str, axes: Sequence[int], n: int) -> str:
    """Add the conjugates behind the first half of an axis: that of the negative frequencies."""
    *others, last = axes
    rest = (n - 1) // 2
    tail = conjugate(ctx, ctx.slice(y, last, 1, 1 + rest))
    tail = ctx.emit("FLIP", [tail], axes=(last,))
    for axis in others:  # index -k of each other axis
        size = ctx.shape(tail)[axis]
        turned = ctx.emit("FLIP", [ctx.slice(tail, axis, 1, size)], axes=(axis,))
        tail = ctx.emit("CAT", [ctx.slice(tail, axis, 0, 1), turned], axis=axis)
    return ctx.emit("CAT", [y, tail], axis=last)
