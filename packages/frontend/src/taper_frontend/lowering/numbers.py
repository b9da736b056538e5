"""Lower numbers that depend on values, and are not sizes, to scalar tensors.

torch.export represents computations with such numbers, like a loop counter, by Python operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.lowering.aten_program import Node
    from taper_frontend.lowering.context import Lowering, Operand

_ARITHMETIC = {
    "operator.add": "ADD",
    "operator.sub": "SUB",
    "operator.mul": "MUL",
    "operator.floordiv": "FLOOR_DIV",
    "operator.mod": "REMAINDER",
    "operator.neg": "NEG",
    "torch.sym_max": "MAXIMUM",
    "torch.sym_min": "MINIMUM",
}

_COMPARISONS = {
    "operator.eq": "EQ",
    "operator.ne": "NE",
    "operator.lt": "LT",
    "operator.le": "LE",
    "operator.gt": "GT",
    "operator.ge": "GE",
}

_LOGIC = {
    "operator.and_": "LOGICAL_AND",
    "operator.or_": "LOGICAL_OR",
    "torch.sym_not": "LOGICAL_NOT",
}


#: The operators that integers which depend on values may go through.
NUMBERS = frozenset(_ARITHMETIC)


def lower_number(ctx: Lowering, node: Node, operands: Sequence[Operand]) -> str:
    """Compute an integer or a bool; return the name of the scalar, int64 or bool.

    Raises
    ------
    Refusal
        If plans have no such operator.
    """
    if (op := _ARITHMETIC.get(node.target) or _COMPARISONS.get(node.target)) is not None:
        return ctx.apply(op, *operands, dtype="int64")
    if (op := _LOGIC.get(node.target)) is None:
        name = node.target.rpartition(".")[2]
        ctx.unsupported(f"{name} of a number that is read from a tensor", "data-dependent")
    return ctx.apply(op, *operands, dtype="bool")


def as_tensor(ctx: Lowering, value: Operand) -> str:
    """Return an integer or a bool as a scalar; a tensor is returned as it is."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return ctx.constant(np.array(value))
    if type(value) is int:
        return ctx.constant(np.array(value, np.int64))
    assert isinstance(value, int)
    return ctx.size_value(value, "int64")
