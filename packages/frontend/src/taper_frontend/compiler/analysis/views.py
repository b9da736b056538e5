"""Find which tensors can be views, and the strides that they and their readers allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import contiguous_strides, is_contiguous

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_runtime.ops.opdef import Shape, View


def view_of(graph: Graph, node: Node, strides: Shape) -> View | None:
    """Return the view of the first input that is the output of ``node``, for these strides.

    Return None if strides cannot express it, or the op computes values.
    """
    rule = node.definition.view
    if rule is None:
        return None
    return rule(graph.tensors[node.inputs[0]].shape, strides, node.complete_attrs())


def strides_of(graph: Graph, tensor: str) -> Shape:
    """Return the strides of ``tensor`` in elements if every node that can be a view is one."""
    node = graph.producers.get(tensor)
    if node is not None and node.definition.view is not None:
        view = view_of(graph, node, strides_of(graph, node.inputs[0]))
        if view is not None:
            return view.strides
    return contiguous_strides(graph.tensors[tensor].shape)


def view_roots(graph: Graph, order: Iterable[Node]) -> dict[str, str]:
    """Return, for each tensor, the tensor that owns its memory if views are used if possible."""
    roots = {name: name for name in graph.tensors}
    strides: dict[str, Shape] = {}
    for node in order:
        if node.definition.view is None:
            continue
        source = node.inputs[0]
        if source not in strides:
            strides[source] = contiguous_strides(graph.tensors[source].shape)
        if (view := view_of(graph, node, strides[source])) is not None:
            roots[node.output] = roots[source]
            strides[node.output] = view.strides
    return roots


def is_free_reshape(graph: Graph, tensor: str, shape: Shape) -> bool:
    """Return whether a reshape of ``tensor`` is a view, not a copy."""
    rule = REGISTRY["RESHAPE"].view
    assert rule is not None
    attrs = {"shape": shape}
    return rule(graph.tensors[tensor].shape, strides_of(graph, tensor), attrs) is not None


def can_have_strides(graph: Graph, tensor: str, strides: Shape, *, copies: bool) -> bool:
    """Return whether ``tensor`` can have these ``strides`` for all its readers.

    Parameters
    ----------
    copies : bool
        Whether a node that moves values may copy them, if its op accepts such strides. If not, it
        must be a view whose readers accept its strides, too.
    """
    if graph.is_output(tensor):
        return False
    if is_contiguous(graph.tensors[tensor].shape, strides):
        return True
    for node in graph.consumers(tensor):
        takes = all(
            node.definition.takes_strided(index)
            for index, name in enumerate(node.inputs)
            if name == tensor
        )
        if takes and (copies or node.definition.view is None):
            continue
        view = view_of(graph, node, strides)
        if view is None or not can_have_strides(graph, node.output, view.strides, copies=copies):
            return False
    return True
