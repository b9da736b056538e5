"""Replace nodes that do not depend on inputs by constants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.static import static_constants
from taper_runtime.ops.convert import NARROW

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node

_SMALL = 4 << 20  # bytes; smaller constants may always be stored
# bytes; smaller constants computed from narrow dtypes may always be stored
_SMALL_WIDENED = 64 << 10
# a larger constant may have at most so many times the bytes that it is computed from
_MAX_GROWTH = 16


def fold_constants(graph: Graph) -> bool:
    """Replace tensors that depend only on constants by constants, with the nodes as recipes.

    ::

        c -> COS -> MUL(x, .)              MUL(x, constant cos(c))

    Only tensors that other nodes read become constants; intermediate ones do not. Nothing is
    computed until a plan stores the values. Some values are still computed at run time, because a
    constant would only make the file larger: a view that repeats elements (reading an EXPAND is
    free), a value above 4 MiB that is more than 16 times as large as the constants it depends on,
    and weights that are stored in a narrow dtype and widened.
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
        # an earlier replacement may have removed all readers of this node
        if name not in leaves or graph.producers.get(name) is not node:
            continue
        leaf_bytes = sum(graph.tensors[leaf].nbytes for leaf in leaves[name])
        limit = max(_SMALL, _MAX_GROWTH * leaf_bytes)
        if any(graph.tensors[leaf].dtype in NARROW for leaf in leaves[name]):
            limit = max(_SMALL_WIDENED, leaf_bytes)
        if node.definition.decodes(graph.input_types(node), graph.tensors[name].type):
            limit = _SMALL_WIDENED  # kernels widen what has been rounded to a narrow dtype
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
