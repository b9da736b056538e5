"""Estimate times of a graph's nodes, for passes that compare alternatives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.graph.node import ABSENT
from taper_runtime.machine.cost import NEAR, Locality, beyond_cache, cost, shared_ns

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def node_cost(graph: Graph, node: Node, place: Locality = NEAR) -> float:
    """Estimate the time of a static node on one thread, in nanoseconds."""
    types = [None if name == ABSENT else graph.tensors[name].type for name in node.inputs]
    outputs = [graph.tensors[name].type for name in node.outputs]
    return cost(node.definition, types, outputs, node.complete_attrs(), place)


def placed_cost(graph: Graph, node: Node, share: float = 1.0) -> float:
    """Estimate the time of a node of a scheduled graph, in nanoseconds, with its memory traffic.

    ``share`` is the fraction of its output that it computes. Weights stream from the cache that
    cores share, and operands beyond the core's own cache are waited for. A node with blocks, or of
    sizes that vary, counts as its traffic alone.
    """
    sizes = {name: graph.nbytes(name) for name in (*node.reads, *node.outputs)}
    weights = sum(nbytes for name, nbytes in sizes.items() if graph.is_constant(name))
    if node.blocks or not graph.is_static(node):
        return shared_ns(share * (sum(sizes.values()) - weights) + weights)
    others = (share * nbytes for name, nbytes in sizes.items() if not graph.is_constant(name))
    moved = sum(map(beyond_cache, others))
    place = Locality(share, streamed=shared_ns(weights), waited=shared_ns(moved))
    return node_cost(graph, node, place)
