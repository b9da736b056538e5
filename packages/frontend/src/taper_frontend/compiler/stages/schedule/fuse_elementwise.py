"""Fuse elementwise nodes into tile programs."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.tile_programs import (
    external_inputs,
    instruction_count,
    is_fusable,
    may_refuse,
    tile_program,
)
from taper_runtime.ops.map import MAX_INPUTS, MAX_INSTRUCTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def fuse_elementwise(graph: Graph) -> bool:
    """Fuse elementwise chains and DAGs with one result into MAP nodes.

    ::

        x -> MUL(., w) -> t -> TANH -> ADD(., t) -> y     x, w -> MAP [MUL, TANH, ADD] -> y

    A value moves into the program only if nothing outside reads it and it is not an output, so
    nothing is computed twice. It is then computed at the size of the result. So a smaller value
    moves only if the tile loop still computes it once: a single element, or one element per row of
    the result. Ops that refuse values move only if they have the size of the result, which may have
    no rows.
    """
    position = {node.output: index for index, node in enumerate(graph.order())}
    changed = False
    for node in reversed(graph.order()):
        if graph.producers.get(node.output) is not node or not is_fusable(graph, node):
            continue
        group = _grow(graph, node, position)
        if len(group) == 1:
            continue
        group.sort(key=lambda member: position[member.output])
        program = tile_program(group)
        graph.replace_node(node, "MAP", program.inputs, program.attrs)
        graph.listener.fired("fuse_elementwise", node.output)
        changed = True
    return changed


def _grow(graph: Graph, root: Node, position: Mapping[str, int]) -> list[Node]:
    """Return ``root`` and the producers that can move into its program.

    Nodes are visited latest first, so all readers of a value are decided before the value itself.
    """
    group = [root]
    members = {root.output}
    instructions = instruction_count(root)
    waiting: list[tuple[int, str]] = []

    def meet(node: Node) -> None:
        for name in node.inputs:
            if name in position:
                heapq.heappush(waiting, (-position[name], name))

    meet(root)
    while waiting:
        _, name = heapq.heappop(waiting)
        node = graph.producers.get(name)
        if node is None or name in members or not is_fusable(graph, node):
            continue
        if graph.is_output(name) or any(c.output not in members for c in graph.consumers(name)):
            continue
        if (
            not _computed_once(graph, node, root.output)
            or instructions + instruction_count(node) > MAX_INSTRUCTIONS
            or len(external_inputs([*group, node])) > MAX_INPUTS
        ):
            continue
        group.append(node)
        members.add(name)
        instructions += instruction_count(node)
        meet(node)
    return group


def _computed_once(graph: Graph, node: Node, result: str) -> bool:
    """Return whether a program with this result computes each element of ``node`` once."""
    value, whole = graph.tensors[node.output], graph.tensors[result]
    if value.type.size == whole.type.size:
        return True
    if may_refuse(node):
        return False
    if value.type.size == 1:
        return True
    return value.shape[-1:] == (1,) and value.type.size * whole.shape[-1] == whole.type.size
