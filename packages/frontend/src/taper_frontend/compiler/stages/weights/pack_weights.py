"""Convert weights to the formats that the matrix kernels read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.product import constant_weight, packing
from taper_runtime.base.decisions import Decision

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def pack_weights(graph: Graph) -> bool:
    """Store the constant weight of each product in the format that its op asks for.

    ::

        MATMUL(a, w)                               MATMUL(a, PACK(w, panels.1))
        MATMUL(a, w, transpose_b)                  MATMUL(a, PACK(TRANSPOSE(w), panels.1))
        CONV(x, w, groups=G)                       CONV(x, PACK(w, grouped_panels.G), groups=G)

        EMBEDDING(table, i)                        EMBEDDING(PACK(table, panels.0), i)
        MATMUL(a, table, transpose_b)              MATMUL(a, PACK(table, panels.0), transpose_b)

        w (float16) -> CAST -> MATMUL(a, .)        MATMUL(a, PACK(w, panels.1))

    Weights in a narrower dtype keep it, and the kernel widens them. A matrix is packed once for all
    products that use it. The original is removed unless nodes other than row lookups read it.
    """
    packed: dict[tuple[str, str, bool], str] = {}
    changed = False
    for node in graph.order():
        weight = constant_weight(graph, node)
        if weight is None:
            continue
        attrs = node.complete_attrs()
        matrix = graph.tensors[weight].type
        transposed = bool(attrs.get("transpose_b")) and not _is_looked_up(graph, weight)
        if transposed:  # computed by the export instead of in each run
            attrs["transpose_b"] = False
            matrix = matrix._replace(shape=matrix.shape[::-1])
        format = packing(node, matrix, attrs)
        if format is None:
            continue
        if (weight, format, transposed) not in packed:
            name = packed[weight, format, transposed] = _pack(graph, weight, format, transposed)
            among = dict.fromkeys(("plain", format))
            told = Decision("format", name, format, among, f"the format of {node.op} for this type")
            graph.listener.considered(told, made_of=weight)
        _read_packed(graph, node, packed[weight, format, transposed], transposed)
        if format == "panels.0":
            _look_up_packed(graph, weight, packed[weight, format, transposed])
        graph.listener.fired("pack_weights", node.output)
        changed = True
    return changed


def _pack(graph: Graph, weight: str, format: str, transposed: bool) -> str:
    matrix = weight
    if transposed:
        matrix = graph.add_node("TRANSPOSE", [weight], {"axis0": 0, "axis1": 1})
    return graph.add_node("PACK", [matrix], {"format": format}, name=f"{weight}.packed")


def _read_packed(graph: Graph, node: Node, packed: str, transposed: bool) -> None:
    dropped = ("transpose_b",) if transposed else ()
    attrs = {name: value for name, value in node.attrs.items() if name not in dropped}
    inputs = list(node.inputs)
    inputs[node.definition.weights[0]] = packed
    graph.replace_node(node, node.op, inputs, attrs)


def _is_looked_up(graph: Graph, weight: str) -> bool:
    """Return whether a node reads single rows of ``weight``."""
    return any(n.op == "EMBEDDING" and n.inputs[0] == weight for n in graph.consumers(weight))


def _look_up_packed(graph: Graph, table: str, packed: str) -> None:
    """Let row lookups read the packed table, if nothing else needs the plain one."""
    lookups = [node for node in graph.consumers(table) if node.output != packed]
    if all(node.op == "EMBEDDING" and node.inputs[0] == table for node in lookups):
        for node in lookups:
            graph.replace_node(node, "EMBEDDING", [packed, node.inputs[1]])
