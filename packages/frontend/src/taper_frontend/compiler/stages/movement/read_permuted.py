"""Permute the inputs of an elementwise node instead of its output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.elementwise import is_fusable
from taper_frontend.compiler.analysis.permutation import permutation, permutation_op
from taper_frontend.compiler.rules.engine import rewrite
from taper_frontend.compiler.stages.movement.crossing import (
    padded,
)

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_frontend.compiler.stages.movement.crossing import Axes


def read_permuted(graph: Graph) -> bool:
    """Place the permutations that are left where they cost least.

    ::

        x -> MAP -> PERMUTE -> CONV             x -> PERMUTE -> MAP -> CONV

    Before, permutations stand as far down as they can, where two of them meet. What is a copy there
    costs nothing before an elementwise node, which reads its operands in whatever order they lie.
    Only where nothing else reads the result.
    """
    return rewrite(graph, _permute_operands)


def _permute_operands(graph: Graph, node: Node) -> bool:
    axes = permutation(graph, node)
    producer = None if axes is None else graph.producer(node.inputs[0])
    if (
        axes is None
        or producer is None
        or not is_fusable(graph, producer)
        or graph.sole_consumer(producer.output) is not node
        or not _is_copied(graph, node)
    ):
        return False
    inputs = [_permuted(graph, name, axes, node.source) for name in producer.inputs]
    graph.replace_node(node, producer.op, inputs, producer.attrs)
    return True


def _permuted(graph: Graph, tensor: str, axes: Axes, source: str) -> str:
    """Return an operand of fewer dimensions, perhaps, for a result that is permuted."""
    shape = graph.tensors[tensor].shape
    if not shape:
        return tensor
    full = padded(shape, len(axes))
    if full != shape:
        tensor = graph.add_node("RESHAPE", [tensor], {"shape": full}, source=source)
    op, attrs = permutation_op(axes)
    return graph.add_node(op, [tensor], attrs, source=source)


def _is_copied(graph: Graph, node: Node) -> bool:
    """Whether something needs the permuted tensor in row-major order."""
    return graph.is_output(node.output) or any(
        reader.definition.view is None and not reader.definition.takes_strided(index)
        for reader in graph.consumers(node.output)
        for index, name in enumerate(reader.inputs)
        if name == node.output
    )
