"""Remove operands of blocks that are duplicate, unused or constant, and unused results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.block_operands import LOOPS, inputs_needed, operands
from taper_frontend.compiler.rules.engine import rewrite

if TYPE_CHECKING:
    from collections.abc import Collection

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def prune_operands(graph: Graph) -> bool:
    """Remove operands and results of control flow that are not needed.

    ::

        WHILE(i, x, w, w) {..} {i + 1, x * w, ..}      WHILE(i, x, w) {..} {i + 1, x * w}

    Constants are copied into the blocks. A carry that no step changes becomes another operand, and
    a carry that only itself depends on is removed.
    """
    steps = (_own_constants, _share, _drop_inputs, _drop_outputs)
    at_all = rewrite(graph, *steps, at=("IF", *LOOPS))
    return rewrite(graph, _free_carry, _drop_carries, at=LOOPS) | at_all


def _others(node: Node) -> range:
    """Return the positions, among the blocks' inputs, of those that are the same in every step."""
    return range(operands(node).others, len(node.blocks[0].inputs))


def _own_constants(graph: Graph, node: Node) -> bool:
    """Copy constant operands into the blocks."""
    first = operands(node).first
    known = [i for i in _others(node) if graph.is_constant(node.inputs[first + i])]
    for block in node.blocks:
        for i in (i for i in known if block.is_used(block.inputs[i])):
            name = node.inputs[first + i]
            own = block.add_constant(name, graph.constants[name])
            block.replace_uses(block.inputs[i], own)
    return _leave_out_inputs(graph, node, known)


def _share(graph: Graph, node: Node) -> bool:
    """Pass a tensor to the blocks only once."""
    first = operands(node).first
    places: dict[str, int] = {}
    again = []
    for i in _others(node):
        name = node.inputs[first + i]
        if places.setdefault(name, i) == i:
            continue
        again.append(i)
        for block in node.blocks:
            block.replace_uses(block.inputs[i], block.inputs[places[name]])
    return _leave_out_inputs(graph, node, again)


def _drop_inputs(graph: Graph, node: Node) -> bool:
    """Remove inputs that no block reads, except the first of the xs: it gives the step count."""
    layout = operands(node)
    start = layout.carries + 1 if layout.xs else layout.carries
    unused = [
        i
        for i in range(start, len(node.blocks[0].inputs))
        if not any(block.is_used(block.inputs[i]) for block in node.blocks)
    ]
    return _leave_out_inputs(graph, node, unused)


def _drop_outputs(graph: Graph, node: Node) -> bool:
    """Remove unused results, except carries."""
    n = operands(node).carries
    kept = [i for i, name in enumerate(node.outputs) if i < n or graph.is_used(name)]
    if len(kept) == len(node.outputs) or not kept:
        return False
    for block in _bodies(node):
        block.set_outputs([block.outputs[i] for i in kept])
        block.prune(list(block.tensors))
    outputs = [node.outputs[i] for i in kept]
    graph.replace_node(node, node.op, node.inputs, node.attrs, blocks=node.blocks, outputs=outputs)
    return True


def _free_carry(graph: Graph, node: Node) -> bool:
    """Turn a carry that every step passes on unchanged into another operand."""
    n, body = operands(node).carries, node.blocks[-1]
    passed = [
        i
        for i in range(n)
        if body.outputs[i] == body.inputs[i] and not graph.is_output(node.outputs[i])
    ]
    if not passed or (node.op == "WHILE" and len(passed) == n):
        return False
    inputs = list(node.inputs)
    for i in passed:
        inputs.append(node.inputs[i])
        graph.replace_uses(node.outputs[i], node.inputs[i])
        for block in node.blocks:
            spec = block.tensors[block.inputs[i]]
            other = block.add_input(spec.name, spec.dtype, spec.shape)
            block.replace_uses(spec.name, other)
    _leave_out_carries(graph, node, inputs, passed)
    return True


def _drop_carries(graph: Graph, node: Node) -> bool:
    """Remove carries that affect neither a result nor the number of steps."""
    n, body = operands(node).carries, node.blocks[-1]
    places = {name: i for i, name in enumerate(body.inputs[:n])}
    needed = {i for i in range(n) if graph.is_used(node.outputs[i])}
    roots = [body.outputs[i] for i in range(n, len(body.outputs))]
    if node.op == "WHILE":
        condition = node.blocks[0]
        test = inputs_needed(condition, condition.outputs[0])
        needed |= {i for i in range(n) if condition.inputs[i] in test}
    stack = [*roots, *(body.outputs[i] for i in needed)]
    while stack:
        more = {places[name] for name in inputs_needed(body, stack.pop()) if name in places}
        stack += [body.outputs[i] for i in more - needed]
        needed |= more
    dead = [i for i in range(n) if i not in needed]
    if not dead or (node.op == "WHILE" and len(dead) == n) or len(dead) == len(body.outputs):
        return False
    _leave_out_carries(graph, node, list(node.inputs), dead)
    return True


def _leave_out_inputs(graph: Graph, node: Node, places: Collection[int]) -> bool:
    """Remove inputs of the blocks that no block reads and that are not carries."""
    if not places:
        return False
    layout = operands(node)
    for block in node.blocks:
        for name in [block.inputs[i] for i in places]:
            block.remove_tensor(name)
    taken = {layout.first + i for i in places}
    inputs = [name for i, name in enumerate(node.inputs) if i not in taken]
    attrs = dict(node.attrs)
    if layout.xs:
        attrs["xs"] = layout.xs - sum(i < layout.others for i in places)
    graph.replace_node(node, node.op, inputs, attrs, blocks=node.blocks)
    return True


def _leave_out_carries(
    graph: Graph, node: Node, inputs: list[str], places: Collection[int]
) -> None:
    """Remove carries whose results are unused, together with their inputs."""
    layout, body = operands(node), node.blocks[-1]
    body.set_outputs(name for i, name in enumerate(body.outputs) if i not in places)
    body.prune(list(body.tensors))
    for block in node.blocks:
        for name in [block.inputs[i] for i in places]:
            block.remove_tensor(name)
    kept = [name for i, name in enumerate(node.outputs) if i not in places]
    attrs = {**node.attrs, "carries": layout.carries - len(places)}
    inputs = [name for i, name in enumerate(inputs) if i not in places]
    graph.replace_node(node, node.op, inputs, attrs, blocks=node.blocks, outputs=kept)


def _bodies(node: Node) -> list[Graph]:
    """Return the blocks that compute the node's results."""
    return node.blocks if node.op == "IF" else node.blocks[-1:]
