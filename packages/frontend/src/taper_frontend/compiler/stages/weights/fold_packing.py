"""Store packed weights packed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.graph.constants import derived

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.constants import Constant
    from taper_frontend.compiler.graph.graph import Graph


def fold_packing(graph: Graph) -> bool:
    """Make each PACK of what no input decides a constant.

    ::

        PACK(w, format)                            constant w in that format
    """
    changed = False
    for node in graph.order():
        if node.op != "PACK":
            continue
        constant = _constant(graph, node.output)
        if constant is not None:
            graph.replace_by_constant(node, constant)
            graph.listener.fired("fold_packing", node.output)
            changed = True
    return changed


def _constant(graph: Graph, tensor: str) -> Constant | None:
    """Return what computes ``tensor`` from constants alone; None where there is no such."""
    if graph.is_constant(tensor):
        return graph.constants[tensor]
    node = graph.producer(tensor)
    if node is None:
        return None
    inputs = [_constant(graph, name) for name in node.inputs]
    known = [constant for constant in inputs if constant is not None]
    if len(known) < len(inputs):
        return None
    return derived(node.op, known, node.attrs, node.source.line)
