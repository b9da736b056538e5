"""Recognize softmax that is written out."""

from __future__ import annotations

from taper_frontend.compiler.rules.engine import Rule, RuleSet
from taper_frontend.compiler.rules.pattern import Match, attr, inverse, op, product, tensor

_X = tensor("float32")
_AXES = attr()
_SHIFTED = op("SUB", _X, op("AMAX", _X, axes=_AXES, keepdim=True))
_EXP = op("EXP", _SHIFTED)
_TOTAL = op("SUM", _EXP, axes=_AXES, keepdim=True)


def _axis(match: Match) -> int:
    (axis,) = match[_AXES]
    return int(axis)


def _is_one_axis(match: Match) -> bool:
    return len(match[_AXES]) == 1


#: Only the form that subtracts the maximum is replaced. The other form overflows for large values,
#: and the plan must do so, too.
recognize_softmax = RuleSet(
    "recognize_softmax",
    Rule(
        "softmax",
        product(_EXP, inverse(_TOTAL)),
        op("SOFTMAX", _X, axis=_axis, log=False),
        where=_is_one_axis,
    ),
    Rule(
        "log of softmax",
        op("SUB", _SHIFTED, op("LOG", _TOTAL)),
        op("SOFTMAX", _X, axis=_axis, log=True),
        where=_is_one_axis,
    ),
)
