"""Lower rare elementwise functions, to ops that numpy computes or to formulas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.lowering.elementwise import is_float
from taper_frontend.lowering.handlers import lowers

if TYPE_CHECKING:
    from taper_frontend.lowering.context import Lowering, Operand
    from taper_frontend.lowering.handlers import Handler

#: For each ATen overload, the op; it is computed in the dtype of the result.
_SPECIAL = {
    "digamma.default": "DIGAMMA",
    "erfinv.default": "ERFINV",
    "hypot.default": "HYPOT",
    "i0.default": "I0",
    "lgamma.default": "LGAMMA",
    "nextafter.default": "NEXTAFTER",
    "special_erfcx.default": "ERFCX",
}


def _special(op: str) -> Handler:
    def special(ctx: Lowering, *operands: Operand) -> str:
        dtype = ctx.output.dtype
        tensors = [
            ctx.cast(x, dtype) if isinstance(x, str) else ctx.full((), x, dtype) for x in operands
        ]
        return ctx.emit(op, tensors)

    return special


for _aten, _op in _SPECIAL.items():
    lowers(f"aten.{_aten}")(_special(_op))


@lowers("aten.exp2.default")
def exp2(ctx: Lowering, x: str) -> str:
    """Compute ``2 ** x``."""
    return ctx.apply("POW", 2, x, dtype=ctx.output.dtype)


@lowers("aten.ldexp.Tensor")
def ldexp(ctx: Lowering, x: str, exponent: str) -> str:
    """Compute ``x * 2 ** exponent``."""
    dtype = ctx.output.dtype
    power = ctx.apply("POW", 2, exponent, dtype=dtype)
    return ctx.apply("MUL", x, power, dtype=dtype)


@lowers("aten.fmax.default", "aten.fmin.default")
def fmax(ctx: Lowering, a: str, b: str) -> str:
    """Return the larger, or the smaller; of a number and NaN, return the number."""
    dtype = ctx.output.dtype
    a, b = ctx.cast(a, dtype), ctx.cast(b, dtype)
    larger = ctx.aten == "fmax"
    y = ctx.emit("MAXIMUM" if larger else "MINIMUM", [a, b])
    if not is_float(dtype):
        return y
    y = ctx.apply("WHERE", ctx.emit("ISNAN", [b]), a, y, dtype=dtype)
    return ctx.apply("WHERE", ctx.emit("ISNAN", [a]), b, y, dtype=dtype)


@lowers("aten.signbit.default")
def signbit(ctx: Lowering, x: str) -> str:
    """Return whether a number is negative or the negative zero."""
    dtype = ctx.dtype(x)
    if dtype == "bool":
        return ctx.full(ctx.shape(x), False, "bool")
    negative = ctx.apply("LT", x, 0, dtype=dtype)
    if not is_float(dtype):
        return negative
    # only the reciprocal distinguishes the zeros
    inverse = ctx.apply("LT", ctx.emit("RECIPROCAL", [x]), 0, dtype=dtype)
    return ctx.emit("LOGICAL_OR", [negative, inverse])


@lowers("aten.copysign.Tensor", "aten.copysign.Scalar")
def copysign(ctx: Lowering, x: str, sign: Operand) -> str:
    """Return ``x`` with the sign of another number."""
    dtype = ctx.output.dtype
    size = ctx.apply("ABS", x, dtype=dtype)
    given = sign if isinstance(sign, str) else ctx.full((), sign, dtype)
    return ctx.apply(
        "WHERE", signbit(ctx, ctx.cast(given, dtype)), ctx.emit("NEG", [size]), size, dtype=dtype
    )
