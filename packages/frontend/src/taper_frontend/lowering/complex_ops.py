"""Lower ops on complex numbers, whose real and imaginary parts lie along a last axis of 2.

Handlers of ATen ops emit ADD or RESHAPE on complex tensors, and this module replaces them op by op
by ops on the parts. Ops of movement keep the last axis last, sums are sums of the parts, products
are COMPLEX_MUL, and functions are formulas of both parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_frontend.lowering.complex_functions import FUNCTIONS
from taper_frontend.lowering.complex_parts import Parts, beside, conjugate, joined, times_i
from taper_frontend.lowering.representation import Pairs, is_complex, number_array, real_dtype
from taper_runtime.base.errors import OpError
from taper_runtime.base.sizes import Size
from taper_runtime.ops.complex_linalg import OPS as COMPLEX_LINALG
from taper_runtime.ops.complex_linalg import PREFIX, real_results

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taper_frontend.lowering.complex_functions import Rule
    from taper_frontend.lowering.context import Lowering

Number = int | float | complex | bool

#: Ops for which one operand may stay real.
_SCALING = frozenset({"MUL", "DIV"})


def emit(ctx: Lowering, op: str, inputs: Sequence[str | None], attrs: Mapping[str, Any]) -> str:
    """Emit an op on inputs of which at least one is complex.

    Raises
    ------
    OpError
        If the op is undefined for complex numbers, or not supported.
    """
    if op in _BY_LAPACK:
        (result,) = emit_multi(ctx, op, inputs, attrs)
        return result
    rule = _RULES.get(op)
    given = [name for name in inputs if name is not None]
    if rule is None or len(given) < len(inputs):
        raise OpError(f"{op}: expected real numbers, got complex ones")
    return rule(ctx, given, attrs)


def emit_multi(
    ctx: Lowering, op: str, inputs: Sequence[str | None], attrs: Mapping[str, Any]
) -> tuple[str, ...]:
    """Emit an op of linear algebra, or a scan, on complex inputs; it may have several results.

    Raises
    ------
    OpError
        If the op does not exist for complex numbers.
    """
    if op not in _BY_LAPACK:
        raise OpError(f"{op}: expected real numbers, got complex ones")
    given = [name for name in inputs if name is not None]
    dtype = next(ctx.dtype(x) for x in given if isinstance(x, Pairs))
    operands = [str(ctx.cast(x, dtype)) for x in given]
    results = ctx.emit_multi(f"{PREFIX}{op}", operands, **attrs)
    return tuple(
        result if index in real_results(op, attrs) else Pairs(result)
        for index, result in enumerate(results)
    )


def apply(ctx: Lowering, op: str, operands: Sequence[str | Number], dtype: str) -> str:
    """Emit an elementwise op in a complex dtype; numbers become constants.

    A real operand of a product or a quotient stays real.
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
            names.append(ctx.constant(number_array(x, dtype), dtype))
    if not any(isinstance(name, Pairs) for name in names):  # both operands are real
        names[0] = ctx.cast(names[0], dtype)
    return ctx.emit(op, names)


def cast(ctx: Lowering, x: str, dtype: str) -> str:
    """Convert to or from complex numbers.

    Raises
    ------
    OpError
        If the target is a real dtype other than bool: a program must drop imaginary parts
        explicitly.
    """
    if not isinstance(x, Pairs):
        part = ctx.cast(x, real_dtype(dtype))
        zero = ctx.full(ctx.shape(part), 0, real_dtype(dtype))
        return joined(ctx, part, zero)
    if is_complex(dtype):
        return Pairs(ctx.cast(str(x), real_dtype(dtype)))
    if dtype == "bool":
        return _any_part(ctx, ctx.cast(str(x), "bool"))
    raise OpError(f"expected real numbers, or an op that takes complex ones, got {ctx.dtype(x)}")


# -- movement -------------------------------------------------------------------------------------


def _same_axes(op: str) -> Rule:
    """Return the rule of an op whose axes, counted from the front, are the same for pairs."""

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
    reduce = attrs.get("reduce", "none")
    if reduce not in ("none", "sum"):
        raise OpError(f"SCATTER: reduce {reduce!r}: expected real numbers, got complex ones")
    operands = [str(x), _for_both(ctx, index), str(source)]
    return Pairs(ctx.emit("SCATTER", operands, **attrs))


