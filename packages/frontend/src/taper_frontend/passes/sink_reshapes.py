"""Moving RESHAPE out from between a result and what is done to each of its elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.graph.elementwise import is_elementwise
from taper_frontend.graph.pattern import rewrite
from taper_frontend.graph.product import is_plain_product

if TYPE_CHECKING:
    from taper_frontend.graph.graph import Graph
    from taper_frontend.graph.node import Node


def sink_reshapes(graph: Graph) -> bool:
    """Compute an elementwise op before the RESHAPE that stands between it and a product.

    ::

        CONV -> RESHAPE [N,L,C] -> GELU            CONV -> GELU -> RESHAPE [N,L,C]

    The op can then become the epilogue, or fuse with the elementwise op before. Its other operands
    are scalars, or vectors along a last dimension that both shapes have.
    """
    return rewrite(graph, _sink)


def _sink(graph: Graph, node: Node) -> bool:
    if not is_elementwise(node):
        return False
    tensors = graph.tensors
    reshapes = [
        producer
        for name in node.inputs
        if (producer := graph.producer(name)) is not None
        and producer.op == "RESHAPE"
        and tensors[name].shape == tensors[node.output].shape
    ]
    if len(reshapes) != 1 or graph.sole_consumer(reshapes[0].output) is not node:
        return False
    (reshape,) = reshapes
    source = graph.producer(reshape.inputs[0])
    if source is None or graph.sole_consumer(source.output) is not reshape:
        return False
    if not is_plain_product(source) and not is_elementwise(source):
        return False
    before, after = tensors[source.output].shape, tensors[node.output].shape
    vector = after[-1:] if before[-1:] == after[-1:] else ()
    others = [name for name in node.inputs if name != reshape.output]
    if any(tensors[name].shape not in ((), vector) for name in others):
        return False
    inputs = [source.output if name == reshape.output else name for name in node.inputs]
    name = f"{node.output}.before"
    result = graph.add_node(node.op, inputs, node.attrs, name=name, source=node.source)
    graph.replace_node(node, "RESHAPE", [result], {"shape": after})
    return True
