"""What does not depend on the inputs, computed at export."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.graph.evaluate import evaluate_op
from taper_frontend.errors import ExportError
from taper_runtime.errors import InputError
from taper_runtime.ops.convert import HALVES

if TYPE_CHECKING:
    import numpy as np

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node

_SMALL = 4 << 20  # bytes; up to here a constant may be any size
_SMALL_HALF = 64 << 10  # bytes; up to here a constant made of halves may be any size
_MAX_GROWTH = 16  # times the constants a larger one is computed from


def fold_constants(graph: Graph) -> bool:
    """Replace what depends on constants alone by its value.

    ::

        c -> COS -> MUL(x, .)              MUL(x, constant cos(c))

    Only values that something else reads become constants; those on the way to them do not. A value
    stays computed at run time where a constant would only make the file larger: a view that repeats
    elements (EXPAND is free to read), a value above 4 MiB that is more than 16 times the constants
    it comes from, or weights stored as halves, widened.

    Raises
    ------
    ExportError
        If a value cannot be computed: every run would fail.
    """
    values: dict[str, np.ndarray] = dict(graph.constants)
    leaves = {name: frozenset((name,)) for name in graph.constants}
    for node in graph.order():
        if (
            all(name in values for name in node.inputs)
            and graph.is_static(node)
            and not _is_output_copy(graph, node)
        ):
            types = [graph.tensors[name].type for name in node.inputs]
            arrays = [values[name] for name in node.inputs]
            try:
                values[node.output] = evaluate_op(node.op, arrays, types, node.attrs)
            except InputError as error:
                place = f" at {node.source}" if node.source else ""
                raise ExportError(
                    f"what follows from weights and constants alone cannot be computed: {error}"
                    f"{place}"
                ) from error
            leaves[node.output] = frozenset().union(*(leaves[name] for name in node.inputs))

    changed = False
    for node in reversed(graph.order()):
        name = node.output
        # what was replaced before took away the readers of what only it needed
        if name not in values or graph.producer(name) is not node:
            continue
        leaf_bytes = sum(graph.tensors[leaf].nbytes for leaf in leaves[name])
        limit = max(_SMALL, _MAX_GROWTH * leaf_bytes)
        if any(graph.tensors[leaf].dtype in HALVES for leaf in leaves[name]):
            limit = max(_SMALL_HALF, leaf_bytes)
        if _repeats(graph, node) or graph.tensors[name].nbytes > limit:
            continue
        graph.replace_by_constant(node, values[name])
        graph.listener.fired("fold_constants", name)
        changed = True
    return changed


def _is_output_copy(graph: Graph, node: Node) -> bool:
    """Whether ``node`` is there to make an output of a constant, and stays."""
    return node.op == "COPY" and graph.is_output(node.output)


def _repeats(graph: Graph, node: Node) -> bool:
    tensors = graph.tensors
    view = node.definition.view is not None
    return view and tensors[node.output].nbytes > tensors[node.inputs[0]].nbytes
