"""Lower fractions that a program computes from sizes, such as ``n ** -0.5``, to scalars."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from taper_frontend.lowering.float_sizes import spelled
from taper_frontend.lowering.symbols import SizeError

if TYPE_CHECKING:
    import sympy

    from taper_frontend.lowering.context import Lowering, Operand
    from taper_frontend.lowering.symbols import Sizes

#: The op for each function in expressions. torch computes in float64 and rounds when a tensor is
#: involved; ops compute in float32.
_OPS = {
    "Add": "ADD",
    "Mul": "MUL",
    "Pow": "POW",
    "FloatPow": "POW",
    "FloatTrueDiv": "DIV",
    "IntTrueDiv": "DIV",
    "OpaqueUnaryFn_sqrt": "SQRT",
}


def lower_fraction(ctx: Lowering, sizes: Sizes, expr: sympy.Expr) -> Operand:
    """Return the value of ``expr``: a number, a size, or the name of a float32 scalar.

    Raises
    ------
    SizeError
        If no op computes it.
    """
    if expr.func.__name__ == "ToFloat":
        return lower_fraction(ctx, sizes, expr.args[0])
    if expr.is_number:
        return int(expr) if expr.is_Integer else float(expr)
    if expr.is_integer:
        return sizes.convert(expr)
    op = _OPS.get(expr.func.__name__)
    if op is None:
        text = spelled(expr, sizes.convert)
        raise SizeError(f"expected a fraction of sizes that ops can compute, got {text}")
    operands = [lower_fraction(ctx, sizes, arg) for arg in expr.args]
    if len(operands) == 1:
        return ctx.apply(op, *operands, dtype="float32")
    return reduce(lambda a, b: ctx.apply(op, a, b, dtype="float32"), operands)
