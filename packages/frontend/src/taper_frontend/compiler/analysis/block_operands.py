"""Tell apart the inputs of a node of control flow, and find what a block needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node

#: Ops that run a body again and again.
LOOPS = ("WHILE", "SCAN")


class Operands(NamedTuple):
    """Maps the inputs of a node to those of its blocks: in order, from ``first`` on.

    Attributes
    ----------
    first : int
        Inputs before them: the predicate of an IF.
    carries : int
        How many of them the body computes anew.
    xs : int
        How many, behind the carries, it is given slices of. The others are the same every time.
    """

    first: int
    carries: int
    xs: int

    @property
    def others(self) -> int:
        """Which block input is the first of the others."""
        return self.carries + self.xs


def operands(node: Node) -> Operands:
    """Return what the inputs of a node with blocks are."""
    if node.op == "IF":
        return Operands(1, 0, 0)
    attrs = node.complete_attrs()
    return Operands(0, attrs["carries"], attrs.get("xs", 0))


def inputs_needed(block: Graph, tensor: str) -> set[str]:
    """Return the inputs of a block that decide a tensor of it."""
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
    """Add the nodes of a block, given its inputs; return what its outputs are."""
    names = dict(zip(block.inputs, arguments, strict=True))
    for name, constant in block.constants.items():
        names[name] = graph.add_constant(name, constant)
    for node in block.order():
        copied = copy_node(graph, node, names)
        names.update(zip(node.outputs, copied, strict=True))
    return [names[name] for name in block.outputs]


def copy_node(graph: Graph, node: Node, names: dict[str, str]) -> tuple[str, ...]:
    """Add a node like one of another graph, whose tensors ``names`` maps to the graph's."""
    return graph.add_multi_output(
        node.op,
        [names.get(name, name) for name in node.inputs],
        node.attrs,
        blocks=[block.copy() for block in node.blocks],
        name=node.output,
        source=node.source,
    )
