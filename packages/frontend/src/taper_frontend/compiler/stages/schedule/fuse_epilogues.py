"""Fuse the elementwise node after a product into its epilogue, which runs on blocks in cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.product import is_plain_product
from taper_frontend.compiler.analysis.tile_programs import (
    external_inputs,
    is_fusable,
    may_refuse,
    tile_program,
)
from taper_runtime.ops.map import MAX_EXTRAS

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def fuse_epilogues(graph: Graph) -> bool:
    """Make an elementwise node the epilogue of a product that only it reads.

    ::

        MATMUL(a, b) -> p                          MATMUL(a, b, bias, x) [ADD, GELU, ADD]
          -> MAP [ADD, GELU, ADD] (p, bias, x)

    The result must have the product's type, so every extra input broadcasts to it. fuse_elementwise
    has run before, so there is only one node to fuse. No extra input can depend on the product,
    which only that node reads. If a node reads several products, it is fused into the last one.
    """
    changed = False
    for node in reversed(graph.order()):
        consumer = graph.sole_consumer(node.output) if is_plain_product(node) else None
        if consumer is not None and _fits(graph, node, consumer):
            program = tile_program([consumer], first=[node.output])
            _, *extras = program.inputs
            inputs = [*node.inputs, *extras]
            graph.replace_node(consumer, node.op, inputs, node.attrs | program.attrs)
            graph.listener.fired("fuse_epilogues", node.output)
            changed = True
    return changed


def _fits(graph: Graph, product: Node, consumer: Node) -> bool:
    tensors = graph.tensors
    return (
        is_fusable(graph, consumer)
        and not may_refuse(consumer)  # an epilogue cannot refuse values
        and tensors[product.output].dtype == "float32"
        and tensors[consumer.output].type == tensors[product.output].type
        and len(external_inputs([consumer], first=[product.output])) <= 1 + MAX_EXTRAS
    )
