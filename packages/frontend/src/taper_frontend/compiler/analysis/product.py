"""Find products, which are nodes that multiply by a weight and take an epilogue.

The ops' definitions say which ops are products, and how their weights are stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

from taper_runtime.formats import PLAIN
from taper_runtime.ops.map import EPILOGUE

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_runtime.ops.opdef import Attrs, TensorType


def is_product(node: Node) -> bool:
    """Return whether the op of ``node`` multiplies by a weight and can have an epilogue."""
    op = node.definition
    return bool(op.weights) and EPILOGUE.keys() <= op.attrs.keys()


def is_plain_product(node: Node | None) -> TypeGuard[Node]:
    """Return whether ``node`` multiplies two tensors and does nothing else: no epilogue."""
    return node is not None and is_product(node) and not node.attrs.get("code")


def is_plain_matmul(node: Node | None) -> TypeGuard[Node]:
    """Return whether ``node`` is a MATMUL without an epilogue."""
    return is_plain_product(node) and node.op == "MATMUL"


def packing(node: Node, weight: TensorType, attrs: Attrs) -> str | None:
    """Return the format in which the op of ``node`` reads such a weight; None for plain."""
    rule = node.definition.packing
    return rule and rule(weight, attrs)


def constant_weight(graph: Graph, node: Node) -> str | None:
    """Return the plain constant that a product could read packed; None if there is none.

    It may be stored in a narrower dtype, with a CAST that decodes it.
    """
    if not is_product(node):
        return None
    weight = node.inputs[node.definition.weights[0]]
    producer = graph.producers.get(weight)
    if producer is not None and _decodes(graph, producer):
        weight = producer.inputs[0]
    if not graph.is_constant(weight) or graph.tensors[weight].format != PLAIN:
        return None
    type_, attrs = graph.tensors[weight].type, node.complete_attrs()
    is_read = packing(node, type_, attrs) is not None
    if not is_read and attrs.get("transpose_b"):  # kernels of bytes read no transposed weight
        is_read = packing(node, type_, {**attrs, "transpose_b": False}) is not None
    return weight if is_read else None


def _decodes(graph: Graph, node: Node) -> bool:
    types = graph.input_types(node)
    return node.definition.decodes(types, graph.tensors[node.output].type)


def has_own_weight(graph: Graph, node: Node) -> bool:
    """Return whether a product's weight is a plain float32 constant that nothing else reads.

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
