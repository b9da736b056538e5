"""Rewrite elementwise ops to one spelling, so that recognition needs only one pattern."""

from __future__ import annotations

import numpy as np

from taper_frontend.compiler.rules.engine import Replacement, Rule, RuleSet
from taper_frontend.compiler.rules.pattern import (
    Match,
    constant,
    either,
    op,
    shared,
    tensor,
)
from taper_runtime.base.errors import OpError
from taper_runtime.ops.elementwise import DIVISIONS, MICROOPS

_X, _Y = tensor(), tensor()
_FLOAT, _BOOL = tensor("float32"), tensor("bool")
_ROOT = op("SQRT", _X)
_AND, _OR = ("LOGICAL_AND", "BITWISE_AND"), ("LOGICAL_OR", "BITWISE_OR")
_NOT = ("LOGICAL_NOT", "BITWISE_NOT")


def _inline_scalar(match: Match) -> Replacement:
    """Replace a one-element constant by a scalar, if the other operand decides the type."""
    graph, node = match.graph, match.node
    if len(node.inputs) < 2 or node.attrs.get("scalar_index", -1) >= 0:
        return None
    for index, name in enumerate(node.inputs):
        if not graph.is_constant(name) or graph.tensors[name].type.size != 1:
            continue
        if node.op == "WHERE" and index == 0:
            continue
        others = node.inputs[:index] + node.inputs[index + 1 :]
        if (value := graph.value(name)) is None:
            continue
        with_scalar = {**node.attrs, "scalar": value.item(), "scalar_index": index}
        types = [graph.tensors[t].type for t in others]
        try:
            inferred = node.definition.infer_type(types, with_scalar)
        except OpError:
            continue
        if inferred == match.output:
            return op(node.op, *others, **with_scalar)
    return None


def _has_no_zero(match: Match) -> bool:
    """Return whether the divisor is known and has no 0."""
    divisor = match.node.operands()[1]
    value = match.graph.value(divisor) if isinstance(divisor, str) else divisor
    return value is not None and bool(np.all(value))


def _unchecked(match: Match) -> Replacement:
    attrs = {name: value for name, value in match.node.attrs.items() if name != "by_zero"}
    return op(match.node.op, *match.node.inputs, **attrs)


def _is_bool(match: Match) -> bool:
    return match.output.dtype == "bool"


def _is_integer(match: Match) -> bool:
    return np.dtype(match.output.dtype).kind in "iu"


def _repeated(match: Match) -> Replacement:
    """Return the bool operand, broadcast to the shape of the result."""
    return op("EXPAND", _BOOL, shape=match.output.shape)


def _has_fewer_roots(match: Match) -> bool:
    return match.type(_ROOT).size != match.output.size


#: There is no rule for x + 0.0, because it turns -0.0 into 0.0. Powers become the ops that torch
#: uses.
simplify_arithmetic = RuleSet(
    "simplify_arithmetic",
    Rule("constant of one element", op(MICROOPS), _inline_scalar),
    Rule(
        "division that needs no check", op(DIVISIONS, by_zero=False), _unchecked, where=_has_no_zero
    ),
    Rule("x * 1", op("MUL", _X, 1), _X),
    Rule("x / 1", op("DIV", _X, 1), _X),
    Rule("x // 1", op(("FLOOR_DIV", "TRUNC_DIV"), _X, 1), _X, where=_is_integer),
    Rule("x - 0", op("SUB", _X, 0), _X),
    Rule("-(-x)", op("NEG", shared(op("NEG", _X))), _X),
    Rule("not not x", op(_NOT, shared(op(_NOT, _X))), _X),
    Rule("x and true", op(_AND, _BOOL, constant(True)), _repeated, where=_is_bool),
    Rule("x or false", op(_OR, _BOOL, constant(False)), _repeated, where=_is_bool),
    Rule("x ** 1", op("POW", _X, 1), _X),
    Rule("x ** 2", op("POW", _X, 2), op("SQUARE", _X)),
    Rule("x ** 3", op("POW", _X, 3), op("MUL", _X, op("SQUARE", _X))),
    Rule("x ** 0.5", op("POW", _FLOAT, 0.5), op("SQRT", _FLOAT)),
    Rule("x ** -0.5", op("POW", _FLOAT, -0.5), op("RSQRT", _FLOAT)),
    Rule("x ** -1", op("POW", _FLOAT, -1), op("RECIPROCAL", _FLOAT)),
    Rule("x * x", op("MUL", _X, _X), op("SQUARE", _X), where=lambda m: not _is_bool(m)),
    Rule(
        "1 / sqrt(x)",
        either(op("RECIPROCAL", shared(_ROOT)), op("DIV", 1, shared(_ROOT))),
        op("RSQRT", _X),
    ),
    Rule(
        "y / sqrt(x), many y for one x",
        op("DIV", _Y, _ROOT),
        op("MUL", _Y, op("RSQRT", _X)),
        where=_has_fewer_roots,
    ),
)
