"""Products of one tensor with several weights: queries, keys and values."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.elementwise import is_elementwise
from taper_frontend.compiler.analysis.product import constant_weight, is_plain_matmul
from taper_frontend.compiler.analysis.views import can_have_strides
from taper_frontend.compiler.graph.constants import derived, filled, transposed
from taper_runtime.ops.convert import FLOATS_16_BIT
from taper_runtime.ops.opdef import contiguous_strides

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def merge_parallel_matmuls(graph: Graph) -> bool:
    """Make one MATMUL of those that multiply the same tensor by constant matrices.

    ::

        x -> MATMUL(., wq) -> ADD(., bq) -> q      x -> MATMUL(., [wq wk wv]) -> ADD(., [bq bk bv])
          -> MATMUL(., wk) -> ADD(., bk) -> k        -> SLICE -> q
          -> MATMUL(., wv) -> ADD(., bv) -> v        -> SLICE -> k
                                                     -> SLICE -> v

    It pays where the slices cost nothing: everything that reads one, directly or through views,
    takes it with the strides it has. A product that an elementwise node reads stays by itself,
    for that node becomes its epilogue (the gate of a gated MLP). Not so a rounding to 16 bits and
    back: it is done to all columns alike. Weights that are 16-bit floats stay so.
    """
    groups: dict[tuple[object, ...], list[_Branch]] = defaultdict(list)
    for node in graph.order():
        if (branch := _branch(graph, node)) is not None:
            dtype = graph.tensors[branch.weight].dtype
            alpha = node.attrs.get("alpha", 1.0)
            groups[node.inputs[0], alpha, dtype, branch.casts].append(branch)
    weights: dict[tuple[str, ...], str] = {}
    changed = False
    for branches in groups.values():
        width = sum(branch.columns for branch in branches)
        paying = [branch for branch in branches if _is_sliced_freely(graph, branch, width)]
        if len(paying) > 1:
            _merge(graph, paying, weights)
            graph.listener.fired("merge_parallel_matmuls", paying[0].matmul.output)
            changed = True
    return changed


@dataclass(frozen=True, slots=True)
class _Branch:
    """One of the products: MATMUL, ADD of a constant bias or none, CASTs; the node that ends it."""

    matmul: Node
    weight: str
    bias: str | None
    casts: tuple[str, ...]
    end: Node
    columns: int


def _branch(graph: Graph, matmul: Node) -> _Branch | None:
    weight = constant_weight(graph, matmul) if is_plain_matmul(matmul) else None
    if weight is None or len(graph.tensors[weight].shape) != 2:
        return None
    columns = graph.tensors[matmul.output].shape[-1]
    bias, end = None, matmul
    consumer = graph.sole_consumer(end.output)
    if consumer is not None and consumer.op == "ADD" and len(consumer.inputs) == 2:
        other = consumer.inputs[1 - consumer.inputs.index(matmul.output)]
        if graph.is_constant(other) and graph.tensors[other].shape == (columns,):
            bias, end = other, consumer
            consumer = graph.sole_consumer(end.output)
    casts = []
    while consumer is not None and consumer.op == "CAST":
        casts.append(consumer.attrs["dtype"])
        end, consumer = consumer, graph.sole_consumer(consumer.output)
    return _Branch(matmul, weight, bias, tuple(casts), end, columns)


def _is_sliced_freely(graph: Graph, branch: _Branch, width: int) -> bool:
    """Whether all that reads the branch can read it as columns of a matrix ``width`` wide."""
    output = branch.end.output
    shape = graph.tensors[output].shape
    if any(is_elementwise(consumer) for consumer in graph.consumers(output)):
        return False
    strides = contiguous_strides((*shape[:-1], width))
    return can_have_strides(graph, output, strides, copies=False)


def _merge(graph: Graph, branches: list[_Branch], weights: dict[tuple[str, ...], str]) -> None:
    first = branches[0]
    weight = _concatenated_weights(graph, branches, weights)
    attrs = {name: value for name, value in first.matmul.attrs.items() if name == "alpha"}
    merged = graph.add_node(
        "MATMUL",
        [first.matmul.inputs[0], weight],
        attrs,
        name=f"{first.matmul.output}.merged",
        source=first.matmul.source,
    )
    if any(branch.bias for branch in branches):
        biases = [graph.constants[b.bias] if b.bias else filled(0, (b.columns,)) for b in branches]
        bias = graph.add_constant(f"{merged}.bias", derived("CAT", biases, {"axis": 0}))
        name = f"{first.end.output}.merged"
        merged = graph.add_node("ADD", [merged, bias], name=name, source=first.end.source)
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
    """Return the matrices side by side as one ``[K, N]``, made once however often used."""
    pairs = [(b.weight, bool(b.matmul.attrs.get("transpose_b"))) for b in branches]
    key = tuple(f"{name} {is_transposed}" for name, is_transposed in pairs)
    if key not in known:
        matrices = [
            transposed(graph.constants[name]) if is_transposed else graph.constants[name]
            for name, is_transposed in pairs
        ]
        dtype = graph.tensors[pairs[0][0]].dtype
        recipe = derived("CAT", matrices, {"axis": 1})
        merged = graph.add_constant(f"{pairs[0][0]}.merged", recipe)
        if dtype in FLOATS_16_BIT:
            merged = graph.add_node("CAST", [merged], {"dtype": "float32"})
        known[key] = merged
    return known[key]
