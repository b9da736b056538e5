"""Find the largest size that a program gives each cache: the size of its state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_openinfer.language import graph as g
from taper_openinfer.language.kinds import accesses

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taper_openinfer.language.graph import Access, Node
    from taper_openinfer.link import LinkedProgram

#: The largest size or count of each index of a cache; None if only a run knows it.
Reached = dict[str, list[int | None]]


def find_reached(program: LinkedProgram) -> Reached:
    """Return, for each cache, the largest size or count that its accesses give each index."""
    graph = program.graph
    reached: Reached = {
        name: [0] * len(variable.table_indices)
        for name, variable in graph.vars.items()
        if variable.is_cache
    }
    for block in graph.blocks.values():
        _walk(program, block.nodes, {}, reached)
    return reached


def _walk(
    program: LinkedProgram, nodes: Sequence[Node], loops: Mapping[str, int | None], reached: Reached
) -> None:
    """Record the accesses of nodes; ``loops`` holds the largest value of each loop's variable."""
    sizes = program.model.sizevars
    for node in nodes:
        if isinstance(node.kind, g.Loop):
            loop = node.kind
            start, end = _value(loop.start, sizes), _value(loop.end, sizes)
            if start is not None and end is not None and start >= end:
                continue
            last = None if end is None else end - 1
            _walk(program, loop.body, {**loops, loop.index: last}, reached)
            continue
        reads, writes = accesses(node.kind)
        for access in (*reads, *writes):
            if access.base in reached:
                names = {**loops, **sizes}
                _note(program.graph.vars[access.base], access, names, reached[access.base])


def _note(
    variable: g.Variable,
    access: Access,
    names: Mapping[str, int | None],
    sizes: list[int | None],
) -> None:
    """Record the sizes that one access needs along its indices."""
    for place, index in enumerate(access.indices[: len(sizes)]):
        grows = variable.table_indices[place] in variable.auto_dim
        if isinstance(index, g.Single):
            value = _value(index.value, names)
            end = None if value is None else value + (not grows)
        elif index.end is None or grows:
            continue
        else:
            end = _value(index.end, names)
        known = sizes[place]
        sizes[place] = None if end is None or known is None else max(known, end)


def _value(value: int | str, names: Mapping[str, int | None]) -> int | None:
    return value if isinstance(value, int) else names.get(value)
