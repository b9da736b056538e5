"""What positions decide: masks that say nothing, and lookups of one row after the other."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from taper_frontend.compiler.analysis.affine import Affine, affine, truth
from taper_frontend.compiler.rules.pattern import rewrite
from taper_runtime.ops.opdef import contiguous_strides
from taper_runtime.sizes import UndecidedError

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node

_CONJUNCTIONS = frozenset({"LOGICAL_AND", "BITWISE_AND"})


def simplify_positions(graph: Graph) -> bool:
    """Evaluate what positions decide for all sizes; folding does that only where sizes are known.

    ::

        ARANGE(s) >= 0                             EXPAND(true)
        WHERE(EXPAND(true), x, y)                  EXPAND(x)
        mask & EXPAND(true)                        EXPAND(mask)
        EMBEDDING(table, ARANGE(2, s + 2))         SLICE(table, 2, s + 2)
        INDEX_SELECT(x, i * n + j) = all of x      RESHAPE(x)

    A lookup becomes a SLICE only if its places are inside for all sizes.
    """
    return rewrite(graph, _settle, _choose, _drop_true, _look_up)


def _settle(graph: Graph, node: Node) -> bool:
    """Replace a bool that is the same everywhere."""
    if node.definition.view is not None or graph.is_static(node):
        return False
    known = truth(graph, node.output)
    if known is None:
        return False
    value = graph.add_constant(f"{node.output}.value", np.array(known))
    graph.replace_node(node, "EXPAND", [value], {"shape": graph.tensors[node.output].shape})
    return True


def _choose(graph: Graph, node: Node) -> bool:
    operands = node.operands() if node.op == "WHERE" else []
    known = truth(graph, node.inputs[0]) if operands and operands[0] == node.inputs[0] else None
    if known is None:
        return False
    chosen = operands[1 if known else 2]
    if (
        not isinstance(chosen, str)
        or graph.tensors[chosen].dtype != graph.tensors[node.output].dtype
    ):
        return False
    graph.replace_node(node, "EXPAND", [chosen], {"shape": graph.tensors[node.output].shape})
    return True


def _drop_true(graph: Graph, node: Node) -> bool:
    if node.op not in _CONJUNCTIONS:
        return False
    if node.attrs.get("scalar") is True and graph.tensors[node.inputs[0]].dtype == "bool":
        return graph.bypass(node, node.inputs[0])
    if len(node.inputs) != 2:
        return False
    for mask, other in (node.inputs, node.inputs[::-1]):
        if truth(graph, mask) and graph.tensors[other].dtype == "bool":
            graph.replace_node(node, "EXPAND", [other], {"shape": graph.tensors[node.output].shape})
            return True
    return False


def _look_up(graph: Graph, node: Node) -> bool:
    """Turn a lookup by positions into a view."""
    if node.op not in ("EMBEDDING", "INDEX_SELECT"):
        return False
    x, index = node.inputs
    axis = node.attrs.get("axis", 0)
    places, size = affine(graph, index), graph.tensors[x].shape[axis]
    shape, output = graph.tensors[index].shape, graph.tensors[node.output].shape
    if places is None:
        return False
    if places == _in_order(shape) and math.prod(shape) == size:
        graph.replace_node(node, "RESHAPE", [x], {"shape": output})
        return True
    moving = [i for i, step in enumerate(places.steps) if step != 0]
    if len(moving) > 1 or any(places.steps[i] != 1 for i in moving):
        return False
    try:
        low, high = places.limits(shape)
        inside = low >= 0 and high < size
    except UndecidedError:
        return False
    if not inside:
        return False
    attrs = {"axis": axis, "start": low, "stop": high + 1}
    rows = graph.add_node("SLICE", [x], attrs, source=node.source)
    before, after = graph.tensors[x].shape[:axis], graph.tensors[x].shape[axis + 1 :]
    kept = [n if i in moving else 1 for i, n in enumerate(shape)]
    attrs = {"shape": (*before, *kept, *after)}
    rows = graph.add_node("RESHAPE", [rows], attrs, source=node.source)
    graph.replace_node(node, "EXPAND", [rows], {"shape": output})
    return True


def _in_order(shape: tuple[int, ...]) -> Affine:
    """Return the places 0, 1, 2... in row-major order."""
    steps = zip(contiguous_strides(shape), shape, strict=True)
    return Affine(0, tuple(0 if size == 1 else step for step, size in steps))
