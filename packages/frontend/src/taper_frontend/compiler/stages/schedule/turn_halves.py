"""Compute rotary embeddings without copies of the halves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_frontend.compiler.graph.constants import derived, literal, reshaped
from taper_frontend.compiler.rules.engine import Rule, RuleSet
from taper_frontend.compiler.rules.pattern import attr, op, tensor
from taper_runtime.ops.type_rules import FLOATS

if TYPE_CHECKING:
    from taper_frontend.compiler.rules.pattern import Match

_x = tensor(where=lambda spec: spec.dtype in FLOATS)
_cosine, _sine = tensor(), tensor()
_axis, _middle, _end = attr(), attr(), attr()


def _turn(match: Match) -> bool:
    """Rewrite a match, if its parts are halves of the axis."""
    graph, node = match.graph, match.node
    shape, axis, half = match.output.shape, match[_axis], match[_middle]
    if match.type(_x).shape != shape or match[_end] != 2 * half or shape[axis] != 2 * half:
        return False
    behind = len(shape) - axis - 1

    def split(name: str) -> str:
        """Return a tensor with its two halves along an axis of their own."""
        own = graph.tensors[name].shape
        place = len(own) - behind - 1
        if place < 0:
            return name
        size = own[place]
        parts = (size, 1) if size == 1 else (2, half)
        wanted = (*own[:place], *parts, *own[place + 1 :])
        if graph.is_constant(name):
            return graph.add_constant(f"{name}.halves", reshaped(graph.constants[name], wanted))
        return graph.add_node("RESHAPE", [name], {"shape": wanted}, source=node.source)

    x, cosine, sine = (split(match[each]) for each in (_x, _cosine, _sine))
    signs = np.array([-1, 1], match.output.dtype).reshape(2, *[1] * (behind + 1))
    turned = graph.add_node("FLIP", [x], {"axes": (axis,)}, source=node.source)
    if graph.is_constant(sine):
        recipe = derived("MUL", [graph.constants[sine], literal(signs)])
        signed = graph.add_constant(f"{sine}.signed", recipe)
    else:
        sign = graph.add_constant(f"{node.output}.signs", signs)
        signed = graph.add_node("MUL", [sine, sign], source=node.source)
    terms = [
        graph.add_node("MUL", factors, source=node.source)
        for factors in ([x, cosine], [turned, signed])
    ]
    whole = graph.add_node("ADD", terms, name=f"{node.output}.halves", source=node.source)
    graph.replace_node(node, "RESHAPE", [whole], {"shape": shape})
    return True


#: Read halves in exchanged order, where they are, and change the sign of what multiplies them.
#:
#: ::
#:
#:     x [.., 2n] -> SLICE(n, 2n) -> NEG -> CAT -> MUL(., sine) -> ADD(., MUL(x, cosine))
#:       -> SLICE(0, n) --------------^
#:
#:     x -> RESHAPE [.., 2, n] -> FLIP -> MUL(., sine * [-1, 1]) -> ADD(., MUL(x, cosine))
#:
#: The bits are the same. One node computes it, for RESHAPE and FLIP are views; the signed sine is
#: computed once for all layers. J. Su et al., "RoFormer", 2021.
turn_halves = RuleSet(
    "turn_halves",
    Rule(
        "a rotary embedding",
        op(
            "ADD",
            op("MUL", _x, _cosine),
            op(
                "MUL",
                op(
                    "CAT",
                    op("NEG", op("SLICE", _x, axis=_axis, start=_middle, stop=_end, step=1)),
                    op("SLICE", _x, axis=_axis, start=0, stop=_middle, step=1),
                    axis=_axis,
                ),
                _sine,
            ),
        ),
        _turn,
    ),
)
