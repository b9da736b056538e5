"""Products of one tensor with several weights: queries, keys and values."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from taper_frontend.graph.elementwise import is_elementwise
from taper_frontend.graph.product import is_plain_matmul
from taper_runtime.ops.opdef import contiguous_strides

if TYPE_CHECKING:
    from taper_frontend.graph.graph import Graph
    from taper_frontend.graph.node import Node
    from taper_runtime.ops.opdef import Shape


def merge_parallel_matmuls(graph: Graph) -> bool:
    """Make one MATMUL of those that multiply the same tensor by constant matrices.

    ::

        x -> MATMUL(., wq) -> ADD(., bq) -> q      x -> MATMUL(., [wq wk wv]) -> ADD(., [bq bk bv])
          -> MATMUL(., wk) -> ADD(., bk) -> k        -> SLICE -> q
          -> MATMUL(., wv) -> ADD(., bv) -> v        -> SLICE -> k
                                                     -> SLICE -> v

    It pays where the slices cost nothing: everything that reads one, directly or through views,
    takes it with the strides it has. A product that an elementwise node reads stays by itself,
    for that node becomes its epilogue (the gate of a gated MLP).
    """
    groups: dict[tuple[str, float], list[_Branch]] = defaultdict(list)
    for node in graph.order():
        if _has_constant_matrix(graph, node) and (branch := _branch(graph, node)) is not None:
            groups[node.inputs[0], node.attrs.get("alpha", 1.0)].append(branch)
    weights: dict[tuple[str, ...], str] = {}
    changed = False
    for branches in groups.values():
        width = sum(branch.columns for branch in branches)
        paying = [branch for branch in branches if _is_sliced_freely(graph, branch, width)]
        if len(paying) > 1:
            _merge(graph, paying, weights)
            changed = True
    return changed


@dataclass(frozen=True, slots=True)
class _Branch:
    """One of the products: its MATMUL, its constant bias or None, and the node that ends it."""

    matmul: Node
    bias: str | None
    end: Node
    columns: int


def _has_constant_matrix(graph: Graph, node: Node) -> bool:
    if not is_plain_matmul(node) or node.inputs[1] not in graph.constants:
        return False
    weight = graph.tensors[node.inputs[1]]
    return weight.dtype == "float32" and len(weight.shape) == 2


def _branch(graph: Graph, matmul: Node) -> _Branch | None:
    columns = graph.tensors[matmul.output].shape[-1]
    consumer = graph.sole_consumer(matmul.output)
    if consumer is not None and consumer.op == "ADD" and len(consumer.inputs) == 2:
        bias = consumer.inputs[1 - consumer.inputs.index(matmul.output)]
        if bias in graph.constants and graph.tensors[bias].shape == (columns,):
            return _Branch(matmul, bias, consumer, columns)
    return _Branch(matmul, None, matmul, columns)


def _is_sliced_freely(graph: Graph, branch: _Branch, width: int) -> bool:
    """Whether all that reads the branch can read it as columns of a matrix ``width`` wide."""
    output = branch.end.output
    shape = graph.tensors[output].shape
    if graph.is_output(output) or any(is_elementwise(c) for c in graph.consumers(output)):
        return False
    return _readable(graph, output, contiguous_strides((*shape[:-1], width)))


def _readable(graph: Graph, tensor: str, strides: Shape) -> bool:
    if graph.is_output(tensor):
        return False
    for node in graph.consumers(tensor):
        if node.definition.view is not None:
            shape = graph.tensors[tensor].shape
            view = node.definition.view(shape, strides, node.complete_attrs())
            if view is None or not _readable(graph, node.output, view.strides):
                return False
        elif not all(
            node.definition.takes_strided(index)
            for index, name in enumerate(node.inputs)
            if name == tensor
        ):
            return False
    return True


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
        biases = [
            graph.constants[b.bias] if b.bias else np.zeros(b.columns, np.float32) for b in branches
        ]
        bias = graph.add_constant(f"{merged}.bias", np.concatenate(biases))
        name = f"{first.end.output}.merged"
        merged = graph.add_node("ADD", [merged, bias], name=name, source=first.end.source)
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
    """Return the matrices side by side as one ``[K, N]`` constant, made once however often used."""
    pairs = [(b.matmul.inputs[1], bool(b.matmul.attrs.get("transpose_b"))) for b in branches]
    key = tuple(f"{name} {transposed}" for name, transposed in pairs)
    if key not in known:
        matrices = [
            graph.constants[name].T if transposed else graph.constants[name]
            for name, transposed in pairs
        ]
        known[key] = graph.add_constant(f"{pairs[0][0]}.merged", np.concatenate(matrices, axis=1))
    return known[key]
