"""Classify the inputs of control-flow nodes, and find what a block needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node

#: Ops that run a body repeatedly.
LOOPS = ("WHILE", "SCAN")


class Operands(NamedTuple):
    """The positions at which the inputs of a node become inputs of its blocks.

    Attributes
    ----------
    first : int
        The number of inputs before the blocks' inputs: 1 for the predicate of an IF.
    carries : int
        The number of carries, which the body replaces.
    xs : int
        The number of inputs after the carries of which each step gets a slice. The others are the
        same in every step.
    """

    first: int
    carries: int
    xs: int

    @property
    def others(self) -> int:
        """Return the index of the first block input that is neither a carry nor a slice."""
        return self.carries + self.xs


def operands(node: Node) -> Operands:
    """Return the positions of the inputs of a node with blocks."""
    if node.op == "IF":
        return Operands(1, 0, 0)
    attrs = node.complete_attrs()
    return Operands(0, attrs["carries"], attrs.get("xs", 0))


def inputs_needed(block: Graph, tensor: str) -> set[str]:
    """Return the inputs of a block on which a tensor of it depends."""
    needed: set[str] = set()
    seen: set[str] = set()
    stack = [tensor]
    while stack:
        name = stack.pop()
        if name in seen:
            continue
        seen.add(name)
        if (node := block.producers.get(name)) is not None:
            stack += node.reads
        elif not block.is_constant(name):
            needed.add(name)
    return needed


def splice(graph: Graph, block: Graph, arguments: list[str]) -> list[str]:
    """Add the nodes of a block to the graph, with these inputs; return its outputs."""
    names = dict(zip(block.inputs, arguments, strict=True))
    for name, constant in block.constants.items():
        names[name] = graph.add_constant(name, constant)
    for node in block.order():
        copied = copy_node(graph, node, names)
        names.update(zip(node.outputs, copied, strict=True))
    return [names[name] for name in block.outputs]


def copy_node(graph: Graph, node: Node, names: dict[str, str]) -> tuple[str, ...]:
    """Add a copy of another graph's node; ``names`` maps its tensors to the graph's."""
    return graph.add_multi_output(
        node.op,
        [names.get(name, name) for name in node.inputs],
        node.attrs,
        blocks=[block.copy() for block in node.blocks],
        name=node.output,
        source=node.source,
    )
