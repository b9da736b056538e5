"""Evaluate tensors of positions for all sizes; folding does so only for known sizes."""

from __future__ import annotations

import math

import numpy as np

from taper_frontend.compiler.analysis.affine import Affine, affine, truth
from taper_frontend.compiler.rules.engine import Replacement, Rule, RuleSet
from taper_frontend.compiler.rules.pattern import Match, Pattern, op, tensor
from taper_runtime.base.sizes import UndecidedError
from taper_runtime.formats import PLAIN
from taper_runtime.ops.opdef import contiguous_strides

_AND = ("LOGICAL_AND", "BITWISE_AND")

_MASK, _BOOL = tensor(), tensor("bool")


def _repeat(tensor: Pattern | str, match: Match) -> Replacement:
    return op("EXPAND", tensor, shape=match.output.shape)


def _settle(match: Match) -> Replacement:
    """Replace a bool tensor whose elements are all equal."""
    graph, node = match.graph, match.node
    if node.definition.view is not None or graph.is_static(node):
        return None
    known = truth(graph, node.output)
    if known is None:
        return None
    return _repeat(graph.add_constant(f"{node.output}.value", np.array(known)), match)


def _choose(match: Match) -> Replacement:
    node = match.node
    operands = node.operands()
    known = truth(match.graph, node.inputs[0]) if operands[0] == node.inputs[0] else None
    if known is None:
        return None
    chosen = operands[1 if known else 2]
    if not isinstance(chosen, str) or match.graph.tensors[chosen].dtype != match.output.dtype:
        return None
    return _repeat(chosen, match)


def _look_up(match: Match) -> Replacement:
    """Replace a lookup by positions by a view."""
    graph, node = match.graph, match.node
    x, index = node.inputs
    axis = node.attrs.get("axis", 0)
    places, size = affine(graph, index), graph.tensors[x].shape[axis]
    shape, output = graph.tensors[index].shape, match.output.shape
    if places is None or graph.tensors[x].format != PLAIN:
        return None
    if places == _in_order(shape) and math.prod(shape) == size:
        return op("RESHAPE", x, shape=output)
    moving = [i for i, step in enumerate(places.steps) if step != 0]
    if len(moving) > 1 or any(places.steps[i] != 1 for i in moving):
        return None
    try:
        low, high = places.limits(shape)
        inside = low >= 0 and high < size
    except UndecidedError:
        return None
    if not inside:
        return None
    before, after = graph.tensors[x].shape[:axis], graph.tensors[x].shape[axis + 1 :]
    kept = [n if i in moving else 1 for i, n in enumerate(shape)]
    rows = op("SLICE", x, axis=axis, start=low, stop=high + 1)
    return _repeat(op("RESHAPE", rows, shape=(*before, *kept, *after)), match)


def _in_order(shape: tuple[int, ...]) -> Affine:
    """Return the positions 0, 1, 2... in row-major order."""
    steps = zip(contiguous_strides(shape), shape, strict=True)
    return Affine(0, tuple(0 if size == 1 else step for step, size in steps))


#: A lookup becomes a SLICE only if its positions are in range for all sizes::
#:
#:     ARANGE(s) >= 0                             EXPAND(true)
#:     EMBEDDING(table, ARANGE(2, s + 2))         SLICE(table, 2, s + 2)
#:     INDEX_SELECT(x, i * n + j) = all of x      RESHAPE(x)
simplify_positions = RuleSet(
    "simplify_positions",
    Rule("mask that is the same everywhere", _BOOL, _settle),
    Rule("WHERE of such a mask", op("WHERE"), _choose),
    Rule("x and the number true", op(_AND, _BOOL, True), _BOOL),
    Rule(
        "x and a mask that is true",
        op(_AND, _MASK, _BOOL),
        lambda match: _repeat(_BOOL, match),
        where=lambda match: bool(truth(match.graph, match[_MASK])),
    ),
    Rule("lookup by positions", op(("EMBEDDING", "INDEX_SELECT")), _look_up),
)
