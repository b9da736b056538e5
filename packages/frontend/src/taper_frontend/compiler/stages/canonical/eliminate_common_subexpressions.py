"""The same value computed twice."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from taper_frontend.compiler.rules.engine import rewrite

if TYPE_CHECKING:
    from collections.abc import Hashable

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node

_MAX_HASHED = 1 << 20  # bytes; larger constants are equal only if they are the same memory


def eliminate_common_subexpressions(graph: Graph) -> bool:
    """Let all nodes with one op, the same inputs and equal attrs be one; equal constants too.

    ::

        x -> EXP -> a -> f                 x -> EXP -> a -> f
          -> EXP -> b -> g                               -> g

    Two outputs that are COPYs of one tensor stay so: neither would be less.
    """
    changed = _merge_constants(graph)
    seen: dict[Hashable, Node] = {}

    def merge(graph: Graph, node: Node) -> bool:
        if node.op == "COPY":
            return False
        first = seen.setdefault(_key(node), node)
        return first is not node and graph.bypass(node, first.output)

    return rewrite(graph, merge) or changed


def _key(node: Node) -> Hashable:
    inputs = node.inputs
    if node.definition.commutes and len(inputs) == 2:
        inputs = sorted(inputs)
    # repr tells 0, 0.0, -0.0 and False apart
    return node.op, tuple(inputs), repr(sorted(node.complete_attrs().items()))


def _merge_constants(graph: Graph) -> bool:
    seen: dict[Hashable, str] = {}
    merged = [
        (name, first)
        for name in graph.constants
        if (first := seen.setdefault(_constant_key(graph, name), name)) != name
    ]
    for name, first in merged:
        graph.replace_uses(name, first)
        graph.remove_tensor(name)
        graph.listener.fired("merge_constants", name)
    return bool(merged)


def _constant_key(graph: Graph, name: str) -> Hashable:
    array: Any = graph.constants[name]
    if array.nbytes <= _MAX_HASHED:
        identity: Hashable = hashlib.sha256(array.tobytes()).digest()
    else:
        identity = array.ctypes.data
    return graph.tensors[name].type, identity