def _for_both(ctx: Lowering, index: str) -> str:
    """Return indices that select both parts."""
    shape = ctx.shape(index)
    return ctx.expand(ctx.reshape(index, (*shape, 1)), (*shape, 2))


# -- arithmetic -----------------------------------------------------------------------------------


def _each_part(op: str) -> Rule:
    """Return the rule of an op that treats both parts alike.

    Operands get the parts' axis last, so that they broadcast.
    """

    def rule(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
        dtype = next(ctx.dtype(x) for x in inputs if isinstance(x, Pairs))
        return Pairs(ctx.emit(op, [str(ctx.cast(x, dtype)) for x in inputs], **attrs))

    return rule


def _mul(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    if all(isinstance(x, Pairs) for x in inputs):
        return Pairs(ctx.emit("COMPLEX_MUL", [str(x) for x in inputs]))
    a, b = (str(x) if isinstance(x, Pairs) else beside(ctx, x) for x in inputs)
    return Pairs(ctx.emit("MUL", [a, b]))


def _div(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    a, b = inputs
    if not isinstance(b, Pairs):
        return Pairs(ctx.emit("DIV", [str(a), beside(ctx, b)]))
    return _mul(ctx, [a, _reciprocal(ctx, [b], {})], {})


def _reciprocal(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    """Compute ``conj(x) / |x|^2``, scaled so that neither square leaves the range."""
    (x,) = inputs
    parts = Parts(ctx, x)
    scale = parts("MAXIMUM", parts("ABS", parts.re), parts("ABS", parts.im))
    x = Pairs(ctx.emit("DIV", [str(x), beside(ctx, scale)]))
    parts = Parts(ctx, x)
    norm = parts("ADD", parts("SQUARE", parts.re), parts("SQUARE", parts.im))
    norm = parts("MUL", norm, scale)
    return Pairs(ctx.emit("DIV", [str(conjugate(ctx, x)), beside(ctx, norm)]))


def _square(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    return _mul(ctx, [*inputs, *inputs], {})


def _matmul(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    """Multiply with one real product: rows ``(re, im)`` by ``[[re, im], [-im, re]]``.

    In memory a row of pairs is a row of twice as many reals. Each column of the second factor is
    followed by the same column times i.
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
    both = ctx.emit("CAT", [str(b), str(times_i(ctx, b))], axis=len(outer_b) + 1)
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


def _rms_norm(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    """Divide by the root of the mean of the squares; torch does not use magnitudes here."""
    x, *weight = inputs
    dtype, rank = next(ctx.dtype(each) for each in inputs if isinstance(each, Pairs)), ctx.rank(x)
    axes = tuple(range(rank - attrs["dims"], rank))
    mean = ctx.emit("MEAN", [ctx.emit("SQUARE", [x])], axes=axes, keepdim=True)
    scale = ctx.emit("RSQRT", [ctx.apply("ADD", mean, attrs["eps"], dtype=dtype)])
    for factor in (scale, *weight):
        x = ctx.emit("MUL", [x, factor])
    return x


def _var(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    """Add the variances of both parts; the result is real."""
    parts = ctx.emit("VAR", [str(inputs[0])], **attrs)
    return ctx.emit("SUM", [parts], axes=(len(ctx.shape(parts)) - 1,))


def _where(ctx: Lowering, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    condition, *values = inputs
    dtype = next(ctx.dtype(x) for x in values if isinstance(x, Pairs))
    operands = [beside(ctx, condition), *(str(ctx.cast(x, dtype)) for x in values)]
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


_BY_LAPACK = frozenset(
    op.name.removeprefix(PREFIX) for op in COMPLEX_LINALG if op.name.startswith(PREFIX)
)

_RULES: dict[str, Rule] = {
    **{op: _same_axes(op) for op in ("TRANSPOSE", "SLICE", "FLIP", "INDEX_SELECT", "WRITE", "CAT")},
    **{op: _same_axes(op) for op in ("PAD", "SUM", "MEAN", "CUMSUM")},
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
    "NONZERO": lambda ctx, inputs, attrs: ctx.emit("NONZERO", [ctx.cast(inputs[0], "bool")]),
    "RMS_NORM": _rms_norm,
    "VAR": _var,
    **FUNCTIONS,
}
