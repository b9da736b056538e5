"""Find the tensors that depend only on constants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.graph.constants import Constant, Derived

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def static_constants(graph: Graph) -> dict[str, Constant]:
    """Return the constants, and recipes of all tensors computed only from them.

    Nothing is computed.
    """
    constants: dict[str, Constant] = dict(graph.constants)
    for node in graph.order():
        if all(name in constants for name in node.reads) and _is_foldable(graph, node):
            constants.update(zip(node.outputs, _derived(graph, node, constants), strict=True))
    return constants


def _is_foldable(graph: Graph, node: Node) -> bool:
    return not node.blocks and graph.is_static(node) and not _is_bound_copy(graph, node)


def _derived(graph: Graph, node: Node, constants: Mapping[str, Constant]) -> list[Constant]:
    """Return the recipes of the outputs of ``node``."""
    inputs = tuple(constants.get(name) for name in node.inputs)
    return [
        Derived(type_, node.op, inputs, node.attrs, node.source.line, index)
        for index, type_ in enumerate(graph.output_types(node))
    ]


def _is_bound_copy(graph: Graph, node: Node) -> bool:
    """Return whether ``node`` copies a constant to an output or a size, and so must stay."""
    return node.op == "COPY" and (graph.is_output(node.output) or graph.is_origin(node.output))
