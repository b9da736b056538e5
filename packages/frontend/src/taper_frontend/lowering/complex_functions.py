"""Write functions of complex numbers as formulas over their real and imaginary parts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from taper_frontend.lowering.complex_parts import Parts, beside, imag, joined, times_i
from taper_frontend.lowering.representation import Pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from taper_frontend.lowering.context import Lowering

    #: A function ``(ctx, inputs, attrs) -> name of the result``.
    Rule = Callable[[Lowering, Sequence[str], Mapping[str, Any]], str]


def _from_parts(function: Callable[[Parts], tuple[str, str]]) -> Rule:
    """Make a rule from a formula for the real and imaginary parts of the result."""

    def rule(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
        (x,) = inputs
        return joined(ctx, *function(Parts(ctx, x)))

    return rule


def _absolute(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    """Compute ``large sqrt(1 + (small / large)^2)``, whose squares do not overflow."""
    (x,) = inputs
    p = Parts(ctx, x)
    re, im = p("ABS", p.re), p("ABS", p.im)
    large, small = p("MAXIMUM", re, im), p("MINIMUM", re, im)
    # if the larger part is 0 or an infinity, it is the absolute value
    certain = ctx.emit("LOGICAL_OR", [p("EQ", large, 0), p("EQ", large, math.inf)])
    ratio = p("DIV", small, p("WHERE", certain, 1, large))
    size = p("MUL", large, p("SQRT", p("ADD", p("SQUARE", ratio), 1)))
    return p("WHERE", certain, large, size)


def _sign(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    """Compute ``x / |x|``, or 0 for 0."""
    (x,) = inputs
    parts = Parts(ctx, x)
    size = parts.size
    size = parts("WHERE", parts("EQ", size, 0), 1, size)
    return Pairs(ctx.emit("DIV", [str(x), beside(ctx, size)]))


def _exp(p: Parts) -> tuple[str, str]:
    size = p("EXP", p.re)
    return p("MUL", size, p("COS", p.im)), p("MUL", size, p("SIN", p.im))


def _logarithm(base: float) -> Callable[[Parts], tuple[str, str]]:
    def log(p: Parts) -> tuple[str, str]:
        re, im = p("LOG", p.size), p.angle
        if base == math.e:
            return re, im
        return p("DIV", re, math.log(base)), p("DIV", im, math.log(base))

    return log


def _sqrt(p: Parts) -> tuple[str, str]:
    """Compute the square root whose real part is not negative."""
    half = p("MUL", p("ADD", p.size, p("ABS", p.re)), 0.5)
    large = p("SQRT", half)
    is_zero = p("EQ", large, 0)
    small = p("DIV", p("MUL", p("ABS", p.im), 0.5), p("WHERE", is_zero, 1, large))
    negative = p("LT", p.re, 0)
    re, im = p("WHERE", negative, small, large), p("WHERE", negative, large, small)
    below = p("LT", p.im, 0)
    return re, p("WHERE", below, p("NEG", im), im)


def _sin(p: Parts) -> tuple[str, str]:
    return (
        p("MUL", p("SIN", p.re), p("COSH", p.im)),
        p("MUL", p("COS", p.re), p("SINH", p.im)),
    )


def _cos(p: Parts) -> tuple[str, str]:
    return (
        p("MUL", p("COS", p.re), p("COSH", p.im)),
        p("NEG", p("MUL", p("SIN", p.re), p("SINH", p.im))),
    )


def _sinh(p: Parts) -> tuple[str, str]:
    return (
        p("MUL", p("SINH", p.re), p("COS", p.im)),
        p("MUL", p("COSH", p.re), p("SIN", p.im)),
    )


def _cosh(p: Parts) -> tuple[str, str]:
    return (
        p("MUL", p("COSH", p.re), p("COS", p.im)),
        p("MUL", p("SINH", p.re), p("SIN", p.im)),
    )


def _tanh_of(p: Parts, along: str, across: str) -> tuple[str, str]:
    """Return the parts of ``tanh(along + i across)``, without overflow.

    With ``t = tanh(along)``, ``s = tan(across)``: ``(t (1 + s^2), s (1 - t^2)) / (1 + t^2 s^2)``,
    written with sine and cosine, which have no poles.
    """
    t, sine, cosine = p("TANH", along), p("SIN", across), p("COS", across)
    squared = p("SQUARE", t)
    below = p("ADD", p("SQUARE", cosine), p("MUL", squared, p("SQUARE", sine)))
    left = p("SUB", 1, squared)
    return p("DIV", t, below), p("DIV", p("MUL", p("MUL", sine, cosine), left), below)


def _tanh(p: Parts) -> tuple[str, str]:
    return _tanh_of(p, p.re, p.im)


def _tan(p: Parts) -> tuple[str, str]:
    """Compute ``-i tanh(i x)``."""
    re, im = _tanh_of(p, p("NEG", p.im), p.re)
    return im, p("NEG", re)


def _roots_about_one(p: Parts) -> tuple[Parts, Parts]:
    """Return the parts of the principal roots ``sqrt(1 - x)`` and ``sqrt(1 + x)``."""
    ctx, dtype = p.ctx, p.ctx.dtype(p.x)
    below = ctx.emit("SQRT", [ctx.apply("SUB", 1, p.x, dtype=dtype)])
    above = ctx.emit("SQRT", [ctx.apply("ADD", p.x, 1, dtype=dtype)])
    return Parts(ctx, below), Parts(ctx, above)


def _asin(p: Parts) -> tuple[str, str]:
    """Compute the arc sine by Kahan's formula (1987, "Branch cuts for complex functions")."""
    a, b = _roots_about_one(p)
    re = p("SUB", p("MUL", a.re, b.re), p("MUL", a.im, b.im))
    im = p("SUB", p("MUL", a.re, b.im), p("MUL", a.im, b.re))
    return p("ATAN2", p.re, re), p("ASINH", im)


