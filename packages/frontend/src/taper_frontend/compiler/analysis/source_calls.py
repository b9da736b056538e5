"""Tell whether a node still computes the ATen call that it was lowered from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_frontend.compiler.analysis.tile_programs import is_elementwise

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def function_of(graph: Graph, node: Node) -> tuple[Any, ...]:
    """Return a key that is equal for nodes that compute the same function of the same types.

    An elementwise op computes the same function whatever the shapes.
    """
    specs = [graph.tensors.get(name) for name in (*node.inputs, *node.outputs)]
    ignores_shapes = is_elementwise(node)
    types = [
        spec and (spec.dtype, spec.format, None if ignores_shapes else spec.shape) for spec in specs
    ]
    return *node.operation, *types


def arguments_of(graph: Graph, node: Node) -> str | None:
    """Return the arguments of the call that a node computes; None if it is not one whole call."""
    line = node.source
    if line.call is None or len(line.targets) != 1 or node.blocks:
        return None
    return line.call.arguments if line.call.function == function_of(graph, node) else None
