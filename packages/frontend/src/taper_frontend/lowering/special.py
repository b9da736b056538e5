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


@lowers("aten.frexp.Tensor")
def frexp(ctx: Lowering, x: str) -> tuple[str, str]:
    """Split a number into a mantissa from 0.5 to 1 and an exponent of 2.

    The exponent is estimated by a logarithm, and corrected by the mantissa that it gives. 0, NaN
    and infinity have the exponent 0.
    """
    dtype = ctx.dtype(x)
    wide = ctx.cast(x, "float64")
    size = ctx.emit("ABS", [wide])
    ordinary = ctx.emit(
        "LOGICAL_AND",
        [
            ctx.apply("GT", size, 0, dtype="float64"),
            ctx.emit("LOGICAL_NOT", [ctx.emit("ISINF", [size])]),
        ],
    )
    log = ctx.emit("LOG2", [ctx.apply("WHERE", ordinary, size, 1, dtype="float64")])
    exponent = ctx.apply("ADD", ctx.emit("FLOOR", [log]), 1, dtype="float64")
    # a power of the whole exponent may be out of range
    half = ctx.emit("FLOOR", [ctx.apply("MUL", exponent, 0.5, dtype="float64")])
    for each in (half, ctx.emit("SUB", [exponent, half])):
        power = ctx.apply("POW", 2, ctx.emit("NEG", [each]), dtype="float64")
        size = ctx.emit("MUL", [size, power])
    for compare, limit, step in (("GE", 1, 1), ("LT", 0.5, -1)):
        wrong = ctx.apply(compare, size, limit, dtype="float64")
        moved = ctx.apply("MUL", size, 2.0**-step, dtype="float64")
        size = ctx.emit("WHERE", [wrong, moved, size])
        more = ctx.apply("ADD", exponent, step, dtype="float64")
        exponent = ctx.emit("WHERE", [wrong, more, exponent])
    negative = ctx.apply("LT", wide, 0, dtype="float64")
    mantissa = ctx.emit("WHERE", [negative, ctx.emit("NEG", [size]), size])
    mantissa = ctx.cast(ctx.emit("WHERE", [ordinary, mantissa, wide]), dtype)
    return mantissa, ctx.cast(ctx.apply("WHERE", ordinary, exponent, 0, dtype="float64"), "int32")


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
