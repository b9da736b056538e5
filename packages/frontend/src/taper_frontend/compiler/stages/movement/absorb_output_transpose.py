"""Attention whose heads are put side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.permutation import permutation, swaps
from taper_frontend.compiler.rules.engine import rewrite

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def absorb_output_transpose(graph: Graph) -> bool:
    """Let ATTENTION write its output with the heads beside each other.

    ::

        ATTENTION -> [B, H, L, D]                  ATTENTION(transpose_output) -> [B, L, H, D]
          -> TRANSPOSE(1, 2) -> [B, L, H, D]         -> RESHAPE [B, L, H * D]     (now free)
          -> RESHAPE [B, L, H * D]                                                (was a copy)

    Only where nothing else reads the output as it was.
    """
    return rewrite(graph, _absorb)


def _absorb(graph: Graph, node: Node) -> bool:
    axes = permutation(graph, node)
    if axes is None or len(axes) != 4 or not swaps(axes, 1, 2):
        return False
    attention = graph.producer(node.inputs[0])
    if attention is None or attention.op != "ATTENTION" or attention.attrs.get("transpose_output"):
        return False
    if graph.sole_consumer(attention.output) is not node:
        return False
    attrs = attention.attrs | {"transpose_output": True}
    graph.replace_node(node, "ATTENTION", attention.inputs, attrs)
    return True
