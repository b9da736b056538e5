"""Packed weights, stored packed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.graph.evaluate import constant_value

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph


def fold_packing(graph: Graph) -> bool:
    """Compute each PACK of what no input decides; one after the other, so that originals go.

    ::

        PACK(w, format)                            constant w in that format
    """
    changed = False
    for node in graph.order():
        if node.op != "PACK":
            continue
        value = constant_value(graph, node.output)
        if value is not None:
            graph.replace_by_constant(node, value)
            changed = True
    return changed
