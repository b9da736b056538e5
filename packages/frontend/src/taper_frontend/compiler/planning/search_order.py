"""Search many orders of a graph's nodes at once for one with a small arena: a beam search."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.planning.order import memory_roots
from taper_runtime.base.checks import aligned
from taper_runtime.base.records import NamedTuple
from taper_runtime.ops import REGISTRY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node

#: The most beginnings of orders that are kept for each length. Of long graphs there are fewer, so
#: that no more than this many are extended in all.
_WIDEST, _MOST = 64, 16_000


class _OrderBeginning(NamedTuple):
    """The first nodes of an order; sets of nodes are the bits of a number.

    Attributes
    ----------
    peak, live : int
        The most bytes so far, and those that are needed after the last node.
    done, ready : int
        The nodes that ran, and those that can run next.
    last : int
        The last node.
    before : _OrderBeginning or None
        The beginning without it.
    """

    peak: int
    live: int
    done: int
    ready: int
    last: int = -1
    before: _OrderBeginning | None = None


class _RootMemory(NamedTuple):
    """Memory of a root: its bytes, and bit sets of the nodes that write to it and use it."""

    nbytes: int
    writers: int
    users: int


def search_order(graph: Graph, own: list[Node], scratch: Mapping[str, int]) -> list[Node]:
    """Return the order with the lowest peak among those that a beam search finds.

    All beginnings of one length are extended by each node that can run next. Those with the lowest
    peaks are kept, and one for each set of nodes.

    Parameters
    ----------
    graph : Graph
    own : list of Node
        Some order of all nodes.
    scratch : mapping of str to int
        The bytes of each executed node's own memory, by its output.
    """
    search = _OrderSearch(graph, own, scratch)
    width = max(1, min(_WIDEST, _MOST // max(len(own), 1)))
    beam = [search.start()]
    for _ in own:
        found: dict[int, _OrderBeginning] = {}
        for beginning in beam:
            for longer in search.longer(beginning):
                known = found.get(longer.done)
                if known is None or longer[:2] < known[:2]:
                    found[longer.done] = longer
        beam = sorted(found.values(), key=lambda each: each[:2])[:width]
    at: _OrderBeginning | None = beam[0]
    places = []
    while at is not None and at.before is not None:
        places.append(at.last)
        at = at.before
    return [own[place] for place in reversed(places)]


class _OrderSearch:
    """Search over orders of nodes; sets of nodes are bit sets."""

    def __init__(self, graph: Graph, own: list[Node], scratch: Mapping[str, int]) -> None:
        """Number the nodes, and note which nodes and which memory each one needs."""
        number = {name: i for i, node in enumerate(own) for name in node.outputs}
        self._needs = [0] * len(own)
        self._followers: list[list[int]] = [[] for _ in own]
        for i, node in enumerate(own):
            for j in {number[name] for name in graph.needs(node) if name in number}:
                self._needs[i] |= 1 << j
                self._followers[j].append(i)
        self._scratch = [scratch.get(node.output, 0) for node in own]
        roots = memory_roots(graph, own)
        self._memory = _memory(graph, own, roots)
        self._used = [
            {roots[name] for name in (*node.outputs, *node.reads)} & self._memory.keys()
            for node in own
        ]
        self._over = [
            {
                roots[node.inputs[place]]
                for place in REGISTRY[node.op].inplace
                if place < len(node.inputs) and node.inputs[place] in number
            }
            for node in own
        ]
        self._made = [roots[node.output] for node in own]

    def start(self) -> _OrderBeginning:
        """Return the empty beginning."""
        ready = sum(1 << i for i, needs in enumerate(self._needs) if not needs)
        return _OrderBeginning(0, 0, 0, ready)

    def longer(self, beginning: _OrderBeginning) -> Iterator[_OrderBeginning]:
        """Yield the beginnings that are one node longer.

        If a node neither raises the peak nor leaves more memory in use, no order is better than one
        in which it runs next, so only that beginning is yielded.
        """
        found = []
        ready = beginning.ready
        while ready:
            bit = ready & -ready
            ready ^= bit
            longer = self._after(beginning, bit.bit_length() - 1)
            if longer.peak <= beginning.peak and longer.live <= beginning.live:
                yield longer
                return
            found.append(longer)
        yield from found

    def _after(self, beginning: _OrderBeginning, node: int) -> _OrderBeginning:
        """Return the beginning with one node more, and the memory that it then needs."""
        done = beginning.done | 1 << node
        begun, freed, dead = 0, 0, set()
        for root in self._used[node]:
            memory = self._memory[root]
            if not memory.writers & beginning.done:
                begun += memory.nbytes
            if not memory.users & ~done:
                freed += memory.nbytes
                dead.add(root)
        # over an input that nothing else reads later: both are one piece of memory
        made = self._memory.get(self._made[node])
        shared = (
            made.nbytes
            if made is not None
            and begun
            and any(self._memory[root].nbytes == made.nbytes for root in self._over[node] & dead)
            else 0
        )
        live = beginning.live + begun
        peak = max(beginning.peak, live - shared + self._scratch[node])
        ready = beginning.ready & ~(1 << node)
        for follower in self._followers[node]:
            if not self._needs[follower] & ~done:
                ready |= 1 << follower
        return _OrderBeginning(peak, live - freed, done, ready, node, beginning)


def _memory(graph: Graph, own: list[Node], roots: Mapping[str, str]) -> dict[str, _RootMemory]:
    """Return the memory of each root in the arena; outputs are in the caller's memory instead."""
    writers: dict[str, int] = {}
    users: dict[str, int] = {}
    for i, node in enumerate(own):
        for name in node.outputs:
            writers[roots[name]] = writers.get(roots[name], 0) | 1 << i
        for name in (*node.outputs, *node.reads):
            users[roots[name]] = users.get(roots[name], 0) | 1 << i
    outside = {roots[name] for name in graph.kept if name in roots}
    return {
        root: _RootMemory(aligned(graph.nbytes(root)), bits, users[root])
        for root, bits in writers.items()
        if root in graph.producers and root not in outside
    }
