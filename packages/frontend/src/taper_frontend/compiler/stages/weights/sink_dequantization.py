"""Decode bytes after what only chooses or moves them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from taper_frontend.compiler.rules.engine import rewrite
from taper_runtime.ops import REGISTRY

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def sink_dequantization(graph: Graph) -> bool:
    """Take largest elements of bytes, join bytes, and do not quantize them again.

    ::

        MAX_POOL(DEQUANTIZE(q, s, z))                        DEQUANTIZE(MAX_POOL(q), s, z)
        CAT(DEQUANTIZE(q, s, z), DEQUANTIZE(r, s, z))        DEQUANTIZE(CAT(q, r), s, z)
        QUANTIZE(DEQUANTIZE(q, s, z), s, z)                  q

    Scales and zero points are constants of one element, scales are positive. The bits are the same:
    larger bytes are larger numbers, and all bytes are tried where they are quantized again. Pools
    are of uint8, for which there is a kernel.
    """
    return rewrite(graph, _pool, _join, _quantize_again, at=("MAX_POOL", "CAT", "QUANTIZE"))


def _pool(graph: Graph, node: Node) -> bool:
    decoded = _decoded(graph, node.inputs[0]) if node.op == "MAX_POOL" else None
    if decoded is None or graph.tensors[decoded.inputs[0]].dtype != "uint8":
        return False
    y = graph.add_node("MAX_POOL", [decoded.inputs[0]], node.attrs, source=node.source)
    graph.replace_node(node, "DEQUANTIZE", [y, *decoded.inputs[1:]], decoded.attrs)
    return True


def _join(graph: Graph, node: Node) -> bool:
    if node.op != "CAT":
        return False
    found = [_decoded(graph, name) for name in node.inputs]
    parts = [each for each in found if each is not None]
    if len(parts) < len(found) or len({_signature(graph, each) for each in parts}) != 1:
        return False
    levels = [each.inputs[0] for each in parts]
    y = graph.add_node("CAT", levels, node.attrs, source=node.source)
    graph.replace_node(node, "DEQUANTIZE", [y, *parts[0].inputs[1:]], parts[0].attrs)
    return True


def _quantize_again(graph: Graph, node: Node) -> bool:
    """Remove a QUANTIZE that gives back the levels that were decoded before it."""
    decoded = _decoded(graph, node.inputs[0]) if node.op == "QUANTIZE" else None
    parameters = _parameters(graph, node)
    if decoded is None or parameters is None:
        return False
    levels = decoded.inputs[0]
    dtype = graph.tensors[levels].dtype
    if graph.tensors[node.output].dtype != dtype:
        return False
    low, high = _bounds(graph, levels)
    every = np.arange(low, high + 1).astype(dtype)
    decode, quantize = REGISTRY["DEQUANTIZE"].evaluate, REGISTRY["QUANTIZE"].evaluate
    numbers = decode([every, *(_parameters(graph, decoded) or ())], decoded.complete_attrs())
    if not np.array_equal(quantize([numbers, *parameters], node.complete_attrs()), every):
        return False
    graph.bypass(node, levels)
    return True


def _decoded(graph: Graph, name: str) -> Node | None:
    """Return the DEQUANTIZE of bytes that makes a tensor of float32, if it has one scale."""
    node = graph.producers.get(name)
    if node is None or node.op != "DEQUANTIZE" or graph.tensors[name].dtype != "float32":
        return None
    parameters = _parameters(graph, node)
    is_bytes = graph.tensors[node.inputs[0]].dtype in ("int8", "uint8")
    if not is_bytes or parameters is None or not 0 < float(parameters[0]) < math.inf:
        return None
    return node


def _parameters(graph: Graph, node: Node) -> list[np.ndarray] | None:
    """Return the scale and the zero point of a node without axes; None if one has more elements."""
    found = []
    for name in node.inputs[1:]:
        value = graph.value(name)
        if value is None or value.size != 1:
            return None
        found.append(value.reshape(()))
    return found


def _signature(graph: Graph, node: Node) -> tuple[object, ...]:
    """Return what nodes have in common that decode alike."""
    values = [each.item() for each in _parameters(graph, node) or ()]
    types = [graph.tensors[name].dtype for name in node.inputs]
    return (*types, *values)


def _bounds(graph: Graph, name: str) -> tuple[int, int]:
    """Return the least and the largest element that a tensor of bytes may have."""
    node = graph.producers.get(name)
    while node is not None and node.op == "MAX_POOL":
        node = graph.producers.get(node.inputs[0])
    if node is not None and node.op == "QUANTIZE":
        attrs = node.complete_attrs()
        return int(attrs["low"]), int(attrs["high"])
    limits = np.iinfo(graph.tensors[name].dtype)
    return int(limits.min), int(limits.max)
