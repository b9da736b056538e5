"""How tensors will lie in memory, as far as the graph alone decides it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import contiguous_strides

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_runtime.ops.opdef import Shape


def strides_of(graph: Graph, tensor: str) -> Shape:
    """Return the strides of ``tensor``, in elements, if every view that can be one is one."""
    shape = graph.tensors[tensor].shape
    node = graph.producer(tensor)
    if node is None or node.definition.view is None:
        return contiguous_strides(shape)
    source = node.inputs[0]
    view = node.definition.view(
        graph.tensors[source].shape, strides_of(graph, source), node.complete_attrs()
    )
    return contiguous_strides(shape) if view is None else view.strides


def is_free_reshape(graph: Graph, tensor: str, shape: Shape) -> bool:
    """Whether ``tensor`` in another shape is a view, not a copy."""
    view = REGISTRY["RESHAPE"].view
    assert view is not None
    attrs = {"shape": shape}
    return view(graph.tensors[tensor].shape, strides_of(graph, tensor), attrs) is not None
