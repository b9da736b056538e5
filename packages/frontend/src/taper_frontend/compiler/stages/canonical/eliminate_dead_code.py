"""Remove nodes that no output needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.sizes import variables

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph


def eliminate_dead_code(graph: Graph) -> bool:
    """Remove nodes and constants that no output depends on; inputs stay.

    ::

        x -> EXP -> y (output)             x -> EXP -> y
          -> LOG -> z

    A size that a node computes is needed while a tensor's shape, an attr or the limit of another
    size uses it. A size with only one value is a check of the model, and stays.
    """
    removed = graph.prune(list(graph.tensors))
    if graph.origins:
        used = {name for node in graph.nodes.values() for name in graph.variables(node)}
        used |= {name for name, (low, high) in graph.sizes.items() if low == high}
        for name, (_, high) in reversed(graph.sizes.items()):
            if name in used:
                used.update(atom.text for atom in variables(high))
        for name in graph.origins.keys() - used:
            graph.remove_computed_size(name)
            removed += 1
    return removed > 0
