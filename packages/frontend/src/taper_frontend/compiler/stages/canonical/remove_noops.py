"""Data movement that moves nothing, or that the next movement makes superfluous."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from taper_frontend.compiler.analysis.elementwise import is_elementwise
from taper_frontend.compiler.analysis.permutation import permutation, permutation_op
from taper_frontend.compiler.rules.pattern import rewrite
from taper_runtime.ops.rules import broadcast
from taper_runtime.sizes import is_static

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node

#: Ops that are the identity whenever their output has the type of their input.
_IDENTITY_IF_SAME_TYPE = frozenset({"RESHAPE", "CAST", "EXPAND", "SLICE", "COPY"})


def remove_noops(graph: Graph) -> bool:
    """Remove movements that change nothing and join those that follow each other.

    ::

        x -> RESHAPE [2,3] -> y            x: [2,3], y reads x
        x -> RESHAPE -> RESHAPE -> y       x -> RESHAPE -> y
        x -> TRANSPOSE -> PERMUTE -> y     x -> PERMUTE -> y, or TRANSPOSE, or y reads x
        x -> SLICE -> SLICE -> y           x -> SLICE -> y           (same axis)
        x -> EXPAND -> EXPAND -> y         x -> EXPAND -> y
        x -> CAST -> CAST -> y             x -> CAST -> y            (the first loses nothing)
        x -> EXPAND -> ADD(., z)           ADD(x, z)                 (z has the full shape)
        x -> EXPAND -> NEG -> y            x -> NEG -> EXPAND -> y
        INDEX_SELECT(x, 0 1 2 ... all)     RESHAPE(x)

    Each step leaves fewer movements on some path, or an EXPAND nearer to the outputs.
    """
    return rewrite(
        graph,
        _remove_identity,
        _join_permutations,
        _join_repeated,
        _join_slices,
        _join_casts,
        _let_op_broadcast,
        _expand_later,
        _select_all,
    )


def _remove_identity(graph: Graph, node: Node) -> bool:
    alone = node.op == "CAT" and len(node.inputs) == 1
    if not alone and node.op not in _IDENTITY_IF_SAME_TYPE:
        return False
    source = node.inputs[0]
    if graph.tensors[source].type != graph.tensors[node.output].type:
        return False
    return graph.bypass(node, source)


def _join_permutations(graph: Graph, node: Node) -> bool:
    axes = permutation(graph, node)
    if axes is None:
        return False
    source = node.inputs[0]
    producer = graph.producer(source)
    if producer is not None and (first := permutation(graph, producer)) is not None:
        source = producer.inputs[0]
        axes = tuple(first[axis] for axis in axes)
    if axes == tuple(range(len(axes))):
        return graph.bypass(node, source)
    op, attrs = permutation_op(axes)
    if source == node.inputs[0] and op == node.op:
        return False
    graph.replace_node(node, op, [source], attrs)
    return True


def _join_repeated(graph: Graph, node: Node) -> bool:
    """Join two RESHAPEs, or EXPANDs: the last decides the shape."""
    producer = graph.producer(node.inputs[0]) if node.op in ("RESHAPE", "EXPAND") else None
    if producer is None or producer.op != node.op:
        return False
    graph.replace_node(node, node.op, producer.inputs, node.attrs)
    return True


def _join_slices(graph: Graph, node: Node) -> bool:
    producer = graph.producer(node.inputs[0]) if node.op == "SLICE" else None
    if producer is None or producer.op != "SLICE":
        return False
    outer, inner = node.complete_attrs(), producer.complete_attrs()
    if outer["axis"] != inner["axis"]:
        return False
    if inner["step"] == outer["step"] == 1:
        start, stop = (inner["start"] + outer[end] for end in ("start", "stop"))
        attrs = {"axis": outer["axis"], "start": start, "stop": stop}
        graph.replace_node(node, "SLICE", producer.inputs, attrs)
        return True
    if not all(is_static(attrs[end]) for attrs in (outer, inner) for end in ("start", "stop")):
        return False
    picked = range(inner["start"], inner["stop"], inner["step"])[
        outer["start"] : outer["stop"] : outer["step"]
    ]
    start, stop = (picked[0], picked[-1] + 1) if picked else (0, 0)
    attrs = {"axis": outer["axis"], "start": start, "stop": stop, "step": picked.step}
    graph.replace_node(node, "SLICE", producer.inputs, attrs)
    return True


def _join_casts(graph: Graph, node: Node) -> bool:
    producer = graph.producer(node.inputs[0]) if node.op == "CAST" else None
    if producer is None or producer.op != "CAST":
        return False
    first, second = (graph.tensors[t].dtype for t in (producer.inputs[0], producer.output))
    if not _keeps_values(first, second):
        return False
    graph.replace_node(node, "CAST", producer.inputs, node.attrs)
    return True


def _keeps_values(dtype: str, to: str) -> bool:
    """Whether every value of ``dtype`` is one of ``to``."""
    if "bfloat16" in (dtype, to) or (dtype, to) == ("int64", "float64"):  # numpy calls this safe
        return False
    return np.can_cast(dtype, to, "safe")


def _let_op_broadcast(graph: Graph, node: Node) -> bool:
    """Let an elementwise op repeat a small operand itself, if another has the full shape."""
    if not is_elementwise(node):
        return False
    changed = False
    for index, name in enumerate(node.inputs):
        producer = graph.producer(name)
        if producer is None or producer.op != "EXPAND":
            continue
        shapes = [graph.tensors[t].shape for t in node.inputs]
        shapes[index] = graph.tensors[producer.inputs[0]].shape
        if broadcast(node.op, shapes) == graph.tensors[node.output].shape:
            inputs = list(node.inputs)
            inputs[index] = producer.inputs[0]
            graph.replace_node(node, node.op, inputs, node.attrs)
            changed = True
    return changed


def _expand_later(graph: Graph, node: Node) -> bool:
    """Compute before repeating: a repeated value stays a view with readers that take one."""
    if not is_elementwise(node):
        return False
    producers = [graph.producer(name) for name in node.inputs]
    expands = [p for p in producers if p is not None and p.op == "EXPAND"]
    if len(expands) != 1 or graph.sole_consumer(expands[0].output) is not node:
        return False
    (expand,) = expands
    inputs = [expand.inputs[0] if name == expand.output else name for name in node.inputs]
    shapes = [graph.tensors[name].shape for name in inputs]
    shape = graph.tensors[node.output].shape
    if math.prod(broadcast(node.op, shapes)) == math.prod(shape):
        return False
    name = f"{node.output}.once"
    small = graph.add_node(node.op, inputs, node.attrs, name=name, source=node.source)
    graph.replace_node(node, "EXPAND", [small], {"shape": shape})
    return True


def _select_all(graph: Graph, node: Node) -> bool:
    if node.op != "INDEX_SELECT":
        return False
    x, index = node.inputs
    size, places = graph.tensors[x].shape[node.attrs["axis"]], graph.value(index)
    if places is None or not is_static(size):
        return False
    if not np.array_equal(places.ravel(), np.arange(size)):
        return False
    graph.replace_node(node, "RESHAPE", [x], {"shape": graph.tensors[node.output].shape})
    return True
