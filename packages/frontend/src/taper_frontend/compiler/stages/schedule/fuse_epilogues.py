"""Fuse what follows a product into its epilogue, done while its output blocks are in cache."""

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
    """Make the elementwise node that alone reads a product its epilogue.

    ::

        MATMUL(a, b) -> p                          MATMUL(a, b, bias, x) [ADD, GELU, ADD]
          -> MAP [ADD, GELU, ADD] (p, bias, x)

    The result must have the product's type, so every extra broadcasts to it. fuse_elementwise runs
    before, so one node is all that follows. No extra can depend on the product, since only that
    node reads it. Where a node reads several products, the last one takes it.
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
        and not may_refuse(consumer)  # a product has no way to say so
        and tensors[product.output].dtype == "float32"
        and tensors[consumer.output].type == tensors[product.output].type
        and len(external_inputs([consumer], first=[product.output])) <= 1 + MAX_EXTRAS
    )
