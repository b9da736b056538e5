"""What ops come to on complex numbers: their real and imaginary parts lie along a last axis of 2.

Handlers of ATen ops know nothing of this: they emit ADD or RESHAPE on complex tensors, and what
the graph gets is decided here, op by op. Movement keeps the last axis where it is, sums are sums
of the parts, products are COMPLEX_MUL, and functions are formulas over both parts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from taper_frontend.lowering.representation import Pairs, is_complex, real_dtype
from taper_runtime.errors import OpError
from taper_runtime.sizes import Size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from taper_frontend.lowering.context import Lowering

    #: ``(ctx, inputs, attrs) -> name``
    Rule = Callable[[Lowering, Sequence[str], Mapping[str, Any]], str]

Number = int | float | complex | bool

#: Ops whose other operand may stay real.
_SCALING = frozenset({"MUL", "DIV"})


def emit(ctx: Lowering, op: str, inputs: Sequence[str | None], attrs: Mapping[str, Any]) -> str:
    """Emit what an op comes to on inputs of which one or more are complex.

    Raises
    ------
    OpError
        If it has no meaning on complex numbers, or none that is known here.
    """
    rule = _RULES.get(op)
    given = [name for name in inputs if name is not None]
    if rule is None or len(given) < len(inputs):
        raise OpError(f"{op}: expected real numbers, got complex ones")
    return rule(ctx, given, attrs)


def apply(ctx: Lowering, op: str, operands: Sequence[str | Number], dtype: str) -> str:
    """Emit an elementwise op that computes in a complex dtype; numbers become constants.

    A real operand of a product or of a quotient stays real.
    """
    names = []
    for index, x in enumerate(operands):
        if op == "WHERE" and index == 0:
            assert isinstance(x, str)
            names.append(ctx.cast(x, "bool"))
        elif op in _SCALING and not isinstance(x, Pairs | complex):
            real = real_dtype(dtype)
            if isinstance(x, Size):
                names.append(ctx.size_value(x, real))
            else:
                names.append(ctx.cast(x, real) if isinstance(x, str) else ctx.full((), x, real))
        elif isinstance(x, str):
            names.append(ctx.cast(x, dtype))
        elif isinstance(x, Size):
            names.append(ctx.cast(ctx.size_value(x, real_dtype(dtype)), dtype))
        else:
            names.append(ctx.constant(torch.tensor(x, dtype=getattr(torch, dtype))))
    if not any(isinstance(name, Pairs) for name in names):  # both are real after all
        names[0] = ctx.cast(names[0], dtype)
    return ctx.emit(op, names)


def cast(ctx: Lowering, x: str, dtype: str) -> str:
    """Convert from or to complex numbers.

    Raises
    ------
    OpError
        For a real dtype but bool: imaginary parts are dropped by name only (:func:`real`).
    """
    if not isinstance(x, Pairs):
        part = ctx.cast(x, real_dtype(dtype))
        zero = ctx.full(ctx.shape(part), 0, real_dtype(dtype))
        return joined(ctx, part, zero)
    if is_complex(dtype):
        return Pairs(ctx.cast(str(x), real_dtype(dtype)))
    if dtype == "bool":
        return _any_part(ctx, ctx.cast(str(x), "bool"))
    raise OpError(f"expected real numbers, or an op of complex ones, got {ctx.dtype(x)}")


# -- parts ----------------------------------------------------------------------------------------


def real(ctx: Lowering, x: str) -> str:
    """Return the real part; of real numbers they themselves."""
    return _part(ctx, x, 0) if isinstance(x, Pairs) else x


def imag(ctx: Lowering, x: str) -> str:
    """Return the imaginary part of complex numbers."""
    return _part(ctx, x, 1)


def _part(ctx: Lowering, x: str, index: int) -> str:
    shape = ctx.shape(x)
    return ctx.reshape(ctx.slice(str(x), len(shape), index, index + 1), shape)


def joined(ctx: Lowering, re: str, im: str) -> Pairs:
    """Return the complex numbers of these parts, which have one shape."""
    shape = (*ctx.shape(re), 1)
    parts = [ctx.reshape(re, shape), ctx.reshape(im, shape)]
    return Pairs(ctx.emit("CAT", parts, axis=len(shape) - 1))


def conjugate(ctx: Lowering, x: str) -> str:
    """Return the conjugate; of real numbers they themselves."""
    return _signed(ctx, x, (1, -1)) if isinstance(x, Pairs) else x


def _signed(ctx: Lowering, x: str, signs: tuple[int, int]) -> Pairs:
    dtype = ctx.dtype(str(x))
    return Pairs(ctx.emit("MUL", [str(x), ctx.constant(np.array(signs, dtype))]))


def _times_i(ctx: Lowering, x: str) -> Pairs:
    """Return ``i x``: the parts change places, one of them its sign."""
    swapped = ctx.emit("FLIP", [str(x)], axes=(ctx.rank(x),))
    return _signed(ctx, Pairs(swapped), (-1, 1))


def _from_parts(function: Callable[[_Parts], tuple[str, str]]) -> Rule:
    """Make a rule of a formula for the parts of the result."""

    def rule(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
        (x,) = inputs
        return joined(ctx, *function(_Parts(ctx, x)))

    return rule


class _Parts:
    """The parts of a tensor, and real arithmetic in their dtype."""

    def __init__(self, ctx: Lowering, x: str) -> None:
        self.ctx = ctx
        self.x = x
        self.dtype = ctx.dtype(str(x))
        self.re, self.im = real(ctx, x), imag(ctx, x)

    def __call__(self, op: str, *operands: str | float) -> str:
        return self.ctx.apply(op, *operands, dtype=self.dtype)

    @property
    def size(self) -> str:
        """The absolute value, without overflow or underflow on the way."""
        return absolute(self.ctx, [self.x], {})

    @property
    def angle(self) -> str:
        return self("ATAN2", self.im, self.re)


# -- movement -------------------------------------------------------------------------------------


def _same_axes(op: str) -> Rule:
    """Axes counted from the front are those of the pairs too."""

    def rule(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
        rank = ctx.rank(inputs[0])
        given = {k: v % rank if k.startswith("axis") else v for k, v in attrs.items()}
        reals = [str(x) if isinstance(x, Pairs) else x for x in inputs]
        return Pairs(ctx.emit(op, reals, **given))

    return rule


def _same_shape(op: str) -> Rule:
    def rule(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
        return Pairs(ctx.emit(op, [str(inputs[0])], shape=(*attrs["shape"], 2)))

    return rule


def _permute(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    axes = (*attrs["axes"], ctx.rank(inputs[0]))
    return Pairs(ctx.emit("PERMUTE", [str(inputs[0])], axes=axes))


def _embedding(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    table, index = inputs
    return Pairs(ctx.emit("INDEX_SELECT", [str(table), index], axis=0))


def _gather(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    x, index = inputs
    return Pairs(ctx.emit("GATHER", [str(x), _for_both(ctx, index)], **attrs))


def _scatter(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    x, index, source = inputs
    if attrs.get("reduce", "none") not in ("none", "sum"):
        raise OpError(f"SCATTER: reduce {attrs['reduce']!r}: expected real numbers")
    operands = [str(x), _for_both(ctx, index), str(source)]
    return Pairs(ctx.emit("SCATTER", operands, **attrs))


def _for_both(ctx: Lowering, index: str) -> str:
    """Return indices that stand for both parts."""
    shape = ctx.shape(index)
    return ctx.expand(ctx.reshape(index, (*shape, 1)), (*shape, 2))


# -- arithmetic -----------------------------------------------------------------------------------


def _each_part(op: str) -> Rule:
    """What is done to the parts alike; operands are broadcast from the back, behind the parts."""

    def rule(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
        dtype = next(ctx.dtype(x) for x in inputs if isinstance(x, Pairs))
        return Pairs(ctx.emit(op, [str(ctx.cast(x, dtype)) for x in inputs], **attrs))

    return rule


def _beside(ctx: Lowering, x: str) -> str:
    """Return a real tensor in the shape that broadcasts against pairs."""
    return ctx.reshape(x, (*ctx.shape(x), 1))


def _mul(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    if all(isinstance(x, Pairs) for x in inputs):
        return Pairs(ctx.emit("COMPLEX_MUL", [str(x) for x in inputs]))
    a, b = (str(x) if isinstance(x, Pairs) else _beside(ctx, x) for x in inputs)
    return Pairs(ctx.emit("MUL", [a, b]))


def _div(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    a, b = inputs
    if not isinstance(b, Pairs):
        return Pairs(ctx.emit("DIV", [str(a), _beside(ctx, b)]))
    return _mul(ctx, [a, _reciprocal(ctx, [b], {})], {})


def _reciprocal(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    """Compute ``conj(x) / |x|^2``, scaled so that neither square leaves the range."""
    (x,) = inputs
    parts = _Parts(ctx, x)
    scale = parts("MAXIMUM", parts("ABS", parts.re), parts("ABS", parts.im))
    x = Pairs(ctx.emit("DIV", [str(x), _beside(ctx, scale)]))
    parts = _Parts(ctx, x)
    norm = parts("ADD", parts("SQUARE", parts.re), parts("SQUARE", parts.im))
    norm = parts("MUL", norm, scale)
    return Pairs(ctx.emit("DIV", [str(conjugate(ctx, x)), _beside(ctx, norm)]))


def _square(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    return _mul(ctx, [*inputs, *inputs], {})


def _matmul(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    """Multiply by one real product: rows ``(re, im)`` by ``[[re, im], [-im, re]]``.

    A row of pairs is a row of twice as many reals as it lies; a column of the second factor stands
    beside itself times i.
    """
    if attrs:
        raise OpError(f"MATMUL of complex numbers: expected no attrs, got {dict(attrs)}")
    a, b = (ctx.cast(x, next(ctx.dtype(y) for y in inputs if isinstance(y, Pairs))) for x in inputs)
    shape = list(ctx.shape(a)[:-1] if ctx.rank(a) > 1 else ())
    if ctx.rank(a) == 1:
        a = ctx.reshape(a, (1, *ctx.shape(a)))
    column = ctx.rank(b) == 1
    if column:
        b = ctx.reshape(b, (*ctx.shape(b), 1))
    (*outer_a, rows, inner), (*outer_b, _, columns) = ctx.shape(a), ctx.shape(b)
    b = ctx.reshape(b, (*outer_b, inner, 1, columns))
    both = ctx.emit("CAT", [str(b), str(_times_i(ctx, b))], axis=len(outer_b) + 1)
    product = ctx.emit(
        "MATMUL",
        [
            ctx.reshape(str(a), (*outer_a, rows, 2 * inner)),
            ctx.reshape(both, (*outer_b, 2 * inner, 2 * columns)),
        ],
    )
    outer = ctx.shape(product)[:-2]
    shape = [*outer, *([] if ctx.rank(inputs[0]) == 1 else [rows]), *([] if column else [columns])]
    return ctx.reshape(Pairs(ctx.reshape(product, (*outer, rows, columns, 2))), shape)


def _var(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    """Add up the variances of both parts; the result is real."""
    parts = ctx.emit("VAR", [str(inputs[0])], **attrs)
    return ctx.emit("SUM", [parts], axes=(len(ctx.shape(parts)) - 1,))


def _where(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    condition, *values = inputs
    dtype = next(ctx.dtype(x) for x in values if isinstance(x, Pairs))
    operands = [_beside(ctx, condition), *(str(ctx.cast(x, dtype)) for x in values)]
    return Pairs(ctx.emit("WHERE", operands, **attrs))


def _compare(op: str, over: str) -> Rule:
    def rule(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
        parts = ctx.emit(op, [str(x) for x in inputs])
        return ctx.emit(over, [parts], axes=(len(ctx.shape(parts)) - 1,))

    return rule


def _predicate(op: str) -> Rule:
    return lambda ctx, inputs, attrs: _any_part(ctx, ctx.emit(op, [str(inputs[0])]))


def _any_part(ctx: Lowering, parts: str) -> str:
    return ctx.emit("ANY", [parts], axes=(ctx.rank(parts) - 1,))


# -- functions ------------------------------------------------------------------------------------


def absolute(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    """Compute ``large sqrt(1 + (small / large)^2)``: no square leaves the range."""
    (x,) = inputs
    p = _Parts(ctx, x)
    re, im = p("ABS", p.re), p("ABS", p.im)
    large, small = p("MAXIMUM", re, im), p("MINIMUM", re, im)
    # of 0 and of infinities the larger part is the absolute value
    certain = ctx.emit("LOGICAL_OR", [p("EQ", large, 0), p("EQ", large, math.inf)])
    ratio = p("DIV", small, p("WHERE", certain, 1, large))
    size = p("MUL", large, p("SQRT", p("ADD", p("SQUARE", ratio), 1)))
    return p("WHERE", certain, large, size)


def _sign(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    """Compute ``x / |x|``, 0 of 0."""
    (x,) = inputs
    parts = _Parts(ctx, x)
    size = parts.size
    size = parts("WHERE", parts("EQ", size, 0), 1, size)
    return Pairs(ctx.emit("DIV", [str(x), _beside(ctx, size)]))


def _exp(p: _Parts) -> tuple[str, str]:
    size = p("EXP", p.re)
    return p("MUL", size, p("COS", p.im)), p("MUL", size, p("SIN", p.im))


def _logarithm(base: float) -> Callable[[_Parts], tuple[str, str]]:
    def log(p: _Parts) -> tuple[str, str]:
        re, im = p("LOG", p.size), p.angle
        if base == math.e:
            return re, im
        return p("DIV", re, math.log(base)), p("DIV", im, math.log(base))

    return log


def _sqrt(p: _Parts) -> tuple[str, str]:
    """Compute the root with a real part of 0 or more."""
    half = p("MUL", p("ADD", p.size, p("ABS", p.re)), 0.5)
    large = p("SQRT", half)
    is_zero = p("EQ", large, 0)
    small = p("DIV", p("MUL", p("ABS", p.im), 0.5), p("WHERE", is_zero, 1, large))
    negative = p("LT", p.re, 0)
    re, im = p("WHERE", negative, small, large), p("WHERE", negative, large, small)
    below = p("LT", p.im, 0)
    return re, p("WHERE", below, p("NEG", im), im)


def _sin(p: _Parts) -> tuple[str, str]:
    return (
        p("MUL", p("SIN", p.re), p("COSH", p.im)),
        p("MUL", p("COS", p.re), p("SINH", p.im)),
    )


def _cos(p: _Parts) -> tuple[str, str]:
    return (
        p("MUL", p("COS", p.re), p("COSH", p.im)),
        p("NEG", p("MUL", p("SIN", p.re), p("SINH", p.im))),
    )


def _sinh(p: _Parts) -> tuple[str, str]:
    return (
        p("MUL", p("SINH", p.re), p("COS", p.im)),
        p("MUL", p("COSH", p.re), p("SIN", p.im)),
    )


def _cosh(p: _Parts) -> tuple[str, str]:
    return (
        p("MUL", p("COSH", p.re), p("COS", p.im)),
        p("MUL", p("SINH", p.re), p("SIN", p.im)),
    )


def _tanh_of(p: _Parts, along: str, across: str) -> tuple[str, str]:
    """Return the parts of ``tanh(along + i across)``, without overflow.

    With ``t = tanh(along)``, ``s = tan(across)``: ``(t (1 + s^2), s (1 - t^2)) / (1 + t^2 s^2)``,
    here with sine and cosine, which have no poles.
    """
    t, sine, cosine = p("TANH", along), p("SIN", across), p("COS", across)
    squared = p("SQUARE", t)
    below = p("ADD", p("SQUARE", cosine), p("MUL", squared, p("SQUARE", sine)))
    left = p("SUB", 1, squared)
    return p("DIV", t, below), p("DIV", p("MUL", p("MUL", sine, cosine), left), below)


def _tanh(p: _Parts) -> tuple[str, str]:
    return _tanh_of(p, p.re, p.im)


def _tan(p: _Parts) -> tuple[str, str]:
    """Compute ``-i tanh(i x)``."""
    re, im = _tanh_of(p, p("NEG", p.im), p.re)
    return im, p("NEG", re)


def _silu(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    return _mul(ctx, [*inputs, _sigmoid(ctx, inputs, attrs)], {})


def _log1p(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    """Compute ``log(1 + x)``; ``|1 + x|^2`` is ``1 + (2 re + |x|^2)``, exact where x is small."""
    p = _Parts(ctx, inputs[0])
    above = p("ADD", p("MUL", p.re, p("ADD", p.re, 2)), p("SQUARE", p.im))
    size = p("MUL", ctx.emit("LOG1P", [above]), 0.5)
    return joined(ctx, size, p("ATAN2", p.im, p("ADD", p.re, 1)))


def _expm1(p: _Parts) -> tuple[str, str]:
    """Compute ``exp(x) - 1``: ``cos(im) - 1`` is ``-2 sin(im / 2)^2``."""
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
    return _reciprocal(ctx, [ctx.emit("SQRT", [inputs[0]])], {})


def _pow(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    """Compute ``exp(b log a)``; 0 to a power with a positive real part is 0, to 0 it is 1."""
    a, b = inputs
    dtype = ctx.dtype(a)
    is_zero = ctx.apply("EQ", a, 0, dtype=dtype)
    to_zero = ctx.apply("EQ", b, 0, dtype=dtype)
    base = ctx.apply("WHERE", is_zero, 1, a, dtype=dtype)
    power = ctx.emit("EXP", [ctx.apply("MUL", b, ctx.emit("LOG", [base]), dtype=dtype)])
    of_zero = ctx.cast(to_zero, dtype)
    return ctx.apply("WHERE", is_zero, of_zero, power, dtype=dtype)


_RULES: dict[str, Rule] = {
    **{op: _same_axes(op) for op in ("TRANSPOSE", "SLICE", "FLIP", "INDEX_SELECT", "CAT")},
    **{op: _same_axes(op) for op in ("SUM", "MEAN", "CUMSUM")},
    **{op: _same_shape(op) for op in ("RESHAPE", "EXPAND")},
    **{op: _each_part(op) for op in ("ADD", "SUB", "NEG")},
    "PERMUTE": _permute,
    "EMBEDDING": _embedding,
    "GATHER": _gather,
    "SCATTER": _scatter,
    "MUL": _mul,
    "DIV": _div,
    "RECIPROCAL": _reciprocal,
    "SQUARE": _square,
    "MATMUL": _matmul,
    "WHERE": _where,
    "EQ": _compare("EQ", "ALL"),
    "NE": _compare("NE", "ANY"),
    "ISNAN": _predicate("ISNAN"),
    "ISINF": _predicate("ISINF"),
    "ABS": absolute,
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
    "SILU": _silu,
    "LOG1P": _log1p,
    "EXPM1": _from_parts(_expm1),
    "VAR": _var,
    "POW": _pow,
}
