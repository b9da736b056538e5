"""Lower Fourier transforms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.lowering.complex_parts import conjugate
from taper_frontend.lowering.handlers import lowers
from taper_frontend.lowering.representation import Pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.lowering.context import Lowering

#: The normalization of a transform, by ATen's number.
_NORMS = ("none", "root", "length")


@lowers("aten._fft_c2c.default")
def c2c(ctx: Lowering, x: str, dim: Sequence[int], normalization: int, forward: bool) -> str:
    """Transform complex numbers along some axes, one after the other."""
    for axis in dim:
        x = _transform(ctx, x, ctx.axis(x, axis), not forward, _NORMS[normalization])
    return x


@lowers("aten._fft_r2c.default")
def r2c(ctx: Lowering, x: str, dim: Sequence[int], normalization: int, onesided: bool) -> str:
    """Transform real numbers: the last axis first, then the others as complex ones."""
    n, norm = ctx.shape(x), _NORMS[normalization]
    *others, last = [ctx.axis(x, d) for d in dim]
    y: str = Pairs(ctx.emit("RFFT", [x], axis=last, norm=norm))
    for axis in reversed(others):
        y = _transform(ctx, y, axis, False, norm)
    return y if onesided else _mirrored(ctx, y, [*others, last], n[last])


@lowers("aten._fft_c2r.default")
def c2r(ctx: Lowering, x: str, dim: Sequence[int], normalization: int, last_dim_size: int) -> str:
    """Transform back to real numbers: the other axes as complex ones, then the last axis."""
    *others, last = [ctx.axis(x, d) for d in dim]
    norm = _NORMS[normalization]
    for axis in others:
        x = _transform(ctx, x, axis, True, norm)
    return ctx.emit("IRFFT", [str(x)], axis=last, size=last_dim_size, norm=norm)


def _transform(ctx: Lowering, x: str, axis: int, inverse: bool, norm: str) -> Pairs:
    return Pairs(ctx.emit("FFT", [str(x)], axis=axis, inverse=inverse, norm=norm))


def _mirrored(ctx: Lowering, y: str, axes: Sequence[int], n: int) -> str:
    """Append the conjugates of the first half of an axis: the negative frequencies."""
    *others, last = axes
    rest = n - ctx.shape(y)[last]
    tail = conjugate(ctx, ctx.slice(y, last, 1, 1 + rest))
    tail = ctx.emit("FLIP", [tail], axes=(last,))
    for axis in others:  # index -k of each other axis
        size = ctx.shape(tail)[axis]
        turned = ctx.emit("FLIP", [ctx.slice(tail, axis, 1, size)], axes=(axis,))
        tail = ctx.emit("CAT", [ctx.slice(tail, axis, 0, 1), turned], axis=axis)
    return ctx.emit("CAT", [y, tail], axis=last)
