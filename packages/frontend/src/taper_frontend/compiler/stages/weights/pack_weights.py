"""Weights in the formats that the matrix kernels read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.product import constant_weight
from taper_runtime.ops.conv import is_read_plain

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def pack_weights(graph: Graph) -> bool:
    """Pack each constant matrix that is the second operand of a MATMUL or of a convolution.

    ::

        MATMUL(a, w)                               MATMUL(a, PACK(w, panels.1))
        MATMUL(a, w, transpose_b)                  MATMUL(a, PACK(TRANSPOSE(w), panels.1))
        CONV(x, w, groups=G)                       CONV(x, PACK(w, grouped_panels.G), groups=G)

        EMBEDDING(table, i)                        EMBEDDING(PACK(table, panels.0), i)
        MATMUL(a, table, transpose_b)              MATMUL(a, PACK(table, panels.0), transpose_b)

        w (float16) -> CAST -> MATMUL(a, .)        MATMUL(a, PACK(w, panels.1))

    16-bit floats stay what they are: the kernel widens what it reads. A convolution in groups of a
    few channels is no matrix product and keeps its weight. A matrix is packed once for all products
    that use it, and the original goes unless something other than lookups of its rows reads it.
    """
    packed: dict[tuple[str, str, bool], str] = {}
    changed = False
    for node in graph.order():
        weight = _packable(graph, node)
        if weight is None:
            continue
        table = _is_looked_up(graph, weight)
        transposed = bool(node.attrs.get("transpose_b")) and not table
        key = (weight, _format(node, table), transposed)
        if key not in packed:
            packed[key] = _pack(graph, *key)
        dropped = ("transpose_b",) if transposed else ()
        attrs = {name: value for name, value in node.attrs.items() if name not in dropped}
        x, _, *extras = node.inputs
        graph.replace_node(node, node.op, [x, packed[key], *extras], attrs)
        if key[1] == "panels.0":
            _look_up_packed(graph, weight, packed[key])
        graph.listener.fired("pack_weights", node.output)
        changed = True
    return changed


def _packable(graph: Graph, node: Node) -> str | None:
    """Return the constant weight of ``node``, if a kernel of its op reads it packed."""
    if node.op not in ("MATMUL", "CONV", "CONV_TRANSPOSE"):
        return None
    weight = constant_weight(graph, node)
    if weight is None:
        return None
    shape = graph.tensors[weight].shape
    if node.op == "MATMUL":
        return weight if len(shape) == 2 else None
    small = node.op == "CONV" and is_read_plain(shape, node.attrs.get("groups", 1))
    return None if small else weight


def _format(node: Node, table: bool) -> str:
    if node.op != "MATMUL":
        return f"grouped_panels.{node.attrs.get('groups', 1)}"
    return "panels.0" if table and node.attrs.get("transpose_b") else "panels.1"


def _pack(graph: Graph, weight: str, format: str, transposed: bool) -> str:
    matrix = weight
    if transposed:
        matrix = graph.add_node("TRANSPOSE", [weight], {"axis0": 0, "axis1": 1})
    return graph.add_node("PACK", [matrix], {"format": format}, name=f"{weight}.packed")


def _is_looked_up(graph: Graph, weight: str) -> bool:
    """Whether a node reads single rows of ``weight``."""
    return any(n.op == "EMBEDDING" and n.inputs[0] == weight for n in graph.consumers(weight))


def _look_up_packed(graph: Graph, table: str, packed: str) -> None:
    """Let lookups of rows read the packed table, if only they and the packing read the other."""
    lookups = [node for node in graph.consumers(table) if node.output != packed]
    if all(node.op == "EMBEDDING" and node.inputs[0] == table for node in lookups):
        for node in lookups:
            graph.replace_node(node, "EMBEDDING", [packed, node.inputs[1]])
