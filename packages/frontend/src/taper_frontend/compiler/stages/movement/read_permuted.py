"""Results that are written in the order they are wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.elementwise import is_fusable
from taper_frontend.compiler.analysis.permutation import permutation, permutation_op
from taper_frontend.compiler.rules.engine import rewrite

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def read_permuted(graph: Graph) -> bool:
    """Permute the operands of an elementwise node instead of its result, if that were a copy.

    ::

        x -> MAP -> PERMUTE -> CONV        x -> PERMUTE -> MAP -> CONV

    The operands are read in whatever order they lie. Only where nothing else reads the result. This
    is what ``sink_permutations`` has brought here, undone where it found no end: it comes after.
    """
    return rewrite(graph, _permute_operands)


def _permute_operands(graph: Graph, node: Node) -> bool:
    axes = permutation(graph, node)
    if axes is None:
        return False
    producer = graph.producer(node.inputs[0])
    if (
        producer is None
        or not is_fusable(graph, producer)
        or graph.sole_consumer(producer.output) is not node
        or not _is_copied(graph, node)
    ):
        return False
    op, attrs = permutation_op(axes)
    inputs = []
    for name in producer.inputs:
        shape = graph.tensors[name].shape
        if len(shape) < len(axes) and shape != ():
            full = {"shape": (1,) * (len(axes) - len(shape)) + shape}
            name = graph.add_node("RESHAPE", [name], full, source=node.source)
        inputs.append(graph.add_node(op, [name], attrs, source=node.source) if shape else name)
    graph.replace_node(node, producer.op, inputs, producer.attrs)
    return True


def _is_copied(graph: Graph, node: Node) -> bool:
    """Whether something needs the permuted tensor in row-major order."""
    return graph.is_output(node.output) or any(
        reader.definition.view is None and not reader.definition.takes_strided(index)
        for reader in graph.consumers(node.output)
        for index, name in enumerate(reader.inputs)
        if name == node.output
    )