def _acos(p: Parts) -> tuple[str, str]:
    a, b = _roots_about_one(p)
    im = p("SUB", p("MUL", b.re, a.im), p("MUL", b.im, a.re))
    return p("MUL", p("ATAN2", a.re, b.re), 2), p("ASINH", im)


def _atanh(p: Parts) -> tuple[str, str]:
    """Compute ``log((1 + x) / (1 - x)) / 2``."""
    left, squared = p("SUB", 1, p.re), p("SQUARE", p.im)
    below = p("ADD", p("SQUARE", left), squared)
    re = p("MUL", p("LOG1P", p("DIV", p("MUL", p.re, 4), below)), 0.25)
    across = p("SUB", p("MUL", left, p("ADD", p.re, 1)), squared)
    return re, p("MUL", p("ATAN2", p("MUL", p.im, 2), across), 0.5)


def _turned(function: Rule) -> Rule:
    """Return the rule of ``-i f(i x)``: asinh from asin, atan from atanh."""

    def rule(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
        y = function(ctx, [times_i(ctx, inputs[0])], attrs)
        return ctx.emit("NEG", [times_i(ctx, y)])

    return rule


def _acosh(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    """Compute ``i acos(x)`` or ``-i acos(x)``, the one whose real part is not negative."""
    p = Parts(ctx, _from_parts(_acos)(ctx, inputs, attrs))
    below = p("LT", imag(ctx, inputs[0]), 0)
    return joined(ctx, p("ABS", p.im), p("WHERE", below, p("NEG", p.re), p.re))


def _silu(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    return ctx.emit("MUL", [*inputs, _sigmoid(ctx, inputs, attrs)])


def _log1p(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    """Compute ``log(1 + x)``; ``|1 + x|^2`` is ``1 + (2 re + |x|^2)``, exact for small x."""
    p = Parts(ctx, inputs[0])
    above = p("ADD", p("MUL", p.re, p("ADD", p.re, 2)), p("SQUARE", p.im))
    size = p("MUL", ctx.emit("LOG1P", [above]), 0.5)
    return joined(ctx, size, p("ATAN2", p.im, p("ADD", p.re, 1)))


def _expm1(p: Parts) -> tuple[str, str]:
    """Compute ``exp(x) - 1``, with ``cos(im) - 1`` as ``-2 sin(im / 2)^2``."""
    less, size = p("EXPM1", p.re), p("EXP", p.re)
    half = p("SIN", p("MUL", p.im, 0.5))
    cosine = p("MUL", p("SQUARE", half), 2)
    return p("SUB", less, p("MUL", size, cosine)), p("MUL", size, p("SIN", p.im))


def _sigmoid(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    """Compute ``(1 + tanh(x / 2)) / 2``."""
    (x,) = inputs
    dtype = ctx.dtype(x)
    y = ctx.emit("TANH", [ctx.apply("MUL", x, 0.5, dtype=dtype)])
    return ctx.apply("MUL", ctx.apply("ADD", y, 1, dtype=dtype), 0.5, dtype=dtype)


def _rsqrt(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    return ctx.emit("RECIPROCAL", [ctx.emit("SQRT", [inputs[0]])])


def _pow(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    """Compute ``exp(b log a)``; 0 to a power with a positive real part is 0, 0 to 0 is 1.

    This is computed in float64: b times the logarithm's error becomes a relative error of the
    result.
    """
    if ctx.dtype(inputs[0]) == "complex64":
        wide = [ctx.cast(x, "complex128") for x in inputs]
        return ctx.cast(_pow(ctx, wide, attrs), "complex64")
    a, b = inputs
    dtype = ctx.dtype(a)
    is_zero = ctx.apply("EQ", a, 0, dtype=dtype)
    to_zero = ctx.apply("EQ", b, 0, dtype=dtype)
    base = ctx.apply("WHERE", is_zero, 1, a, dtype=dtype)
    power = ctx.emit("EXP", [ctx.apply("MUL", b, ctx.emit("LOG", [base]), dtype=dtype)])
    of_zero = ctx.cast(to_zero, dtype)
    return ctx.apply("WHERE", is_zero, of_zero, power, dtype=dtype)


#: For each op, the rule for complex numbers.
FUNCTIONS: dict[str, Rule] = {
    "ABS": _absolute,
    "SIGN": _sign,
    "EXP": _from_parts(_exp),
    "LOG": _from_parts(_logarithm(math.e)),
    "LOG2": _from_parts(_logarithm(2)),
    "LOG10": _from_parts(_logarithm(10)),
    "SQRT": _from_parts(_sqrt),
    "RSQRT": _rsqrt,
    "SIN": _from_parts(_sin),
    "COS": _from_parts(_cos),
    "TAN": _from_parts(_tan),
    "SINH": _from_parts(_sinh),
    "COSH": _from_parts(_cosh),
    "TANH": _from_parts(_tanh),
    "SIGMOID": _sigmoid,
    "ASIN": _from_parts(_asin),
    "ACOS": _from_parts(_acos),
    "ATAN": _turned(_from_parts(_atanh)),
    "ASINH": _turned(_from_parts(_asin)),
    "ACOSH": _acosh,
    "ATANH": _from_parts(_atanh),
    "SILU": _silu,
    "LOG1P": _log1p,
    "EXPM1": _from_parts(_expm1),
    "POW": _pow,
}
