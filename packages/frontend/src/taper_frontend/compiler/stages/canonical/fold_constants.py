"""Take nodes that do not depend on the inputs out of the graph that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.static import static_constants
from taper_runtime.ops.convert import NARROW

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node

_SMALL = 4 << 20  # bytes; up to here a constant may be any size
_SMALL_WIDENED = 64 << 10  # bytes; up to here a constant made of narrow numbers may be any size
_MAX_GROWTH = 16  # times the constants a larger one is computed from


def fold_constants(graph: Graph) -> bool:
    """Make what depends on constants alone a constant, of which the nodes are the recipe.

    ::

        c -> COS -> MUL(x, .)              MUL(x, constant cos(c))

    Only what something else reads becomes a constant; what is on the way to it does not. Nothing is
    computed: that is done where a plan stores the values. A value stays computed at run time where
    a constant would only make the file larger: a view that repeats elements (EXPAND is free to
    read), a value above 4 MiB that is more than 16 times the constants it comes from, or weights
    stored in a narrow dtype, widened.
    """
    constants = static_constants(graph)
    leaves: dict[str, frozenset[str]] = {name: frozenset((name,)) for name in graph.constants}
    for node in graph.order():
        if node.output in constants:
            under: frozenset[str] = frozenset().union(*(leaves[name] for name in node.reads))
            leaves.update(dict.fromkeys(node.outputs, under))

    changed = False
    for node in reversed(graph.order()):
        name = node.output
        # what was replaced before took away the readers of what only it needed
        if name not in leaves or graph.producers.get(name) is not node:
            continue
        leaf_bytes = sum(graph.tensors[leaf].nbytes for leaf in leaves[name])
        limit = max(_SMALL, _MAX_GROWTH * leaf_bytes)
        if any(graph.tensors[leaf].dtype in NARROW for leaf in leaves[name]):
            limit = max(_SMALL_WIDENED, leaf_bytes)
        nbytes = sum(graph.tensors[output].nbytes for output in node.outputs)
        if _repeats(graph, node) or nbytes > limit:
            continue
        graph.replace_by_constant(node, *(constants[output] for output in node.outputs))
        graph.listener.fired("fold_constants", name)
        changed = True
    return changed


def _repeats(graph: Graph, node: Node) -> bool:
    tensors = graph.tensors
    view = node.definition.view is not None
    return view and tensors[node.output].nbytes > tensors[node.inputs[0]].nbytes
