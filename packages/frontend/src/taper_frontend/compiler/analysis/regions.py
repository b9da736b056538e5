"""Find which parts of its inputs a node of a graph needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_runtime.ops.region import Part, Range, Region


def regions(graph: Graph, node: Node) -> Sequence[Region]:
    """Return the region of each input of ``node``; see :mod:`taper_runtime.ops.region`."""
    types = graph.input_types(node)
    return node.definition.needs(types, graph.tensors[node.output].type, node.attrs)


def part_of(graph: Graph, node: Node, cuts: Mapping[int, Range]) -> Part | None:
    """Return how ``node`` computes ranges of its output's axes from parts of its inputs.

    Return None if its op cannot do that.
    """
    types = graph.input_types(node)
    return node.definition.part(types, graph.tensors[node.output].type, node.attrs, cuts)
