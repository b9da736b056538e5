"""What passes ask about the nodes that multiply by a weight: MATMUL, CONV, CONV_TRANSPOSE."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

from taper_runtime.formats import PLAIN

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node

_PRODUCTS = frozenset({"MATMUL", "CONV", "CONV_TRANSPOSE"})


def is_plain_product(node: Node | None) -> TypeGuard[Node]:
    """Whether ``node`` multiplies two tensors and does nothing else: no epilogue."""
    return node is not None and node.op in _PRODUCTS and not node.attrs.get("code")


def is_plain_matmul(node: Node | None) -> TypeGuard[Node]:
    """Whether ``node`` is a MATMUL without an epilogue."""
    return is_plain_product(node) and node.op == "MATMUL"


def constant_weight(graph: Graph, node: Node) -> str | None:
    """Return the plain constant that a float32 product multiplies by, None if there is none.

    A MATMUL's may be stored as 16-bit floats, behind the CAST that decodes them.
    """
    weight = node.inputs[1]
    if graph.tensors[weight].dtype != "float32":
        return None
    producer = graph.producer(weight)
    if node.op == "MATMUL" and producer is not None and _decodes(graph, producer):
        weight = producer.inputs[0]
    plain = graph.is_constant(weight) and graph.tensors[weight].format == PLAIN
    return weight if plain else None


def _decodes(graph: Graph, node: Node) -> bool:
    types = graph.input_types(node)
    return node.definition.decodes(types, graph.tensors[node.output].type)


def has_own_weight(graph: Graph, node: Node) -> bool:
    """Whether a product has a plain float32 constant for weight that nothing else reads.

    Its last dimension, or the first of the two with transpose_b, is the last one of the output.
    """
    weight = node.inputs[1]
    return (
        graph.is_constant(weight)
        and graph.tensors[weight].dtype == "float32"
        and graph.tensors[weight].format == PLAIN
        and graph.sole_consumer(weight) is node
        and (node.op != "MATMUL" or len(graph.tensors[weight].shape) == 2)
    )
