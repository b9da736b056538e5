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
    """
    return graph.prune(list(graph.tensors)) > 0
