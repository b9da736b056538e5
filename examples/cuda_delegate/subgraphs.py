"""Find the subgraphs that the delegate takes: the side of the export."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cuda_delegate.steps import BLOB, UnsupportedError, read_node, read_program
from taper_frontend.delegates import CannotDelegate

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def cuda_subgraphs(graph: Graph) -> list[list[str]]:
    """Return the longest runs of nodes that the delegate computes, each with a product.

    The nodes of a run follow each other in the graph's order, so that they can run as one.
    """
    runs: list[list[Node]] = [[]]
    for node in graph.order():
        if _is_taken(graph, node):
            runs[-1].append(node)
        else:
            runs.append([])
    return [
        [node.output for node in run] for run in runs if any(node.op == "MATMUL" for node in run)
    ]


def compile_subgraph(graph: Graph) -> bytes:
    """Check that the delegate computes a subgraph, and return its blob.

    Raises
    ------
    CannotDelegate
        If it does not; the message tells of the first node why.
    """
    types = {name: graph.tensors[name].type for name in graph.inputs}
    try:
        read_program(graph.order(), types, graph.outputs)
    except UnsupportedError as reason:
        raise CannotDelegate(str(reason)) from reason
    return BLOB


def _is_taken(graph: Graph, node: Node) -> bool:
    try:
        read_node(node, {name: graph.tensors[name].type for name in node.reads})
    except UnsupportedError:
        return False
    return True
