"""Compute equal values once."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from taper_frontend.compiler.graph.constants import Parameter
from taper_frontend.compiler.rules.engine import rewrite

if TYPE_CHECKING:
    from collections.abc import Hashable

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node

# bytes; larger and replaceable constants are equal only if they are computed alike
_MAX_HASHED = 1 << 20


def eliminate_common_subexpressions(graph: Graph) -> bool:
    """Merge nodes with the same op, inputs and attrs; merge equal constants.

    ::

        x -> EXP -> a -> f                 x -> EXP -> a -> f
          -> EXP -> b -> g                               -> g

    Two outputs that are COPYs of one tensor stay, because both are needed. Nodes with blocks stay,
    too.
    """
    changed = _merge_constants(graph)
    seen: dict[Hashable, dict[Hashable, Node]] = defaultdict(dict)

    def merge(graph: Graph, node: Node) -> bool:
        if node.op == "COPY" or node.blocks:
            return False
        alike = seen[_key(node)]  # by op and attrs, which are only needed if there are two nodes
        if not alike:
            alike[None] = node
            return False
        if None in alike:
            only = alike.pop(None)
            alike[only.operation] = only
        first = alike.setdefault(node.operation, node)
        return first is not node and graph.bypass(node, *first.outputs)

    return rewrite(graph, merge) or changed


def _key(node: Node) -> Hashable:
    inputs = node.inputs
    if node.definition.commutes and len(inputs) == 2:
        inputs = sorted(inputs)
    return node.op, tuple(inputs)


def _merge_constants(graph: Graph) -> bool:
    """Merge equal constants; parameters with equal values keep all their names."""
    seen: dict[Hashable, str] = {}
    merged = [
        (name, first)
        for name in graph.constants
        if (first := seen.setdefault(_constant_key(graph, name), name)) != name
    ]
    for name, first in merged:
        kept, other = graph.constants[first], graph.constants[name]
        if isinstance(kept, Parameter) and isinstance(other, Parameter):
            names = tuple(dict.fromkeys(kept.names + other.names))
            # keep the object if possible: it identifies the constant in blocks, too
            if names != kept.names:
                graph.constants[first] = replace(kept, names=names)
        graph.replace_uses(name, first)
        graph.remove_tensor(name)
        graph.listener.fired("merge_constants", name)
    return bool(merged)


def _constant_key(graph: Graph, name: str) -> Hashable:
    constant = graph.constants[name]
    by_value = constant.nbytes <= _MAX_HASHED and not constant.is_open
    return constant.type, constant.digest if by_value else constant.identity
