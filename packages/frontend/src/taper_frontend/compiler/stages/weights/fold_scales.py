"""Fold factors and summands per channel into weights, as of batch norm and layer scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.product import has_own_weight, is_plain_product
from taper_frontend.compiler.graph.constants import derived, reshaped
from taper_frontend.compiler.rules.engine import rewrite

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def fold_scales(graph: Graph) -> bool:
    """Multiply constant factors per output channel into the weight of a product.

    ::

        MUL(CONV(x, w), c)                 CONV(x, w * c)
        MUL(ADD(CONV(x, w), b), c)         ADD(CONV(x, w * c), b * c)
        ADD(ADD(CONV(x, w), b), c)         ADD(CONV(x, w), b + c)
        SUB(CONV(x, w), c)                 ADD(CONV(x, w), -c)

    The same applies to MATMUL. Only a weight without other readers is changed, because a shared
    weight would have to be stored twice.
    """
    return rewrite(graph, _fold, _distribute, _join_summands, _add_negative)


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


def _distribute(graph: Graph, node: Node) -> bool:
    outer = _constant_operand(graph, node, "MUL")
    inner = None if outer is None else _constant_operand(graph, outer[0], "ADD")
    if outer is None or inner is None or not _is_scalable(graph, inner[0]):
        return False
    scaled = graph.add_node("MUL", [inner[0].output, outer[1]], source=node.source)
    summand = _combined(graph, "MUL", inner[1], outer[1])
    graph.replace_node(node, "ADD", [scaled, summand])
    return True


def _join_summands(graph: Graph, node: Node) -> bool:
    outer = _constant_operand(graph, node, "ADD")
    inner = None if outer is None else _constant_operand(graph, outer[0], "ADD")
    if outer is None or inner is None or not is_plain_product(inner[0]):
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
