"""Lower elementwise ops: arithmetic, comparisons, activations, casts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.lowering.complex_parts import real
from taper_frontend.lowering.handlers import HANDLERS, lowers
from taper_frontend.lowering.representation import is_complex
from taper_runtime.ops.elementwise import MICROOPS
from taper_runtime.ops.type_rules import COMPUTED

if TYPE_CHECKING:
    from taper_frontend.lowering.context import Lowering, Operand
    from taper_frontend.lowering.handlers import Handler

#: Unary ops that do not change integers.
_ROUNDING = {"ceil": "CEIL", "floor": "FLOOR", "round": "ROUND", "trunc": "TRUNC"}

#: Unary predicates that are false for all integers.
_PREDICATES = {"isnan": "ISNAN", "isinf": "ISINF"}

#: For each ATen overload of a binary op, the op; it is computed in the dtype of the result.
_BINARY = {
    "__lshift__.Scalar": "LEFT_SHIFT",
    "__lshift__.Tensor": "LEFT_SHIFT",
    "__rshift__.Scalar": "RIGHT_SHIFT",
    "__rshift__.Tensor": "RIGHT_SHIFT",
    "atan2.default": "ATAN2",
    "bitwise_and.Scalar": "BITWISE_AND",
    "bitwise_and.Tensor": "BITWISE_AND",
    "bitwise_left_shift.Scalar_Tensor": "LEFT_SHIFT",
    "bitwise_left_shift.Tensor": "LEFT_SHIFT",
    "bitwise_left_shift.Tensor_Scalar": "LEFT_SHIFT",
    "bitwise_or.Scalar": "BITWISE_OR",
    "bitwise_or.Tensor": "BITWISE_OR",
    "bitwise_right_shift.Scalar_Tensor": "RIGHT_SHIFT",
    "bitwise_right_shift.Tensor": "RIGHT_SHIFT",
    "bitwise_right_shift.Tensor_Scalar": "RIGHT_SHIFT",
    "bitwise_xor.Scalar": "BITWISE_XOR",
    "bitwise_xor.Tensor": "BITWISE_XOR",
    "div.Scalar": "DIV",
    "div.Tensor": "DIV",
    "fmod.Scalar": "FMOD",
    "fmod.Tensor": "FMOD",
    "gcd.default": "GCD",
    "maximum.default": "MAXIMUM",
    "minimum.default": "MINIMUM",
    "mul.Scalar": "MUL",
    "mul.Tensor": "MUL",
    "pow.Scalar": "POW",
    "pow.Tensor_Tensor": "POW",
    "remainder.Scalar": "REMAINDER",
    "remainder.Scalar_Tensor": "REMAINDER",
    "remainder.Tensor": "REMAINDER",
}

#: Exponents for which torch computes a simpler op; all except 2 only for floats.
_POWERS = {2: "SQUARE", 0.5: "SQRT", -0.5: "RSQRT", -1: "RECIPROCAL"}

_DIVISIONS = {None: "DIV", "floor": "FLOOR_DIV", "trunc": "TRUNC_DIV"}


def is_float(dtype: str) -> bool:
    """Return whether elements of ``dtype`` are floating point numbers."""
    return "float" in dtype


def _unary(op: str) -> Handler:
    return lambda ctx, x: ctx.apply(op, x, dtype=ctx.output.dtype)


def _rounding(op: str) -> Handler:
    return lambda ctx, x: ctx.emit(op, [x]) if is_float(ctx.dtype(x)) else x


def _predicate(op: str) -> Handler:
    def predicate(ctx: Lowering, x: str) -> str:
        if is_float(ctx.dtype(x)):
            return ctx.emit(op, [x])
        return ctx.full(ctx.shape(x), False, "bool")

    return predicate


def _binary(op: str) -> Handler:
    return lambda ctx, a, b: ctx.apply(op, a, b, dtype=ctx.output.dtype)


def _comparison(op: str) -> Handler:
    return lambda ctx, a, b: ctx.apply(op, a, b, dtype=ctx.result_dtype(a, b))


def _logical(op: str) -> Handler:
    def logical(ctx: Lowering, *operands: str) -> str:
        dtypes = {ctx.dtype(x) for x in operands}
        alike = len(dtypes) == 1 and dtypes <= set(COMPUTED)
        return ctx.apply(op, *operands, dtype=dtypes.pop() if alike else "bool")

    return logical


for _aten, _op in _ROUNDING.items():
    lowers(f"aten.{_aten}.default")(_rounding(_op))
for _aten, _op in _PREDICATES.items():
    lowers(f"aten.{_aten}.default")(_predicate(_op))
for _aten, _op in _BINARY.items():
    lowers(f"aten.{_aten}")(_binary(_op))
for _op in ("EQ", "NE", "LT", "LE", "GT", "GE"):
    lowers(f"aten.{_op.lower()}.Tensor", f"aten.{_op.lower()}.Scalar")(_comparison(_op))
for _op in ("LOGICAL_AND", "LOGICAL_OR", "LOGICAL_XOR", "LOGICAL_NOT"):
    lowers(f"aten.{_op.lower()}.default")(_logical(_op))


@lowers("aten.add.Tensor", "aten.add.Scalar")
def add(ctx: Lowering, a: Operand, b: Operand, alpha: float = 1) -> str:
    """Compute ``a + alpha * b``."""
    return ctx.apply("ADD", a, _scaled(ctx, b, alpha), dtype=ctx.output.dtype)


@lowers("aten.sub.Tensor", "aten.sub.Scalar")
def sub(ctx: Lowering, a: Operand, b: Operand, alpha: float = 1) -> str:
    """Compute ``a - alpha * b``."""
    return ctx.apply("SUB", a, _scaled(ctx, b, alpha), dtype=ctx.output.dtype)


def _scaled(ctx: Lowering, x: Operand, alpha: float) -> Operand:
    if alpha == 1:
        return x
    return ctx.apply("MUL", x, alpha, dtype=ctx.output.dtype) if isinstance(x, str) else x * alpha


@lowers("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div(ctx: Lowering, a: Operand, b: Operand, rounding_mode: str | None = None) -> str:
    """Divide; round down, toward zero or not at all."""
    return ctx.apply(_DIVISIONS[rounding_mode], a, b, dtype=ctx.output.dtype)


@lowers("aten.pow.Tensor_Scalar")
def pow_scalar(ctx: Lowering, x: str, exponent: float) -> str:
    """Raise to the power of a number."""
    dtype = ctx.output.dtype
    if exponent == 2 or (is_float(dtype) and exponent in _POWERS):
        return ctx.apply(_POWERS[exponent], x, dtype=dtype)
    return ctx.apply("POW", x, exponent, dtype=dtype)


@lowers("aten.sign.default")
def sign(ctx: Lowering, x: str) -> str:
    """Return -1, 0 or 1; a bool is its own sign."""
    return x if ctx.dtype(x) == "bool" else ctx.emit("SIGN", [x])


@lowers("aten.round.decimals")
def round_decimals(ctx: Lowering, x: str, decimals: int) -> str:
    """Round to a number of decimals."""
    dtype = ctx.output.dtype
    if not is_float(dtype):
        return x
    scale, unscale = ("MUL", "DIV") if decimals > 0 else ("DIV", "MUL")
    factor = 10.0 ** abs(decimals)
    rounded = ctx.emit("ROUND", [ctx.apply(scale, x, factor, dtype=dtype)])
    return ctx.apply(unscale, rounded, factor, dtype=dtype)


@lowers("aten.clamp.default", "aten.clamp.Tensor", "aten.hardtanh.default")
def clamp(
    ctx: Lowering, x: str, min_val: Operand | None = None, max_val: Operand | None = None
) -> str:
    """Limit from below and above; if the limits cross, the upper one wins."""
    dtype = ctx.output.dtype
    x = ctx.cast(x, dtype)
    if min_val is not None:
        x = ctx.apply("MAXIMUM", x, min_val, dtype=dtype)
    if max_val is not None:
        x = ctx.apply("MINIMUM", x, max_val, dtype=dtype)
    return x


@lowers("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar")
def where(ctx: Lowering, condition: str, a: Operand, b: Operand) -> str:
    """Select ``a`` if the condition holds, else ``b``."""
    return ctx.apply("WHERE", condition, a, b, dtype=ctx.output.dtype)


@lowers("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(ctx: Lowering, x: str, mask: str, value: Operand) -> str:
    """Select ``value`` if the mask is set, else ``x``."""
    return ctx.apply("WHERE", mask, value, x, dtype=ctx.output.dtype)


@lowers("aten.gelu.default")
def gelu(ctx: Lowering, x: str, approximate: str = "none") -> str:
    """Compute GELU in its erf or its tanh form."""
    return ctx.emit("GELU_TANH" if approximate == "tanh" else "GELU", [x])


@lowers("aten.leaky_relu.default")
def leaky_relu(ctx: Lowering, x: str, negative_slope: float = 0.01) -> str:
    """Compute ``x`` if positive, else ``negative_slope * x``."""
    return ctx.apply("LEAKY_RELU", x, negative_slope, dtype=ctx.output.dtype)


@lowers("aten.elu.default")
def elu(ctx: Lowering, x: str, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> str:
    """Compute ``scale * (x if x > 0 else alpha * (exp(input_scale * x) - 1))``."""
    dtype = ctx.output.dtype
    if input_scale == 1:
        y = ctx.apply("ELU", x, alpha, dtype=dtype)
    else:
        inner = ctx.emit("EXPM1", [ctx.apply("MUL", x, input_scale, dtype=dtype)])
        negative = ctx.apply("MUL", inner, alpha, dtype=dtype)
        positive = ctx.apply("GT", x, 0, dtype=dtype)
        y = ctx.apply("WHERE", positive, x, negative, dtype=dtype)
    return y if scale == 1 else ctx.apply("MUL", y, scale, dtype=dtype)


@lowers("aten.softplus.default")
def softplus(ctx: Lowering, x: str, beta: float = 1, threshold: float = 20) -> str:
    """Compute ``log(1 + exp(beta * x)) / beta``; ``x`` if ``beta * x`` exceeds the threshold."""
    if (beta, threshold) == (1, 20):
        return ctx.emit("SOFTPLUS", [x])
    dtype = ctx.output.dtype
    scaled = ctx.apply("MUL", x, beta, dtype=dtype)
    curve = ctx.emit("LOG1P", [ctx.emit("EXP", [scaled])])
    curve = ctx.apply("DIV", curve, beta, dtype=dtype)
    linear = ctx.apply("GT", scaled, threshold, dtype=dtype)
    return ctx.apply("WHERE", linear, x, curve, dtype=dtype)


@lowers("aten._to_copy.default")
def to_copy(ctx: Lowering, x: str, dtype: str | None = None) -> str:
    """Convert the dtype; for complex to real numbers, drop the imaginary part."""
    return _converted(ctx, x, dtype or ctx.dtype(x))


@lowers("aten.copy.default")
def copy(ctx: Lowering, x: str, src: str) -> str:
    """Convert ``src`` to the type of ``x``."""
    return ctx.expand(_converted(ctx, src, ctx.dtype(x)), ctx.shape(x))


def _converted(ctx: Lowering, x: str, dtype: str) -> str:
    return ctx.cast(x if is_complex(dtype) or dtype == "bool" else real(ctx, x), dtype)


@lowers("aten.alias.default", "aten.clone.default", "aten.detach.default")
def identity(ctx: Lowering, x: str) -> str:
    """Return ``x``; tensors are values, so a copy is the same."""
    return x


def lower_other_unary_ops() -> None:
    """Register handlers of ops that have ATen's name in upper case, if they have none yet."""
    for op, micro in MICROOPS.items():
        target = f"aten.{op.lower()}.default"
        if micro.arity == 1 and target not in HANDLERS:
            lowers(target)(_unary(op))
