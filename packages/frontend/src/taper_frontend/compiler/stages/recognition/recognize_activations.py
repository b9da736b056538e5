"""Activation functions written out by hand."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from taper_frontend.compiler.rules.pattern import (
    either,
    find,
    inverse,
    op,
    product,
    rewrite,
    tensor,
)

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node

_X = tensor(lambda spec: spec.dtype == "float32")

_CUBIC = either(  # sqrt(2/pi) * (x + 0.044715 x^3), or with x taken out of the bracket
    product(math.sqrt(2 / math.pi), op("ADD", product(0.044715, _X, _X, _X), _X)),
    product(math.sqrt(2 / math.pi), op("ADD", product(0.044715, _X, _X), 1), _X),
)

#: op -> what it computes
_FORMULAS = {
    "GELU_TANH": product(0.5, op("ADD", op("TANH", _CUBIC), 1), _X),
    "GELU": product(0.5, op("ADD", op("ERF", product(math.sqrt(0.5), _X)), 1), _X),
    "SILU": either(
        product(op("SIGMOID", _X), _X),
        product(_X, inverse(op("ADD", op("EXP", op("NEG", _X)), 1))),
    ),
}


def recognize_activations(graph: Graph) -> bool:
    """Make one op of an activation's formula, however it is bracketed.

    ::

        0.5 * x * (1 + TANH(sqrt(2/pi) * (x + 0.044715 * x**3)))      GELU_TANH(x)
        0.5 * x * (1 + ERF(x / sqrt(2)))                              GELU(x)
        x * SIGMOID(x), x / (1 + EXP(-x))                             SILU(x)
    """
    return rewrite(graph, _activation)


def _activation(graph: Graph, node: Node) -> bool:
    for name, formula in _FORMULAS.items():
        if match := find(graph, node, formula):
            graph.replace_node(node, name, [match[_X]])
            return True
    return False
