"""Move RESHAPEs after elementwise ops on their results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.product import is_plain_product
from taper_frontend.compiler.analysis.tile_programs import is_elementwise
from taper_frontend.compiler.analysis.views import is_free_reshape
from taper_frontend.compiler.rules.engine import rewrite

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_runtime.ops.opdef import Shape


def sink_reshapes(graph: Graph) -> bool:
    """Compute an elementwise op before a RESHAPE that separates it from a product or is a copy.

    ::

        CONV -> RESHAPE [N,L,C] -> GELU            CONV -> GELU -> RESHAPE [N,L,C]
        PERMUTE -> RESHAPE (a copy) -> ADD(., y)   PERMUTE -> ADD(., y in its shape) -> RESHAPE

    Then the op can become the epilogue, fuse with the elementwise op before it, or read the
    permuted tensor with its strides. Its other operands must be scalars, vectors along a last
    dimension that both shapes have, or tensors that can be reshaped without a copy. Each step
    leaves fewer copies, or equally many and fewer pairs that a RESHAPE keeps from fusing, where a
    product counts twice.
    """
    return rewrite(graph, _sink)


def _sink(graph: Graph, node: Node) -> bool:
    """Move the first RESHAPE that ``node`` reads, and that should move, after ``node``."""
    if not is_elementwise(node):
        return False
    after = graph.tensors[node.output].shape
    for name in node.inputs:
        reshape = graph.producers.get(name)
        if reshape is None or reshape.op != "RESHAPE" or not _gains(graph, reshape, node):
            continue
        (source,) = reshape.inputs
        before = graph.tensors[source].shape
        inputs = [
            source if other == name else _reshaped(graph, other, before, after)
            for other in node.inputs
        ]
        wanted = f"{node.output}.before"
        result = graph.add_node(node.op, inputs, node.attrs, name=wanted, source=node.source)
        graph.replace_node(node, "RESHAPE", [result], {"shape": after})
        return True
    return False


def _gains(graph: Graph, reshape: Node, node: Node) -> bool:
    """Return whether ``node`` can and should be computed before a RESHAPE that it reads."""
    (source,) = reshape.inputs
    before, after = (graph.tensors[t].shape for t in (source, node.output))
    if (
        graph.tensors[reshape.output].shape != after
        or graph.sole_consumer(reshape.output) is not node
    ):
        return False
    others = [name for name in node.inputs if name != reshape.output]
    if not all(_fits(graph, name, before, after) for name in others):
        return False
    if not is_free_reshape(graph, source, after):
        return True
    parted = [name for name in others if graph.tensors[name].shape == after]
    loss = sum(_worth_fusing(graph, name, node) for name in parted)
    return _worth_fusing(graph, source, reshape) > loss


def _worth_fusing(graph: Graph, tensor: str, reader: Node) -> int:
    """Return the value of fusing the only reader of ``tensor`` with the node that makes it."""
    producer = graph.producers.get(tensor)
    if producer is None or graph.sole_consumer(tensor) is not reader:
        return 0
    return 2 if is_plain_product(producer) else int(is_elementwise(producer))


def _fits(graph: Graph, tensor: str, before: Shape, after: Shape) -> bool:
    """Return whether the tensor can also be an operand before the RESHAPE."""
    shape = graph.tensors[tensor].shape
    vector = after[-1:] if before[-1:] == after[-1:] else ()
    return shape in ((), vector) or (shape == after and is_free_reshape(graph, tensor, before))


def _reshaped(graph: Graph, tensor: str, before: Shape, after: Shape) -> str:
    if graph.tensors[tensor].shape != after:
        return tensor
    return graph.add_node("RESHAPE", [tensor], {"shape": before}, name=f"{tensor}.view")
