"""Recognize layer norm and RMS norm that are written out, with weight and bias."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.graph.node import ABSENT
from taper_frontend.compiler.rules.engine import Rule, RuleSet
from taper_frontend.compiler.rules.pattern import (
    Match,
    Pattern,
    attr,
    either,
    like,
    number,
    op,
    product,
    tensor,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_X = tensor("float32")
_EPS, _AXES = number(), attr()

_CENTRED = op("SUB", _X, op("MEAN", _X, axes=_AXES, keepdim=True))
_VARIANCE = either(
    op("MEAN", product(_CENTRED, _CENTRED), axes=_AXES, keepdim=True),
    op("VAR", _X, axes=_AXES, keepdim=True, correction=0.0),
)
_MEAN_SQUARE = op("MEAN", product(_X, _X), axes=_AXES, keepdim=True)

_DIMS, _WEIGHT, _BIAS = attr(), tensor(), tensor()
_LAYER_NORM = op("LAYER_NORM", _X, dims=_DIMS)
_WEIGHTED = op("LAYER_NORM", _X, _WEIGHT, dims=_DIMS)
_RMS_NORM = op("RMS_NORM", _X, dims=_DIMS)


def _dims(match: Match) -> int:
    return len(match[_AXES])


def _last_axes(match: Match) -> bool:
    """Return whether the reductions run over the last dimensions."""
    rank, axes = len(match.type(_X).shape), tuple(match[_AXES])
    return axes == tuple(range(rank - len(axes), rank))


def _fits(parameter: Pattern) -> Callable[[Match], bool]:
    """Return a check that a parameter has the shape of the normalized dimensions."""

    def fits(match: Match) -> bool:
        shape = match.output.shape
        return match.type(parameter).shape == shape[len(shape) - match[_DIMS] :]

    return fits


#: simplify_arithmetic has rewritten other spellings to RSQRT.
recognize_norms = RuleSet(
    "recognize_norms",
    Rule(
        "(x - mean(x)) / sqrt(var(x) + eps)",
        product(op("RSQRT", op("ADD", _VARIANCE, _EPS)), _CENTRED),
        op("LAYER_NORM", _X, dims=_dims, eps=_EPS),
        where=_last_axes,
    ),
    Rule(
        "x / sqrt(mean(x ** 2) + eps)",
        product(op("RSQRT", op("ADD", _MEAN_SQUARE, _EPS)), _X),
        op("RMS_NORM", _X, dims=_dims, eps=_EPS),
        where=_last_axes,
    ),
    Rule(
        "layer norm's weight",
        op("MUL", _LAYER_NORM, _WEIGHT),
        like(_LAYER_NORM, _X, _WEIGHT),
        where=_fits(_WEIGHT),
    ),
    Rule(
        "layer norm's bias",
        op("ADD", _LAYER_NORM, _BIAS),
        like(_LAYER_NORM, _X, ABSENT, _BIAS),
        where=_fits(_BIAS),
    ),
    Rule(
        "layer norm's bias after its weight",
        op("ADD", _WEIGHTED, _BIAS),
        like(_WEIGHTED, _X, _WEIGHT, _BIAS),
        where=_fits(_BIAS),
    ),
    Rule(
        "RMS norm's weight",
        op("MUL", _RMS_NORM, _WEIGHT),
        like(_RMS_NORM, _X, _WEIGHT),
        where=_fits(_WEIGHT),
    ),
)
