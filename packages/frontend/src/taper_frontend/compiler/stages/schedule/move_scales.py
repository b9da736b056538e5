"""Move run-time factors per channel into the next weight, as for squeeze-and-excite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.rules.engine import rewrite
from taper_runtime.formats import PLAIN, find

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def move_scales(graph: Graph) -> bool:
    """Multiply the packed weight of a product instead of its input, if the input is larger.

    ::

        MATMUL(MUL(x, s), w)      x: [1, H, W, K], s: [1, 1, 1, K], w: [K, N] in panels.1
        MATMUL(x, MUL(w, RESHAPE(s, [K, 1])))

    Constant factors are handled by ``fold_scales``.
    """
    return rewrite(graph, _move)


def _move(graph: Graph, node: Node) -> bool:
    """Move the factors of a MUL that only ``node`` reads to its weight, if its format allows it."""
    if node.op != "MATMUL" or node.attrs.get("transpose_b"):
        return False
    scaled, weight, *extras = node.inputs
    format = graph.tensors[weight].format
    if format == PLAIN or not find(format).scales_rows:
        return False
    mul = graph.producers.get(scaled)
    if mul is None or mul.op != "MUL" or len(mul.inputs) != 2 or not graph.is_static(mul):
        return False
    if graph.sole_consumer(scaled) is not node or scaled in extras:
        return False
    product, packed = graph.tensors[scaled].type, graph.tensors[weight].type
    if packed.dtype != "float32" or product.size <= packed.storage.size:
        return False
    k = product.shape[-1]
    for x, scale in (mul.inputs, mul.inputs[::-1]):
        spec = graph.tensors[scale]
        per_channel = spec.shape[-1:] == (k,) and spec.type.size == k
        if per_channel and not graph.is_constant(scale) and graph.tensors[x].type == product:
            column = graph.add_node("RESHAPE", [scale], {"shape": (k, 1)}, source=mul.source)
            weight = graph.add_node("MUL", [weight, column], source=mul.source)
            graph.replace_node(node, "MATMUL", [x, weight, *extras], node.attrs)
            return True
    return False
