"""Fold factors and summands per channel into weights, as of batch norm and layer scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_frontend.compiler.analysis.product import has_own_weight, is_plain_product
from taper_frontend.compiler.graph.constants import derived, reshaped
from taper_frontend.compiler.rules.engine import rewrite

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node

_BOUNDS = ("RELU", "MAXIMUM", "MINIMUM")


def fold_scales(graph: Graph) -> bool:
    """Multiply constant factors per output channel into the weight of a product.

    ::

        MUL(CONV(x, w), c)                 CONV(x, w * c)
        MUL(ADD(CONV(x, w), b), c)         ADD(CONV(x, w * c), b * c)
        ADD(ADD(CONV(x, w), b), c)         ADD(CONV(x, w), b + c)
        SUB(CONV(x, w), c)                 ADD(CONV(x, w), -c)

    The same applies to MATMUL. Only a weight without other readers is changed, because a shared
    weight would have to be stored twice. Integers have no such weight: their sums, cast to float32,
    are scaled once, also by what quantizes the result::

        MUL(MUL(sums, a), c)               MUL(sums, a * c)
        MUL(MAXIMUM(y, low), c)            MAXIMUM(MUL(y, c), low * c)
    """
    return rewrite(
        graph, _fold, _join_factors, _distribute, _scale_once, _join_summands, _add_negative
    )


def _constant_operand(graph: Graph, node: Node, op: str) -> tuple[Node, str] | None:
    """Return the node of one operand, which only ``node`` reads, and the other, a constant."""
    if node.op != op or len(node.inputs) != 2 or graph.tensors[node.output].dtype != "float32":
        return None
    for value, constant in (node.inputs, node.inputs[::-1]):
        producer = graph.producers.get(value)
        if (
            producer is not None
            and graph.is_constant(constant)
            and graph.sole_consumer(value) is node
            and graph.tensors[value].type == graph.tensors[node.output].type
            and _is_per_channel(graph, constant)
        ):
            return producer, constant
    return None


def _is_per_channel(graph: Graph, constant: str) -> bool:
    """Return whether a constant varies only along the last dimension."""
    spec = graph.tensors[constant]
    return spec.type.size == (spec.shape[-1] if spec.shape else 1)


def _is_scalable(graph: Graph, node: Node | None) -> bool:
    return is_plain_product(node) and has_own_weight(graph, node)


def _scaled_sums(graph: Graph, node: Node) -> tuple[str, str] | None:
    """Return the int32 sums, cast to float32, that a node scales, and their factors."""
    found = _constant_operand(graph, node, "MUL")
    if found is None or found[0].op != "CAST":
        return None
    sums = graph.producers.get(found[0].inputs[0])
    if sums is not None and sums.op == "SUB":  # zero points
        sums = graph.producers.get(sums.inputs[0])
    is_sum = is_plain_product(sums) and sums.attrs.get("accumulate") == "int32"
    return (found[0].output, found[1]) if is_sum else None


def _takes_factors(graph: Graph, node: Node) -> bool:
    return _is_scalable(graph, node) or _scaled_sums(graph, node) is not None


def _fold(graph: Graph, node: Node) -> bool:
    found = _constant_operand(graph, node, "MUL")
    if found is None or not _is_scalable(graph, found[0]):
        return False
    product, constant = found
    x, weight = product.inputs
    factor = graph.constants[constant]
    size = factor.type.size
    factor = reshaped(factor, (size, 1) if product.attrs.get("transpose_b") else (size,))
    recipe = derived("MUL", [graph.constants[weight], factor])
    scaled = graph.add_constant(f"{weight}.scaled", recipe)
    graph.replace_node(node, product.op, [x, scaled], product.attrs)
    return True


def _join_factors(graph: Graph, node: Node) -> bool:
    outer = _constant_operand(graph, node, "MUL")
    inner = None if outer is None else _scaled_sums(graph, outer[0])
    if outer is None or inner is None:
        return False
    factors = _combined(graph, "MUL", inner[1], outer[1])
    graph.replace_node(node, "MUL", [inner[0], factors])
    return True


def _distribute(graph: Graph, node: Node) -> bool:
    outer = _constant_operand(graph, node, "MUL")
    inner = None if outer is None else _constant_operand(graph, outer[0], "ADD")
    if outer is None or inner is None or not _takes_factors(graph, inner[0]):
        return False
    scaled = graph.add_node("MUL", [inner[0].output, outer[1]], source=node.source)
    summand = _combined(graph, "MUL", inner[1], outer[1])
    graph.replace_node(node, "ADD", [scaled, summand])
    return True


def _scale_once(graph: Graph, node: Node) -> bool:
    """Move a factor of all elements, as of QUANTIZE, into the factors and summands of sums."""
    factor = _number(graph, node)
    if factor is None or not 0 < factor < np.inf:
        return False
    bounds: list[Node] = []
    inner = _only_producer(graph, node)
    while inner is not None and inner.op in _BOUNDS:
        if inner.op != "RELU" and inner.attrs.get("scalar_index") != 1:
            return False
        bounds.append(inner)
        inner = _only_producer(graph, inner)
    added = None if inner is None else _constant_operand(graph, inner, "ADD")
    scaled = inner if added is None else added[0]
    found = None if scaled is None else _scaled_sums(graph, scaled)
    if found is None:
        return False
    constant = graph.add_constant("factor", np.full(1, factor, np.float32))
    y = graph.add_node("MUL", [found[0], _combined(graph, "MUL", found[1], constant)])
    if added is not None:
        y = graph.add_node("ADD", [y, _combined(graph, "MUL", added[1], constant)])
    for each in reversed(bounds):
        attrs = dict(each.attrs)
        if each.op != "RELU":
            attrs["scalar"] = float(np.float32(attrs["scalar"]) * factor)
        y = graph.add_node(each.op, [y], attrs, source=each.source)
    graph.bypass(node, y)
    return True


def _number(graph: Graph, node: Node) -> np.float32 | None:
    """Return the factor of a MUL of all elements by one number, or None."""
    if node.op != "MUL" or graph.tensors[node.output].dtype != "float32":
        return None
    if len(node.inputs) == 1:
        return np.float32(node.attrs["scalar"])
    value = graph.value(node.inputs[1])
    return np.float32(value.item()) if value is not None and value.size == 1 else None


def _only_producer(graph: Graph, node: Node) -> Node | None:
    """Return the producer of a node's first input, if the node is its only reader."""
    name = node.inputs[0]
    return graph.producers.get(name) if graph.sole_consumer(name) is node else None


def _join_summands(graph: Graph, node: Node) -> bool:
    outer = _constant_operand(graph, node, "ADD")
    inner = None if outer is None else _constant_operand(graph, outer[0], "ADD")
    if outer is None or inner is None:
        return False
    if not is_plain_product(inner[0]) and _scaled_sums(graph, inner[0]) is None:
        return False
    summand = _combined(graph, "ADD", inner[1], outer[1])
    graph.replace_node(node, "ADD", [inner[0].output, summand])
    return True


def _add_negative(graph: Graph, node: Node) -> bool:
    found = _constant_operand(graph, node, "SUB")
    if found is None or node.inputs[0] != found[0].output:
        return False
    value, constant = found
    if value.op != "ADD" and not is_plain_product(value):
        return False
    recipe = derived("NEG", [graph.constants[constant]])
    negative = graph.add_constant(f"{constant}.negative", recipe)
    graph.replace_node(node, "ADD", [value.output, negative])
    return True


def _combined(graph: Graph, op: str, a: str, b: str) -> str:
    constants = (graph.constants[a], graph.constants[b])
    vectors = [reshaped(constant, (constant.type.size,)) for constant in constants]
    return graph.add_constant(f"{a}.combined", derived(op, vectors))
