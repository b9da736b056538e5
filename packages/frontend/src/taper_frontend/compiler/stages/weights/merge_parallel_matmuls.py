"""Merge products of one tensor with several weights, such as queries, keys and values."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.product import constant_weight, is_plain_product
from taper_frontend.compiler.analysis.tile_programs import is_elementwise
from taper_frontend.compiler.analysis.views import can_have_strides
from taper_frontend.compiler.graph.constants import Derived, derived, filled, transposed
from taper_runtime.ops.opdef import contiguous_strides

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.constants import Constant
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def merge_parallel_matmuls(graph: Graph) -> bool:
    """Merge the products of one tensor by several constant matrices into one product.

    ::

        x -> MATMUL(., wq) -> ADD(., bq) -> q      x -> MATMUL(., [wq wk wv]) -> ADD(., [bq bk bv])
          -> MATMUL(., wk) -> ADD(., bk) -> k        -> SLICE -> q
          -> MATMUL(., wv) -> ADD(., bv) -> v        -> SLICE -> k
                                                     -> SLICE -> v

    This pays if the slices are free: all their readers, directly or through views, must accept
    their strides. A product that an elementwise node reads is not merged, because that node becomes
    its epilogue (as for the gate of a gated MLP). An exception is rounding to 16 bits and back,
    which is the same for all columns, and a product that rounds its activations: to round them once
    saves more. Weights in a narrower dtype or in blocks keep it. If constant factors per
    column follow (``MUL(., scales)``), they follow the merged product.
    """
    groups: dict[tuple[object, ...], list[_Branch]] = defaultdict(list)
    for node in graph.order():
        if (branch := _branch(graph, node)) is not None:
            attrs = {**node.complete_attrs(), "transpose_b": False}
            weight = graph.tensors[branch.weight]
            stored = (weight.dtype, weight.format)
            like = (node.op, node.inputs[0], repr(sorted(attrs.items())), stored)
            groups[*like, branch.scale is None, branch.casts].append(branch)
    weights: dict[tuple[str, ...], str] = {}
    changed = False
    for branches in groups.values():
        width = sum(branch.columns for branch in branches)
        paying = [branch for branch in branches if _is_sliced_freely(graph, branch, width)]
        if len(paying) > 1:
            _merge(graph, paying, weights)
            graph.listener.fired("merge_parallel_matmuls", paying[0].product.output)
            changed = True
    return changed


@dataclass(frozen=True, slots=True)
class _Branch:
    """One of the products: optional factors and bias per column, CASTs, and the last node."""

    product: Node
    weight: str
    scale: str | None
    bias: str | None
    casts: tuple[str, ...]
    end: Node
    columns: int


def _branch(graph: Graph, product: Node) -> _Branch | None:
    weight = _weight(graph, product) if is_plain_product(product) else None
    if weight is None or len(graph.tensors[weight].shape) != 2:
        return None
    columns = graph.tensors[product.output].shape[-1]
    scale, end = _per_column(graph, product, "MUL", columns)
    bias, end = _per_column(graph, end, "ADD", columns)
    consumer = graph.sole_consumer(end.output)
    casts = []
    while consumer is not None and consumer.op == "CAST":
        casts.append(consumer.attrs["dtype"])
        end, consumer = consumer, graph.sole_consumer(consumer.output)
    return _Branch(product, weight, scale, bias, tuple(casts), end, columns)


def _weight(graph: Graph, product: Node) -> str | None:
    """Return a weight whose columns are known: a plain constant, or one in blocks."""
    weight = product.inputs[product.definition.weights[0]]
    return weight if _parts(graph, weight) else constant_weight(graph, product)


def _parts(graph: Graph, weight: str) -> tuple[Constant, ...]:
    """Return the levels, scales and shifts of a matrix in blocks; nothing of another matrix.

    Each of them has as many columns as the matrix.
    """
    recipe = graph.constants.get(weight)
    if not isinstance(recipe, Derived) or recipe.op != "PACK":
        return ()
    if not recipe.attrs["format"].startswith("blocks"):
        return ()
    return tuple(part for part in recipe.inputs if part is not None)


def _per_column(graph: Graph, node: Node, op: str, columns: int) -> tuple[str | None, Node]:
    """Return the constant vector that ``op`` applies to the output of ``node``, and that node.

    Return None and ``node`` itself if there is no such node.
    """
    consumer = graph.sole_consumer(node.output)
    if consumer is not None and consumer.op == op and len(consumer.inputs) == 2:
        other = consumer.inputs[1 - consumer.inputs.index(node.output)]
        if graph.is_constant(other) and graph.tensors[other].shape == (columns,):
            return other, consumer
    return None, node


def _is_sliced_freely(graph: Graph, branch: _Branch, width: int) -> bool:
    """Return whether all readers of the branch accept columns of a matrix of this width."""
    output = branch.end.output
    shape = graph.tensors[output].shape
    rounds = branch.product.attrs.get("activation_group")
    if not rounds and any(is_elementwise(consumer) for consumer in graph.consumers(output)):
        return False
    strides = contiguous_strides((*shape[:-1], width))
    return can_have_strides(graph, output, strides, copies=False)


def _merge(graph: Graph, branches: list[_Branch], weights: dict[tuple[str, ...], str]) -> None:
    """Merge the branches into one product, with scales, biases and casts of all, and slice it.

    Branches without a scale or a bias get 1 or 0. ``weights`` holds concatenated weights for reuse.
    """
    first = branches[0]
    product = first.product
    inputs = list(product.inputs)
    inputs[product.definition.weights[0]] = _concatenated_weights(graph, branches, weights)
    attrs = {name: value for name, value in product.attrs.items() if name != "transpose_b"}
    name = f"{product.output}.merged"
    merged = graph.add_node(product.op, inputs, attrs, name=name, source=product.source)
    scales, biases = [b.scale for b in branches], [b.bias for b in branches]
    for op, vectors, neutral, kind in (("MUL", scales, 1, "scale"), ("ADD", biases, 0, "bias")):
        if any(vectors):
            parts = [
                graph.constants[vector] if vector else filled(neutral, (branch.columns,))
                for vector, branch in zip(vectors, branches, strict=True)
            ]
            vector = graph.add_constant(f"{merged}.{kind}", derived("CAT", parts, {"axis": 0}))
            name = f"{first.end.output}.merged"
            merged = graph.add_node(op, [merged, vector], name=name, source=first.end.source)
    for dtype in first.casts:
        merged = graph.add_node("CAST", [merged], {"dtype": dtype}, source=first.end.source)
    axis = len(graph.tensors[merged].shape) - 1
    start = 0
    for branch in branches:
        stop = start + branch.columns
        graph.replace_node(
            branch.end, "SLICE", [merged], {"axis": axis, "start": start, "stop": stop}
        )
        start = stop


def _concatenated_weights(
    graph: Graph, branches: list[_Branch], known: dict[tuple[str, ...], str]
) -> str:
    """Return the matrices concatenated to one ``[K, N]``, which is made only once."""
    pairs = [(b.weight, bool(b.product.attrs.get("transpose_b"))) for b in branches]
    key = tuple(f"{name} {is_transposed}" for name, is_transposed in pairs)
    if key not in known and (first := _parts(graph, pairs[0][0])):
        parts = zip(first, *(_parts(graph, name) for name, _ in pairs[1:]), strict=True)
        joined = [derived("CAT", each, {"axis": 1}) for each in parts]
        recipe = derived("PACK", joined, {"format": graph.tensors[pairs[0][0]].format})
        known[key] = graph.add_constant(f"{pairs[0][0]}.merged", recipe)
    elif key not in known:
        matrices = [
            transposed(graph.constants[name]) if is_transposed else graph.constants[name]
            for name, is_transposed in pairs
        ]
        product = branches[0].product
        dtype = graph.tensors[product.inputs[product.definition.weights[0]]].dtype
        recipe = derived("CAT", matrices, {"axis": 1})
        merged = graph.add_constant(f"{pairs[0][0]}.merged", recipe)
        if dtype != recipe.dtype:
            merged = graph.add_node("CAST", [merged], {"dtype": dtype})
        known[key] = merged
    return known[key]
