"""Estimate times of a graph's nodes: for passes that weigh one form against another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.machine.cost import NEAR, Place, cost

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def node_cost(graph: Graph, node: Node, place: Place = NEAR) -> float:
    """Estimate the time of a static node on one thread, in nanoseconds."""
    types = [graph.tensors[name].type for name in node.inputs]
    output = graph.tensors[node.output].type
    return cost(node.definition, types, output, node.complete_attrs(), place)
