"""What no output needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph


def eliminate_dead_code(graph: Graph) -> bool:
    """Remove nodes and constants that no output depends on; inputs stay.

    ::

        x -> EXP -> y (output)             x -> EXP -> y
          -> LOG -> z

    A size that a node computes is needed while a tensor's shape or an attr mentions it.
    """
    removed = graph.prune(list(graph.tensors))
    if graph.origins:
        used = {name for node in graph.nodes.values() for name in graph.variables(node)}
        for name in graph.origins.keys() - used:
            graph.remove_computed_size(name)
            removed += 1
    return removed > 0
