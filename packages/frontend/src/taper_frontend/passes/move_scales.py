"""Factors per channel that a run decides: squeeze and excite."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from taper_frontend.graph.pattern import rewrite
from taper_frontend.graph.product import has_own_weight, is_plain_matmul

if TYPE_CHECKING:
    from taper_frontend.graph.graph import Graph
    from taper_frontend.graph.node import Node

#: Rows for each column from which on the product gains: its weight is no longer a packed one.
_ROWS = 4


def move_scales(graph: Graph) -> bool:
    """Multiply the weight of a product instead of its many rows.

    ::

        MATMUL(MUL(x, s), w)      x: [1, H, W, K], s: [1, 1, 1, K], w: [K, N]
        MATMUL(x, MUL(w, RESHAPE(s, [K, 1])))

    Constant factors are the business of ``fold_scales``.
    """
    return rewrite(graph, _move)


def _move(graph: Graph, node: Node) -> bool:
    if not is_plain_matmul(node) or not has_own_weight(graph, node):
        return False
    scaled, weight = node.inputs
    mul = graph.producer(scaled)
    if mul is None or mul.op != "MUL" or graph.sole_consumer(scaled) is not node:
        return False
    matrix = graph.constants[weight]
    if node.attrs.get("transpose_b"):
        matrix = matrix.T
    k, n = matrix.shape
    shape = graph.tensors[scaled].shape
    if not all(isinstance(size, int) for size in shape) or prod(shape[:-1]) < _ROWS * n:
        return False
    for x, scale in (mul.inputs, mul.inputs[::-1]):
        spec = graph.tensors[scale]
        per_channel = spec.shape[-1:] == (k,) and spec.type.size == k
        if (
            per_channel
            and scale not in graph.constants
            and graph.tensors[x].type == graph.tensors[scaled].type
        ):
            column = graph.add_node("RESHAPE", [scale], {"shape": (k, 1)}, source=mul.source)
            rows = graph.add_constant(f"{weight}.rows", np.ascontiguousarray(matrix))
            product = graph.add_node("MUL", [rows, column], source=mul.source)
            attrs = {key: value for key, value in node.attrs.items() if key != "transpose_b"}
            graph.replace_node(node, "MATMUL", [x, product], attrs)
            return True
    return False
