"""Multiply along an axis without moving it to the end."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.permutation import permutation
from taper_frontend.compiler.analysis.product import constant_weight, is_plain_matmul
from taper_frontend.compiler.rules.engine import rewrite

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node

_NARROW = 16  # columns of a panel: a product with fewer columns does not fill a vector

#: Ops whose results have the last axis innermost; images may become channels-last instead.
_PRODUCERS = frozenset({"MATMUL", "SOFTMAX"})


def mix_in_place(graph: Graph) -> bool:
    """Multiply by a small matrix from the left instead of moving an axis to the end and back.

    ::

        x [B, H, M, N]
          -> PERMUTE [B, M, N, H]              -> RESHAPE [B, H, M * N]
          -> MATMUL by [H, G], ADD [G]         -> [G, H] MATMUL, ADD [G, 1]
          -> PERMUTE [B, G, M, N]              -> RESHAPE [B, G, M, N]

    The long rows are not moved. This serves talking heads in attention (Shazeer et al. 2020, CaiT),
    where both H and G are smaller than a vector. It applies only to the results of products and
    softmaxes, because images are channels-last already.
    """
    return rewrite(graph, _mix)


def _mix(graph: Graph, node: Node) -> bool:
    """Rewrite the form above, if ``node`` is its last PERMUTE; the ADD is optional.

    The product and the ADD must have no other readers. The weight is transposed unless the MATMUL
    already does so, and a bias becomes a column.
    """
    back = permutation(graph, node)
    last = graph.producers.get(node.inputs[0]) if back else None
    if back is None or last is None:
        return False
    add = last if last.op == "ADD" else None
    product = graph.producers.get(add.inputs[0]) if add else last
    if not is_plain_matmul(product):
        return False
    there = graph.producers.get(product.inputs[0])
    axes = permutation(graph, there) if there else None
    inside = (add, product) if add else (product,)
    if (
        there is None
        or axes is None
        or any(graph.sole_consumer(n.output) is None for n in inside)
        or not _moves(axes, back)
        or not _is_small(graph, there, product, add)
    ):
        return False
    source, weight = there.inputs[0], product.inputs[1]
    shape, axis = graph.tensors[source].shape, axes[-1]
    rows = math.prod(shape[axis + 1 :])
    if not product.attrs.get("transpose_b"):
        swap = {"axis0": 0, "axis1": 1}
        weight = graph.add_node("TRANSPOSE", [weight], swap, source=product.source)
    flat = {"shape": (*shape[: axis + 1], rows)}
    y = graph.add_node("RESHAPE", [source], flat, source=there.source)
    attrs = {k: v for k, v in product.attrs.items() if k != "transpose_b"}
    y = graph.add_node("MATMUL", [weight, y], attrs, source=product.source)
    if add:
        bias = add.inputs[1]
        column = {"shape": (*graph.tensors[bias].shape, 1)}
        bias = graph.add_node("RESHAPE", [bias], column, source=add.source)
        y = graph.add_node("ADD", [y, bias], {}, source=add.source)
    graph.replace_node(node, "RESHAPE", [y], {"shape": graph.tensors[node.output].shape})
    return True


def _moves(axes: tuple[int, ...], back: tuple[int, ...]) -> bool:
    """Return whether ``axes`` moves one axis to the end, not the last, and ``back`` undoes it."""
    others = [axis for axis in axes if axis != axes[-1]]
    return (
        list(axes[:-1]) == sorted(others)
        and axes[-1] < len(axes) - 1
        and all(axes[back[axis]] == axis for axis in axes)
    )


def _is_small(graph: Graph, there: Node, product: Node, add: Node | None) -> bool:
    """Return whether a small constant matrix, with an optional bias, mixes a product or softmax."""
    producer = graph.producers.get(there.inputs[0])
    matrix = graph.tensors[product.inputs[1]].shape
    columns = graph.tensors[product.output].shape[-1]
    return (
        producer is not None
        and producer.op in _PRODUCERS
        and len(matrix) == 2
        and constant_weight(graph, product) == product.inputs[1]
        and max(matrix) < _NARROW
        and (add is None or [graph.tensors[name].shape for name in add.inputs[1:]] == [(columns,)])
    )
