"""Find the variables that nodes of a program read and write, and the names in their indices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_openinfer.language import graph as g
from taper_openinfer.language.kinds import accesses
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from taper_openinfer.language.graph import Access, Graph, Node


class Touched(NamedTuple):
    """The variables that some nodes use, in the order of their use.

    Attributes
    ----------
    names : tuple of str
        The bases of accesses, and the names in their indices, some of which are no variables.
    written : tuple of str
    """

    names: tuple[str, ...]
    written: tuple[str, ...]


def touched(graph: Graph, nodes: Iterable[Node]) -> Touched:
    """Return what ``nodes`` use, including the loops and the blocks that they run."""
    names: dict[str, None] = {}
    written: dict[str, None] = {}
    for node in all_nodes(graph, nodes):
        reads, writes = accesses(node.kind)
        for access in (*reads, *writes):
            names |= dict.fromkeys([access.base, *index_names(access)])
        written |= dict.fromkeys(access.base for access in writes)
    return Touched(tuple(names), tuple(written))


def all_nodes(graph: Graph, nodes: Iterable[Node]) -> Iterator[Node]:
    """Yield nodes, those of loop bodies, and once those of each block that a branch runs."""
    waiting = [iter(nodes)]
    seen: set[str | None] = set()
    while waiting:
        node = next(waiting[-1], None)
        if node is None:
            waiting.pop()
            continue
        yield node
        if isinstance(node.kind, g.Loop):
            waiting.append(iter(node.kind.body))
        elif isinstance(node.kind, g.Branch):
            new = {node.kind.then, node.kind.otherwise} - seen - {None}
            seen |= new
            waiting += [iter(graph.blocks[name].nodes) for name in sorted(map(str, new))]


def index_names(access: Access) -> list[str]:
    """Return the names in the indices of an access."""
    values = [
        value
        for index in access.indices
        for value in ((index.value,) if isinstance(index, g.Single) else (index.start, index.end))
    ]
    return [value for value in values if isinstance(value, str)]
