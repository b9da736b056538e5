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
        CONV(CAT(bytes, x), w)             CONV(x, w, padding, border), of bytes

    There may be a permutation between the two.
    """
    return rewrite(graph, _absorb)


def _absorb(graph: Graph, node: Node) -> bool:
    """Absorb the CAT of borders that ``node`` reads, perhaps through a permutation.

    Exactly one part must not be filled with the op's border value, and the op must have a window
    with padding along the axis. All attrs with the role "padding" are increased by the borders'
    widths.
    """
    if node.definition.border is None:
        return False
    cat = graph.producers.get(node.inputs[0])
    axes = None if cat is None else permutation(graph, cat)
    if cat is not None and axes is not None:
        cat = graph.producers.get(cat.inputs[0])
    if cat is None or cat.op != "CAT":
        return False
    axis = cat.attrs["axis"] if axes is None else axes.index(cat.attrs["axis"])
    border = _border(graph, node, cat)
    parts = [name for name in cat.inputs if _filling(graph, name) != border]
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
    if "border" in node.definition.attrs:
        attrs["border"] = int(border)
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


def _border(graph: Graph, node: Node, cat: Node) -> float:
    """Return the value of the padding around the input of ``node``.

    A convolution of bytes that does not pad yet may pad with any value that a part of ``cat`` has.
    """
    border = node.definition.border
    assert border is not None
    if not node.attrs.get("accumulate"):
        return border
    if any(node.attrs["padding"]):
        return float(node.complete_attrs()["border"])
    values = (_filling(graph, name) for name in cat.inputs)
    return next((value for value in values if value is not None), border)


def _filling(graph: Graph, tensor: str) -> float | None:
    """Return the number that a constant tensor has everywhere, or None."""
    producer = graph.producers.get(tensor)
    source = producer.inputs[0] if producer is not None and producer.op == "EXPAND" else tensor
    known = graph.value(source)
    if known is None or known.size == 0 or not bool((known == known.reshape(-1)[0]).all()):
        return None
    return float(known.reshape(-1)[0])
