"""Fold explicit padding into the padding attribute of convolutions and pools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.permutation import permutation, permutation_op
from taper_frontend.compiler.rules.engine import rewrite
from taper_runtime.ops.region import Window

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def absorb_padding(graph: Graph) -> bool:
    """Let an op with windows pad its input itself.

    ::

        CONV(CAT(zeros, x, zeros), w)      CONV(x, w, padding)
        AVG_POOL(CAT(x, zeros))            AVG_POOL(x, padding, counted)
        MAX_POOL(CAT(-inf, x))             MAX_POOL(x, padding)

    There may be a permutation between the two.
    """
    return rewrite(graph, _absorb)


def _absorb(graph: Graph, node: Node) -> bool:
    """Absorb the CAT of borders that ``node`` reads, perhaps through a permutation.

    Exactly one part must not be filled with the op's border value, and the op must have a window
    with padding along the axis. All attrs with the role "padding" are increased by the borders'
    widths.
    """
    border = node.definition.border
    if border is None:
        return False
    cat = graph.producers.get(node.inputs[0])
    axes = None if cat is None else permutation(graph, cat)
    if cat is not None and axes is not None:
        cat = graph.producers.get(cat.inputs[0])
    if cat is None or cat.op != "CAT":
        return False
    axis = cat.attrs["axis"] if axes is None else axes.index(cat.attrs["axis"])
    parts = [name for name in cat.inputs if not _is_filled_with(graph, name, border)]
    window = _window(graph, node, axis)
    if len(parts) != 1 or window is None or window.padding is None:
        return False
    (x,) = parts
    at = cat.inputs.index(x)
    sizes = [graph.tensors[name].shape[cat.attrs["axis"]] for name in cat.inputs]
    attrs, place = dict(node.attrs), window.padding[1]
    for name, attr in node.definition.attrs.items():
        if attr.role == "padding":
            widths = list(attrs[name])
            widths[place] += sum(sizes[:at])
            widths[place + 1] += sum(sizes[at + 1 :])
            attrs[name] = tuple(widths)
    if axes is not None:
        op, moved = permutation_op(axes)
        x = graph.add_node(op, [x], moved, name=f"{x}.moved", source=cat.source)
    graph.replace_node(node, node.op, [x, *node.inputs[1:]], attrs)
    return True


def _window(graph: Graph, node: Node, axis: int) -> Window | None:
    """Return the window over an axis of the first input of ``node``, if there is one."""
    types = [graph.tensors[name].type for name in node.inputs]
    regions = node.definition.needs(types, graph.tensors[node.output].type, node.attrs)
    relation = regions[0][axis]
    return relation if isinstance(relation, Window) else None


def _is_filled_with(graph: Graph, tensor: str, value: float) -> bool:
    producer = graph.producers.get(tensor)
    source = producer.inputs[0] if producer is not None and producer.op == "EXPAND" else tensor
    known = graph.value(source)
    return known is not None and bool((known == value).all())
