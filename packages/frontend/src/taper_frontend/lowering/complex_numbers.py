"""Lower ops that make, split and conjugate complex numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from taper_frontend.lowering.complex_parts import conjugate, imag, joined, real
from taper_frontend.lowering.handlers import lowers
from taper_frontend.lowering.representation import Pairs

if TYPE_CHECKING:
    from taper_frontend.lowering.context import Lowering


@lowers("aten.view_as_real.default", "aten.view_as_real_copy.default")
def view_as_real(ctx: Lowering, x: str) -> str:
    """Return the parts as a last axis of 2, which is how they are stored."""
    return str(x)


@lowers("aten.view_as_complex.default", "aten.view_as_complex_copy.default")
def view_as_complex(ctx: Lowering, x: str) -> str:
    """Interpret a last axis of 2 as the parts of complex numbers."""
    return Pairs(x)


@lowers("aten.real.default")
def take_real(ctx: Lowering, x: str) -> str:
    """Return the real part."""
    return real(ctx, x)


@lowers("aten.imag.default")
def take_imag(ctx: Lowering, x: str) -> str:
    """Return the imaginary part."""
    return imag(ctx, x)


@lowers("aten.complex.default")
def complex_(ctx: Lowering, re: str, im: str) -> str:
    """Make complex numbers from their parts."""
    shape = ctx.output.shape
    return joined(ctx, ctx.expand(re, shape), ctx.expand(im, shape))


@lowers("aten.polar.default")
def polar(ctx: Lowering, size: str, angle: str) -> str:
    """Make complex numbers from absolute values and angles."""
    shape = ctx.output.shape
    re = ctx.emit("MUL", [size, ctx.emit("COS", [angle])])
    im = ctx.emit("MUL", [size, ctx.emit("SIN", [angle])])
    return joined(ctx, ctx.expand(re, shape), ctx.expand(im, shape))


@lowers(
    "aten._conj.default",
    "aten._conj_copy.default",
    "aten._conj_physical.default",
    "aten.conj_physical.default",
)
def conj(ctx: Lowering, x: str) -> str:
    """Negate the imaginary part."""
    return conjugate(ctx, x)


@lowers("aten.resolve_conj.default", "aten.resolve_neg.default")
def resolve(ctx: Lowering, x: str) -> str:
    """Return ``x``, because a plan's tensors are values."""
    return x


@lowers("aten._neg_view.default", "aten._neg_view_copy.default")
def neg_view(ctx: Lowering, x: str) -> str:
    """Negate ``x``."""
    return ctx.emit("NEG", [x])


@lowers("aten.angle.default")
def angle(ctx: Lowering, x: str) -> str:
    """Compute the angle in the plane; for real numbers 0, or pi if negative."""
    if isinstance(x, Pairs):
        return ctx.emit("ATAN2", [imag(ctx, x), real(ctx, x)])
    dtype = ctx.output.dtype
    x = ctx.cast(x, dtype)
    negative = ctx.apply("LT", x, 0, dtype=dtype)
    flat = ctx.apply("WHERE", negative, math.pi, 0.0, dtype=dtype)
    return ctx.apply("WHERE", ctx.emit("ISNAN", [x]), x, flat, dtype=dtype)


@lowers("aten.abs.default", "aten.sgn.default")
def of_size(ctx: Lowering, x: str) -> str:
    """Compute the absolute value, or the number divided by it."""
    if ctx.aten == "abs":
        return ctx.emit("ABS", [x])
    return x if ctx.dtype(x) == "bool" else ctx.emit("SIGN", [x])
