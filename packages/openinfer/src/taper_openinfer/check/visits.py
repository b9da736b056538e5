"""Walk through a program: yield each node with its block and the loops around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_openinfer.errors import shown
from taper_openinfer.language.graph import ENTRY, MAX_DEPTH, Branch, Loop, Node, Value
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from taper_openinfer.check.check_context import Context
    from taper_openinfer.check.flow import Linked


class Visit(NamedTuple):
    """A node, with its position in the program.

    Attributes
    ----------
    node : Node
    block : str
    loops : dict of str to range or None
        The values that the variable of each enclosing loop can take; None if only a run knows them.
    depth : int
        The number of enclosing loops, counted through branches.
    """

    node: Node
    block: str
    loops: Mapping[str, range | None]
    depth: int


def walk(context: Context) -> list[Visit]:
    """Return every node: first those of ``entry``, then each block after those that branch to it.

    The loops around a block are those that enclose every branch to it.
    """
    found: list[Visit] = []
    graph = context.graph
    if ENTRY not in graph.blocks:
        context.report(f"expected a block {shown(ENTRY)}, which a step runs, got none")
    around: dict[str, Mapping[str, range | None]] = {}
    depths: dict[str, int] = {}
    for name in _order(context):
        context.check_name(name, graph.blocks[name].place)
        nodes, loops = graph.blocks[name].nodes, around.get(name, {})
        steps = list(_nodes(context, nodes, name, loops, depths.get(name, 0)))
        for step in steps:
            if isinstance(step.node.kind, Branch):
                for target in (step.node.kind.then, step.node.kind.otherwise):
                    if target is not None:
                        around[target] = _common(around.get(target), step.loops)
                        depths[target] = max(depths.get(target, 0), step.depth)
        found += steps
    return found


def _common(
    loops: Mapping[str, range | None] | None, others: Mapping[str, range | None]
) -> Mapping[str, range | None]:
    """Return the loops that are around both of two branches to one block."""
    if loops is None:
        return others
    both = loops.keys() & others.keys()
    return {name: loops[name] if loops[name] == others[name] else None for name in both}


def _order(context: Context) -> list[str]:
    """Order blocks after those that branch to them; report blocks that branch in a circle."""
    blocks = context.graph.blocks
    targets = {name: _targets(context, name) for name in blocks}
    found: list[str] = []
    path: dict[str, None] = {}  # the current path: each block branches to the next
    begun: set[str] = set()
    starts = [iter([*(name for name in blocks if name != ENTRY), *(ENTRY,) * (ENTRY in blocks)])]
    while starts:
        name = next(starts[-1], None)
        if name is None:
            starts.pop()
            if path:
                found.append(path.popitem()[0])
        elif name in path:
            names = [*path]
            circle = " -> ".join([*names[names.index(name) :], name])
            context.report(
                f"expected no block that branches back to itself, got {circle}", blocks[name].place
            )
        elif name not in begun:
            begun.add(name)
            path[name] = None
            starts.append(iter(targets[name]))
    return found[::-1]


def _targets(context: Context, block: str) -> list[str]:
    """Return the existing blocks that a block branches to; those that do not exist are reported."""
    found = []
    waiting = [(node, 0) for node in context.graph.blocks[block].nodes]
    while waiting:
        node, depth = waiting.pop()
        if isinstance(node.kind, Branch):
            found += [name for name in (node.kind.then, node.kind.otherwise) if name is not None]
        elif isinstance(node.kind, Loop) and depth <= MAX_DEPTH:
            waiting += [(inner, depth + 1) for inner in node.kind.body]
    return [name for name in dict.fromkeys(found) if name in context.graph.blocks]


def _nodes(
    context: Context,
    nodes: Sequence[Node],
    block: str,
    loops: Mapping[str, range | None],
    depth: int,
) -> Iterator[Visit]:
    """Yield a visit for each of these nodes; a loop's body follows the loop."""
    for node in nodes:
        yield Visit(node, block, loops, depth)
        if isinstance(node.kind, Loop):
            if depth == MAX_DEPTH:
                context.report(f"expected at most {MAX_DEPTH} nested loops, got more", node.place)
                continue
            inside = {**loops, node.kind.index: loop_range(context, node.kind)}
            yield from _nodes(context, node.kind.body, block, inside, depth + 1)


def loop_range(program: Linked, loop: Loop) -> range | None:
    """Return the values of a loop's variable; None if its bounds are only known in a run."""
    start, end = (_number(program, bound) for bound in (loop.start, loop.end))
    return None if start is None or end is None else range(start, end)


def _number(program: Linked, bound: Value) -> int | None:
    return bound if isinstance(bound, int) else program.model.sizevars.get(bound)
