"""What passes ask about the nodes that multiply by a weight: MATMUL, CONV, CONV_TRANSPOSE."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

from taper_runtime.ops.convert import HALVES

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node

_PRODUCTS = frozenset({"MATMUL", "CONV", "CONV_TRANSPOSE"})


def has_no_epilogue(node: Node | None) -> TypeGuard[Node]:
    """Whether ``node`` multiplies by a weight, packed or not, and does nothing else."""
    return (
        node is not None
        and (node.op in _PRODUCTS or node.op == "CONV_WINOGRAD")
        and not node.attrs.get("code")
    )


def is_plain_product(node: Node | None) -> TypeGuard[Node]:
    """Whether ``node`` multiplies two tensors as they are: nothing packed, no epilogue."""
    return (
        node is not None
        and node.op in _PRODUCTS
        and not node.attrs.get("columns")
        and not node.attrs.get("code")
    )


def is_plain_matmul(node: Node | None) -> TypeGuard[Node]:
    """Whether ``node`` is a MATMUL of two tensors as they are."""
    return is_plain_product(node) and node.op == "MATMUL"


def constant_weight(graph: Graph, node: Node) -> str | None:
    """Return the constant that a float32 product multiplies by, None if there is none.

    A MATMUL's may be halves, behind the CAST that widens them.
    """
    weight = node.inputs[1]
    if graph.tensors[weight].dtype != "float32":
        return None
    producer = graph.producer(weight)
    if node.op == "MATMUL" and producer is not None and producer.op == "CAST":
        weight = producer.inputs[0]
        if graph.tensors[weight].dtype not in HALVES:
            return None
    return weight if graph.is_constant(weight) else None


def has_own_weight(graph: Graph, node: Node) -> bool:
    """Whether a product has a float32 constant for weight that nothing else reads.

    Its last dimension, or the first of the two with transpose_b, is the last one of the output.
    """
    weight = node.inputs[1]
    return (
        graph.is_constant(weight)
        and graph.tensors[weight].dtype == "float32"
        and graph.sole_consumer(weight) is node
        and (node.op != "MATMUL" or len(graph.tensors[weight].shape) == 2)
    )
