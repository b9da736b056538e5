"""Store packed weights in packed form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.static import static_constants

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph


def fold_packing(graph: Graph) -> bool:
    """Replace each PACK of a tensor that depends on no input by a constant.

    ::

        PACK(w, format)                            constant w in that format
    """
    packs = [node for node in graph.order() if node.op == "PACK"]
    constants = static_constants(graph) if packs else {}
    changed = False
    for node in packs:
        if node.output in constants:
            graph.replace_by_constant(node, constants[node.output])
            graph.listener.fired("fold_packing", node.output)
            changed = True
    return changed
