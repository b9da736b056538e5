"""Weights in the layout the matrix kernels read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.ops.matmul import pack

if TYPE_CHECKING:
    from taper_frontend.graph.graph import Graph


def pack_weights(graph: Graph) -> bool:
    """Pack each constant matrix that is the second operand of a MATMUL.

    ::

        w: [N, K]                                  w.packed: [ceil(N/16), K, 16]
        MATMUL(a, w, transpose_b)                  MATMUL(a, w.packed, columns=N)

    Packing reads both layouts, so the transpose is gone. A matrix is packed once for all products
    that use it, and the original goes if nothing else reads it (an embedding table may).
    """
    packed: dict[tuple[str, bool], str] = {}
    changed = False
    for node in graph.order():
        if node.op != "MATMUL" or node.attrs.get("columns"):
            continue
        a, b, *extras = node.inputs
        spec = graph.tensors[b]
        transposed = bool(node.attrs.get("transpose_b"))
        if b not in graph.constants or spec.dtype != "float32" or len(spec.shape) != 2:
            continue
        if spec.type.size == 0:  # columns=0 says that nothing is packed
            continue
        matrix = graph.constants[b].T if transposed else graph.constants[b]
        if (b, transposed) not in packed:
            packed[b, transposed] = graph.add_constant(f"{b}.packed", pack(matrix))
        attrs = {name: value for name, value in node.attrs.items() if name != "transpose_b"}
        attrs["columns"] = matrix.shape[1]
        graph.replace_node(node, "MATMUL", [a, packed[b, transposed], *extras], attrs)
        changed = True
    return changed
