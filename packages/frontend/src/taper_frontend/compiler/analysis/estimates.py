"""Estimate times of a graph's nodes, for passes that compare alternatives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.graph.node import ABSENT
from taper_runtime.machine.cost import NEAR, Locality, cost

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def node_cost(graph: Graph, node: Node, place: Locality = NEAR) -> float:
    """Estimate the time of a static node on one thread, in nanoseconds."""
    types = [None if name == ABSENT else graph.tensors[name].type for name in node.inputs]
    outputs = [graph.tensors[name].type for name in node.outputs]
    return cost(node.definition, types, outputs, node.complete_attrs(), place)
