"""Borders that a window can imagine."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from taper_frontend.graph.pattern import rewrite

if TYPE_CHECKING:
    from taper_frontend.graph.graph import Graph
    from taper_frontend.graph.node import Node

#: What an op with windows finds beyond its input.
_BORDER = {"CONV": 0.0, "AVG_POOL": 0.0, "MAX_POOL": -math.inf}


def absorb_padding(graph: Graph) -> bool:
    """Let an op with windows pad by itself what it reads.

    ::

        CONV(CAT(zeros, x, zeros), w)      CONV(x, w, padding)
        AVG_POOL(CAT(x, zeros))            AVG_POOL(x, padding, counted)
        MAX_POOL(CAT(-inf, x))             MAX_POOL(x, padding)
    """
    return rewrite(graph, _absorb)


def _absorb(graph: Graph, node: Node) -> bool:
    border = _BORDER.get(node.op)
    cat = graph.producer(node.inputs[0])
    if border is None or cat is None or cat.op != "CAT":
        return False
    dim = cat.attrs["axis"] - 1
    parts = [name for name in cat.inputs if not _is_filled_with(graph, name, border)]
    if len(parts) != 1 or not 0 <= dim < len(node.attrs["kernel"]):
        return False
    at = cat.inputs.index(parts[0])
    sizes = [graph.tensors[name].shape[dim + 1] for name in cat.inputs]
    attrs = dict(node.attrs)
    for attr in ("padding", "counted"):
        if attr in attrs:
            widths = list(attrs[attr])
            widths[2 * dim] += sum(sizes[:at])
            widths[2 * dim + 1] += sum(sizes[at + 1 :])
            attrs[attr] = tuple(widths)
    graph.replace_node(node, node.op, [parts[0], *node.inputs[1:]], attrs)
    return True


def _is_filled_with(graph: Graph, tensor: str, value: float) -> bool:
    producer = graph.producer(tensor)
    source = producer.inputs[0] if producer is not None and producer.op == "EXPAND" else tensor
    return source in graph.constants and bool((graph.constants[source] == value).all())
