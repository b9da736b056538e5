"""Recognize attention written as MATMUL, SOFTMAX and MATMUL."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from taper_frontend.compiler.analysis.permutation import permutation_op
from taper_frontend.compiler.analysis.product import is_plain_matmul
from taper_frontend.compiler.rules.engine import Rule, RuleSet
from taper_frontend.compiler.rules.pattern import op

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node, SourceLine
    from taper_frontend.compiler.rules.pattern import Match

#: A change of the scores: its kind (SCALE, which comes first; ADD, KEEP, DROP), its factor, addend
#: or condition, and the number that masked scores are set to.
_Step = tuple[str, str, float]

#: A number of at most this acts like -inf for masked scores: if there is any other score, their
#: weight is exactly 0. Many models use -1e9.
VANISHING = -1e9

#: The number that is added to masked scores instead. It absorbs any score in float32 and in
#: float64, so a row with every key masked attends to all keys equally, as if scores were set to one
#: number.
_SWALLOWING = -1e30


def _attention(match: Match) -> bool:
    """Replace a MATMUL of a SOFTMAX of masked scores by ATTENTION."""
    graph, node = match.graph, match.node
    if not is_plain_matmul(node) or node.attrs.get("alpha", 1.0) != 1.0:
        return False
    weights, v = node.inputs
    softmax = graph.producers.get(weights)
    if softmax is None or softmax.op != "SOFTMAX" or graph.sole_consumer(weights) is not node:
        return False
    rank = len(graph.tensors[weights].shape)
    if softmax.attrs["axis"] != rank - 1 or softmax.attrs.get("log") or rank not in (3, 4):
        return False
    for scores, steps in _find_scores(graph, softmax.inputs[0], softmax):
        q, k = scores.inputs
        operands = [graph.tensors[x] for x in (q, k, v)]
        if {(x.dtype, len(x.shape)) for x in operands} != {("float32", rank)}:
            continue
        if len({x.shape[:-2] for x in operands}) != 1:  # the product would broadcast
            continue
        if not scores.attrs.get("transpose_b"):
            k = _transposed(graph, k, node.source)
        if node.attrs.get("transpose_b"):
            v = _transposed(graph, v, node.source)
        if steps and steps[0][0] == "SCALE":
            q = graph.add_node("MUL", [q, steps.pop(0)[1]], source=scores.source)
        mask = _mask(graph, steps, node.source)
        inputs = [q, k, v] if mask is None else [q, k, v, mask]
        attrs = {"scale": scores.attrs.get("alpha", 1.0), "safe_softmax": False}
        graph.replace_node(node, "ATTENTION", inputs, attrs)
        return True
    return False


def _find_scores(graph: Graph, tensor: str, reader: Node) -> Iterator[tuple[Node, list[_Step]]]:
    """Yield each MATMUL from which ``tensor`` is computed by masking, with the masking steps."""
    node = graph.producers.get(tensor)
    if node is None or graph.sole_consumer(tensor) is not reader:
        return
    if is_plain_matmul(node):
        yield node, []
        return
    if node.op == "MUL" and len(node.inputs) == 2:
        yield from _scaled_products(graph, node)
    for scores, step in _masking_steps(node):
        if graph.tensors[scores].type == graph.tensors[tensor].type:
            for found, steps in _find_scores(graph, scores, node):
                yield found, [*steps, step]


def _scaled_products(graph: Graph, node: Node) -> Iterator[tuple[Node, list[_Step]]]:
    """Yield the MATMUL that ``node`` multiplies by a constant per head, and that as a step."""
    for scores, factor in (node.inputs, node.inputs[::-1]):
        product = graph.producers.get(scores)
        if (
            is_plain_matmul(product)
            and factor in graph.constants
            and graph.tensors[factor].shape[-2:] == (1, 1)
            and graph.sole_consumer(scores) is node
            and graph.tensors[scores].type == graph.tensors[node.output].type
        ):
            yield product, [("SCALE", factor, 0.0)]


def _masking_steps(node: Node) -> Iterator[tuple[str, _Step]]:
    """Yield the ways to read ``node`` as masking: the scores that it masks, and the step."""
    match node.op, node.operands():
        case "ADD", [str(a), str(b)]:
            yield a, ("ADD", b, 0.0)
            yield b, ("ADD", a, 0.0)
        case "WHERE", [str(keep), str(scores), float(fill)] if fill <= VANISHING:
            yield scores, ("KEEP", keep, fill)
        case "WHERE", [str(drop), float(fill), str(scores)] if fill <= VANISHING:
            yield scores, ("DROP", drop, fill)


def _mask(graph: Graph, steps: list[_Step], source: SourceLine) -> str | None:
    """Join masking steps, innermost first, into one bool or float mask; None if there are none."""

    def emit(op: str, *inputs: str, **attrs: object) -> str:
        return graph.add_node(op, inputs, attrs, name="mask", source=source)

    def addend(mask: str) -> str:
        """Return ``mask`` as what is added to the scores."""
        if graph.tensors[mask].dtype != "bool":
            return mask
        return emit("WHERE", mask, zero(), scalar=-math.inf, scalar_index=2)

    def zero() -> str:
        return graph.add_constant("mask.zero", np.zeros((), np.float32))

    def negated(mask: str) -> str:
        node = graph.producers.get(mask)
        if node is not None and node.op in ("LOGICAL_NOT", "BITWISE_NOT"):
            return node.inputs[0]
        return emit("LOGICAL_NOT", mask)

    mask: str | None = None
    for kind, other, fill in steps:
        if kind == "ADD":
            mask = other if mask is None else emit("ADD", addend(mask), other)
            continue
        keep = other if kind == "KEEP" else negated(other)
        if fill != -math.inf:
            kept = zero() if mask is None else addend(mask)
            mask = emit("WHERE", keep, kept, scalar=min(fill, _SWALLOWING), scalar_index=2)
        elif mask is None:
            mask = keep
        elif graph.tensors[mask].dtype == "bool":
            mask = emit("LOGICAL_AND", mask, keep)
        else:
            mask = emit("WHERE", keep, mask, scalar=fill, scalar_index=2)
    return mask


def _transposed(graph: Graph, tensor: str, source: SourceLine) -> str:
    rank = len(graph.tensors[tensor].shape)
    op, attrs = permutation_op([*range(rank - 2), rank - 1, rank - 2])
    return graph.add_node(op, [tensor], attrs, source=source)


#: Make one ATTENTION of scores, softmax and the weighted sum.
#:
#: ::
#:
#:     MATMUL(q, k, transpose_b, alpha)                   ATTENTION(q, k, v, mask, scale=alpha)
#:       [-> MUL(., factor of each head)]
#:       [-> ADD(., mask) | WHERE(keep, ., -inf) | WHERE(drop, -inf, .)] ...
#:       -> SOFTMAX(last axis) -> MATMUL(., v)
#:
#: The masking steps become the mask: a bool condition if masked scores are -inf, else a float to
#: add (many models use a low number for -inf). A row with every key masked is NaN, as for softmax.
#: A number that scales the scores is in alpha already, and bmm has its batch dimensions back
#: (absorb_into_matmul, hoist_reshapes). Factors per head scale q.
recognize_attention = RuleSet(
    "recognize_attention", Rule("softmax(q k) v", op("MATMUL"), _attention)
)
