"""Move loop-invariant nodes out of loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.block_operands import LOOPS, copy_node, operands
from taper_frontend.compiler.rules.engine import rewrite

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def hoist_invariants(graph: Graph) -> bool:
    """Move nodes that depend on neither carries nor slices out of the blocks of a loop.

    ::

        SCAN(c, x, a) {ADD(c, EXP(a)), ..}     SCAN(c, x, EXP(a)) {ADD(c, .), ..}

    Nodes that may fail, such as lookups, stay, because the loop may have no steps. Views stay, too,
    because they are free.
    """
    return rewrite(graph, _hoist, at=LOOPS)


def _hoist(graph: Graph, node: Node) -> bool:
    others = operands(node).others
    inputs = list(node.inputs)
    for block in node.blocks:
        names = dict(zip(block.inputs[others:], inputs[others:], strict=True))
        for moved in _computed_alike(block, set(names)):
            inputs += _move(graph, node, block, moved, names)
    if len(inputs) == len(node.inputs):
        return False
    graph.replace_node(node, node.op, inputs, node.attrs, blocks=node.blocks)
    return True


def _computed_alike(block: Graph, given: set[str]) -> list[Node]:
    """Return the nodes of a block that depend only on inputs which are the same in every step."""
    known, found = set(given), []
    for node in block.order():
        decided = [name for name in node.reads if not block.is_constant(name)]
        if (node.reads and not decided) or not known.issuperset(decided):
            continue  # nodes that depend only on constants are folded, or stay for a reason
        if node.blocks or node.op == "COPY":
            continue
        if node.definition.check is not None:
            continue
        known.update(node.outputs)
        if node.definition.view is None:
            found.append(node)
    return found


def _move(graph: Graph, node: Node, block: Graph, moved: Node, names: dict[str, str]) -> list[str]:
    """Compute a node of a block in the graph; return the new operands of the loop.

    ``names`` maps tensors of the block to the graph's, and is extended.
    """
    _compute(graph, block, moved, names)
    given = []
    for output in moved.outputs:
        if not block.is_used(output):
            continue
        spec = block.tensors[output]
        for other in node.blocks:
            added = other.add_input(f"{output}.hoisted", spec.dtype, spec.shape)
            if other is block:
                block.replace_uses(output, added)
                names[added] = names[output]
        given.append(names[output])
    block.prune(moved.outputs)
    return given


def _compute(graph: Graph, block: Graph, node: Node, names: dict[str, str]) -> None:
    """Add a node of a block to the graph, after the nodes that it reads."""
    for name in node.reads:
        if name in names:
            continue
        if block.is_constant(name):
            names[name] = graph.add_constant(name, block.constants[name])
        elif (producer := block.producers.get(name)) is not None:
            _compute(graph, block, producer, names)
    names.update(zip(node.outputs, copy_node(graph, node, names), strict=True))
