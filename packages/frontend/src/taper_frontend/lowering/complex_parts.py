"""Split complex numbers, which are stored as pairs, into parts, and join parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_frontend.lowering.representation import Pairs

if TYPE_CHECKING:
    from taper_frontend.lowering.context import Lowering


def real(ctx: Lowering, x: str) -> str:
    """Return the real part; real numbers are returned as they are."""
    return _part(ctx, x, 0) if isinstance(x, Pairs) else x


def imag(ctx: Lowering, x: str) -> str:
    """Return the imaginary part of complex numbers."""
    return _part(ctx, x, 1)


def _part(ctx: Lowering, x: str, index: int) -> str:
    shape = ctx.shape(x)
    return ctx.reshape(ctx.slice(str(x), len(shape), index, index + 1), shape)


def joined(ctx: Lowering, re: str, im: str) -> Pairs:
    """Return the complex numbers with these parts, which have the same shape."""
    shape = (*ctx.shape(re), 1)
    parts = [ctx.reshape(re, shape), ctx.reshape(im, shape)]
    return Pairs(ctx.emit("CAT", parts, axis=len(shape) - 1))


def conjugate(ctx: Lowering, x: str) -> str:
    """Return the conjugate; real numbers are returned as they are."""
    return _signed(ctx, x, (1, -1)) if isinstance(x, Pairs) else x


def _signed(ctx: Lowering, x: str, signs: tuple[int, int]) -> Pairs:
    dtype = ctx.dtype(str(x))
    return Pairs(ctx.emit("MUL", [str(x), ctx.constant(np.array(signs, dtype))]))


def times_i(ctx: Lowering, x: str) -> Pairs:
    """Return ``i x``: swap the parts and negate one."""
    swapped = ctx.emit("FLIP", [str(x)], axes=(ctx.rank(x),))
    return _signed(ctx, Pairs(swapped), (-1, 1))


class Parts:
    """The parts of a tensor, with real arithmetic in their dtype."""

    def __init__(self, ctx: Lowering, x: str) -> None:
        self.ctx = ctx
        self.x = x
        self.dtype = ctx.dtype(str(x))
        self.re, self.im = real(ctx, x), imag(ctx, x)

    def __call__(self, op: str, *operands: str | float) -> str:
        """Emit a real elementwise op in this dtype."""
        return self.ctx.apply(op, *operands, dtype=self.dtype)

    @property
    def size(self) -> str:
        """Return the absolute value, without intermediate overflow or underflow."""
        return self.ctx.emit("ABS", [self.x])

    @property
    def angle(self) -> str:
        """Return the angle, from -pi to pi."""
        return self("ATAN2", self.im, self.re)


def beside(ctx: Lowering, x: str) -> str:
    """Reshape a real tensor to broadcast against pairs."""
    return ctx.reshape(x, (*ctx.shape(x), 1))
