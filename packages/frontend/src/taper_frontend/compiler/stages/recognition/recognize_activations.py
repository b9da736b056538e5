"""Recognize activation functions that are written out, in any bracketing."""

from __future__ import annotations

import math

from taper_frontend.compiler.rules.engine import Rule, RuleSet
from taper_frontend.compiler.rules.pattern import either, inverse, op, product, tensor

_X = tensor("float32")

_CUBIC = either(  # sqrt(2/pi) * (x + 0.044715 x^3), or with x factored out
    product(math.sqrt(2 / math.pi), op("ADD", product(0.044715, _X, _X, _X), _X)),
    product(math.sqrt(2 / math.pi), op("ADD", product(0.044715, _X, _X), 1), _X),
)
_TANH = op("ADD", op("TANH", _CUBIC), 1)
_ERF = op("ADD", op("ERF", product(math.sqrt(0.5), _X)), 1)

recognize_activations = RuleSet(
    "recognize_activations",
    Rule("x/2 (1 + tanh(...))", product(0.5, _TANH, _X), op("GELU_TANH", _X)),
    Rule("x/2 (1 + erf(x/sqrt(2)))", product(0.5, _ERF, _X), op("GELU", _X)),
    Rule("x sigmoid(x)", product(op("SIGMOID", _X), _X), op("SILU", _X)),
    Rule(
        "x / (1 + exp(-x))",
        product(_X, inverse(op("ADD", op("EXP", op("NEG", _X)), 1))),
        op("SILU", _X),
    ),
)
