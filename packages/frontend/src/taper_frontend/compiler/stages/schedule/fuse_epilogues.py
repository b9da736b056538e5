"""Fuse the elementwise node after a product into its epilogue, which runs on blocks in cache."""

from __future__ import annotations

from functools import cache
from operator import contains
from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.product import is_plain_product
from taper_frontend.compiler.analysis.tile_programs import (
    external_inputs,
    is_fusable,
    may_refuse,
    tile_program,
)
from taper_runtime.native._kernels import find_kernels
from taper_runtime.ops.map import MAX_EXTRAS

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def fuse_epilogues(graph: Graph) -> bool:
    """Make an elementwise node the epilogue of a product that only it reads.

    ::

        MATMUL(a, b) -> p                          MATMUL(a, b, bias, x) [ADD, GELU, ADD]
          -> MAP [ADD, GELU, ADD] (p, bias, x)

    The result must have the product's shape, so every extra input broadcasts to it, and a kernel of
    the product must give its dtype. fuse_elementwise
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
        and tensors[consumer.output].shape == tensors[product.output].shape
        and len(external_inputs([consumer], first=[product.output])) <= 1 + MAX_EXTRAS
        and _is_served(graph, product, tensors[consumer.output].dtype)
    )


def _is_served(graph: Graph, product: Node, dtype: str) -> bool:
    """Return whether a kernel takes these operands and extras, and gives such a result.

    numpy computes any epilogue of an op without kernels.
    """
    if not product.definition.native:
        return True
    operands = [graph.tensors[name].dtype for name in product.inputs]
    return any(
        dtype in result and all(map(contains, takes, operands)) and len(takes) > len(operands)
        for *takes, result in _rows(product.op)
    )


@cache
def _rows(op: str) -> list[list[list[str]]]:
    """Return the dtypes of each operand and of the result, for each kernel of an op."""
    return [[dtypes for dtypes, _ in kernel.operands] for kernel in find_kernels(op)]
