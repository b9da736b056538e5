"""Weights in the layout the matrix kernels read."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from taper_frontend.compiler.analysis.product import constant_weight
from taper_runtime.ops.conv import is_read_unpacked, pack_weight
from taper_runtime.ops.matmul import pack

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def pack_weights(graph: Graph) -> bool:
    """Pack each constant matrix that is the second operand of a MATMUL or of a convolution.

    ::

        w: [N, K]                                  w.packed: [ceil(N/16), K, 16]
        MATMUL(a, w, transpose_b)                  MATMUL(a, w.packed, columns=N)

        w: [3, 3, C/G, O]                          w.packed: [G, ceil(O/G/16), 9 C/G, 16]
        CONV(x, w, groups=G)                       CONV(x, w.packed, groups=G, columns=O/G)

        table: [V, K]                              table.packed: [ceil(V/16), K, 16]
        EMBEDDING(table, i)                        EMBEDDING(table.packed, i, columns=V)
        MATMUL(a, table, transpose_b)              MATMUL(a, table.packed, columns=V)

        w (float16) -> CAST -> MATMUL(a, .)        MATMUL(a, w.packed, columns=N)

    Packing reads both layouts of a MATMUL, so the transpose is gone. Halves stay what they are: the
    kernel widens what it reads. A convolution in groups of a
    few channels is no matrix product and keeps its weight. A matrix is packed once for all products
    that use it, and the original goes unless something other than lookups of its rows reads it.
    """
    packed: dict[tuple[str, object], str] = {}
    changed = False
    for node in graph.order():
        packing = None if node.attrs.get("columns") else _packing(graph, node)
        if packing is None:
            continue
        x, _, *extras = node.inputs
        weight = packing.weight
        key = (weight, packing.form)
        if key not in packed:
            dtype = graph.tensors[weight].dtype
            packed[key] = graph.add_constant(f"{weight}.packed", packing.pack(), dtype)
        attrs = {name: value for name, value in node.attrs.items() if name != "transpose_b"}
        attrs["columns"] = packing.columns
        graph.replace_node(node, node.op, [x, packed[key], *extras], attrs)
        changed = True
        if packing.form == ("matrix", True) and graph.is_constant(weight):
            _look_up_packed(graph, weight, packed[key])
        graph.listener.fired("pack_weights", node.output)
    return changed


def _look_up_packed(graph: Graph, table: str, packed: str) -> None:
    """Let lookups of rows read the packed table, if the other one can go then."""
    readers = graph.consumers(table)
    if all(node.op == "EMBEDDING" and node.inputs[0] == table for node in readers):
        columns = graph.tensors[table].shape[0]
        for node in readers:
            graph.replace_node(node, "EMBEDDING", [packed, node.inputs[1]], {"columns": columns})


class _Packing(NamedTuple):
    weight: str
    form: object  # equal for nodes that may share a packed weight
    columns: int
    pack: Callable[[], np.ndarray]


def _packing(graph: Graph, node: Node) -> _Packing | None:
    """How the weight of ``node`` is packed, if it has one that can be."""
    if node.op not in ("MATMUL", "CONV", "CONV_TRANSPOSE"):
        return None
    name = constant_weight(graph, node)
    # columns=0 says that nothing is packed
    if name is None or graph.tensors[name].type.size == 0:
        return None
    weight = graph.constants[name].value()
    if node.op == "MATMUL":
        if weight.ndim != 2:
            return None
        transposed = bool(node.attrs.get("transpose_b"))
        matrix = weight.T if transposed else weight
        return _Packing(name, ("matrix", transposed), matrix.shape[1], partial(pack, matrix))
    groups = node.attrs.get("groups", 1)
    if node.op == "CONV" and is_read_unpacked(weight.shape, groups):
        return None
    columns = weight.shape[-1] // groups
    return _Packing(name, ("groups", groups), columns, partial(pack_weight, weight, groups))
