"""What a node takes on one core, roughly: for passes that weigh one form against another."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node

#: Bytes that a core's own cache holds of what a node reads and writes.
CACHE = 1 << 20

#: What a core does in a nanosecond: operations, and bytes from beyond its own cache.
_FLOPS, _BYTES = 160.0, 20.0

#: What a node takes beside its work, in nanoseconds.
NODE_NS = 1000.0


def work_ns(graph: Graph, node: Node) -> float:
    """Time of a static node's operations, everything at hand."""
    types = [graph.tensors[name].type for name in node.inputs]
    output = graph.tensors[node.output].type
    return node.definition.cost(types, output, node.complete_attrs()).flops / _FLOPS


def memory_ns(nbytes: float) -> float:
    """Time of reading or writing bytes beyond the core's own cache."""
    return nbytes / _BYTES
