"""Compute tensors again beside their late readers, so that they need no memory in between.

A *gap* of a piece of memory is a run of steps between two that use it. A tensor that is read after
a gap can be computed again just before that, by copies of its node and of those nodes before it
whose results are gone. They run the same kernels on the same values. Where the late readers read
slices, such as the rows of tiles, each slice can be computed by itself.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

from taper_frontend.compiler.graph.node import ABSENT
from taper_frontend.compiler.planning.exact_parts import ExactParts, KnownParts
from taper_frontend.compiler.stages.schedule.tiles import Tiles
from taper_runtime.base.checks import aligned
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_frontend.compiler.planning.arena import Arena
    from taper_runtime.ops.region import Range

#: The most nodes, one after the other, that are computed again for one reader.
_DEEPEST = 4

#: The most gaps for which changes are weighed: those with the most bytes beyond the limit.
_MOST_GAPS = 16

#: Ranges of axes of a node's output: none for the whole output.
Cuts = tuple[tuple[int, "Range"], ...]


class CopiesBeside(NamedTuple):
    """Copies of nodes that run just before a late reader.

    Attributes
    ----------
    nodes : tuple of (str, Cuts)
        The nodes, in order, by their outputs, and which part of each output is computed.
    reads : dict of str to (str, Cuts)
        For each input of the readers that changes, what they read of the copies.
    readers : tuple of str
        The readers, by their first outputs, in the order in which they run.
    kept : frozenset of str
        The memory that the copies read, and that has to be kept longer for that.
    """

    nodes: tuple[tuple[str, Cuts], ...]
    reads: Mapping[str, tuple[str, Cuts]]
    readers: tuple[str, ...]
    kept: frozenset[str]


class Recomputation(NamedTuple):
    """A change of a scheduled graph that needs less memory.

    Attributes
    ----------
    kind : str
        ``"recompute"``, or ``"later"`` if nothing read the nodes before, so that they only move.
    tensor : str
        The tensor that owned the memory.
    copies : tuple of CopiesBeside
    ns : float
        The estimated time of the copies, without that of nodes which they replace.
    gain : int
        The estimated bytes beyond the limit that it saves, summed over the steps.
    """

    kind: str
    tensor: str
    copies: tuple[CopiesBeside, ...]
    ns: float
    gain: int

    @property
    def key(self) -> tuple[object, ...]:
        """Return a key that no other change has."""
        return tuple((each.nodes, each.readers) for each in self.copies)

    def apply(self, graph: Graph, order: Sequence[Node]) -> list[Node]:
        """Change the graph, and return the order of its nodes afterwards."""
        before: dict[str, list[Node]] = {}
        for beside in self.copies:
            known = len(graph.nodes)
            tiles = Tiles(graph, ".again")
            made = {
                (name, cuts): tiles.compute(graph.producers[name], dict(cuts))
                for name, cuts in beside.nodes
            }
            before[beside.readers[0]] = [*graph.nodes.values()][known:]
            for reader in map(graph.nodes.__getitem__, beside.readers):
                for index, name in enumerate(reader.inputs):
                    if name in beside.reads:
                        graph.rewire_input(reader, index, made[beside.reads[name]])
        for beside in self.copies:
            graph.prune([*beside.reads, *(name for name, _ in reversed(beside.nodes))])
        after: list[Node] = []
        for node in order:
            after += before.get(node.output, ())
            after.append(node)
        return [node for node in after if graph.nodes.get(node.output) is node]


def recomputations(
    graph: Graph,
    order: Sequence[Node],
    arena: Arena,
    limit: int,
    known: KnownParts,
    *,
    parts: bool,
) -> list[Recomputation]:
    """Return changes that save memory where more than ``limit`` bytes are live, cheapest first.

    Parameters
    ----------
    graph : Graph
    order : sequence of Node
        The order in which the nodes run.
    arena : Arena
        The arena of the graph in that order.
    limit : int
        In bytes.
    known : KnownParts
        What was found out about parts of nodes.
    parts : bool
        Whether nodes may be computed again in parts.
    """
    found = [*_Finder(graph, order, arena, limit, known, parts=parts).all()]
    return sorted(found, key=lambda each: (each.ns / each.gain, -each.gain))


class _Finder:
    """Finds recomputations that would save memory in a scheduled graph."""

    def __init__(
        self,
        graph: Graph,
        order: Sequence[Node],
        arena: Arena,
        limit: int,
        known: KnownParts,
        *,
        parts: bool,
    ) -> None:
        """Note the step of each node, and the bytes that are live through each step."""
        self._graph, self._order, self._arena, self._limit = graph, order, arena, limit
        self._parts = parts
        self.exact = ExactParts(graph, arena.strides, known)
        self._at: dict[str, int] = {}  # the step of each node; of others, the last one before
        step = 0
        for node in order:
            step = arena.steps.get(node.output, step)
            self._at[node.output] = step
        self._over = [max(0, live - limit) for live in arena.live]
        # the bytes that are live from the step before to each step
        through = [0] * (len(arena.live) + 2)
        for each in arena.ranges.values():
            through[each.birth + 1] += each.nbytes
            through[each.death + 1] -= each.nbytes
        self._through = [0]
        for change in through[1:]:
            self._through.append(self._through[-1] + change)

    def all(self) -> Iterator[Recomputation]:
        """Yield recomputations at the gaps where the most bytes lie beyond the limit."""
        users: dict[str, dict[str, Node]] = {}
        for node in self._order:
            if not self._is_view(node):
                for name in (*node.reads, *node.outputs):
                    if (root := self._arena.roots.get(name)) is not None:
                        users.setdefault(root, {})[node.output] = node
        gaps = []
        for root, nodes in users.items():
            steps = sorted({self._at[name] for name in nodes})
            nbytes = self._arena.ranges[root].nbytes
            saved, before, after = max(
                (
                    (sum(min(over, nbytes) for over in self._over[a + 1 : b]), a, b)
                    for a, b in pairwise(steps)
                ),
                default=(0, 0, 0),
            )
            if saved:
                gaps.append((saved, root, before, after))
        for _, root, before, after in sorted(gaps, reverse=True)[:_MOST_GAPS]:
            yield from self._at_gap(root, [*users[root].values()], before, after)

    def _at_gap(
        self, root: str, users: Sequence[Node], before: int, after: int
    ) -> Iterator[Recomputation]:
        late = {
            node.output: names
            for node in users
            if self._at[node.output] >= after and (names := self._early_reads(node, root, before))
        }
        if not late:
            return
        seen = set()
        for depth in range(1, _DEEPEST + 1):
            for copies in (self._whole(root, late, depth), self._in_parts(root, late, depth)):
                if copies and (key := tuple(each.nodes for each in copies)) not in seen:
                    seen.add(key)
                    yield from self._weighed(root, copies, before)

    def _early_reads(self, node: Node, root: str, before: int) -> list[str]:
        """Return the tensors in the memory of ``root`` that a node reads, made up to a step."""
        return [
            name
            for name in dict.fromkeys(node.reads)
            if self._arena.roots.get(name) == root and self._at[self._maker(name).output] <= before
        ]

    def _maker(self, name: str) -> Node:
        """Return the node that computes a tensor, through views."""
        node = self._graph.producers[name]
        while self._is_view(node) and node.inputs[0] in self._graph.producers:
            node = self._graph.producers[node.inputs[0]]
        return node

    def _is_view(self, node: Node) -> bool:
        return node.definition.view is not None and node.output not in self._arena.steps

    # -- what is computed again -------------------------------------------------------------------

    def _whole(
        self, root: str, late: Mapping[str, Sequence[str]], depth: int
    ) -> list[CopiesBeside] | None:
        """Return copies of whole nodes before the first late reader; all late readers read them."""
        names = dict.fromkeys(name for each in late.values() for name in each)
        chain = _Chain(self, root, self._at[next(iter(late))])
        if not all(chain.add(name, (), depth) for name in names):
            return None
        return [chain.beside({name: (name, ()) for name in names}, late)]

    def _in_parts(
        self, root: str, late: Mapping[str, Sequence[str]], depth: int
    ) -> list[CopiesBeside] | None:
        """Return copies before each late reader, which compute only the slices that it reads."""
        if not self._parts:
            return None
        found = []
        for reader, names in late.items():
            chain = _Chain(self, root, self._at[reader])
            sources = {name: self._sliced(name) for name in names}
            if not all(cuts and chain.add(name, cuts, depth) for name, cuts in sources.values()):
                return None
            found.append(chain.beside(sources, [reader]))
        return found

    def _sliced(self, name: str) -> tuple[str, Cuts]:
        """Return the tensor of which ``name`` is a slice, and the slice's ranges."""
        cuts: dict[int, Range] = {}
        node = self._graph.producers[name]
        while node.op == "SLICE" and self._is_view(node) and self._graph.is_static(node):
            attrs = node.complete_attrs()
            axis, start, stop = attrs["axis"], attrs["start"], attrs["stop"]
            if (
                axis in cuts
                or attrs.get("step", 1) != 1
                or node.inputs[0] not in (self._graph.producers)
            ):
                break
            cuts[axis] = (start, stop)
            name = node.inputs[0]
            node = self._graph.producers[name]
        return name, tuple(sorted(cuts.items()))

    # -- what it saves ----------------------------------------------------------------------------

    def _weighed(
        self, root: str, copies: Sequence[CopiesBeside], before: int
    ) -> Iterator[Recomputation]:
        """Yield the recomputation with the bytes that it saves, if it saves any."""
        arena, replaced = self._arena, self._replaced(copies)
        change: dict[int, int] = {}
        first = self._at[copies[0].readers[0]]
        start = before + 1
        if len(replaced) == len({name for each in copies for name, _ in each.nodes}):
            start = arena.ranges[root].birth
        whole = len(copies) == 1 and not any(cuts for _, cuts in copies[0].nodes)
        stop = first if whole else arena.ranges[root].death + 1
        for step in range(start, stop):
            change[step] = -arena.ranges[root].nbytes
        ends: dict[str, int] = {}
        beyond, ns = 0, 0.0
        for beside in copies:
            at = self._at[beside.readers[0]]
            for each in beside.kept:
                ends[each] = max(at, ends.get(each, 0))
            beyond += self._beyond(root, beside, at, change)
            ns += sum(self._ns(*each) for each in beside.nodes if each[0] not in replaced)
        for each, end in ends.items():
            for step in range(arena.ranges[each].death + 1, end + 1):
                change[step] = change.get(step, 0) + arena.ranges[each].nbytes
        gain = -beyond
        for step, nbytes in change.items():
            gain += self._over[step] - max(0, arena.live[step] + nbytes - self._limit)
        if gain > 0:
            yield Recomputation("recompute" if ns else "later", root, tuple(copies), ns, gain)

    def _beyond(self, root: str, beside: CopiesBeside, at: int, change: dict[int, int]) -> int:
        """Return the bytes beyond the limit while copies run; add their results to ``change``."""
        arena = self._arena
        around = self._through[at] + sum(arena.ranges[each].nbytes for each in beside.kept)
        lives = arena.ranges[root]
        if lives.birth < at <= lives.death:
            around -= lives.nbytes
        last = {
            each: index
            for index, (name, _) in enumerate(beside.nodes)
            for each in self._graph.producers[name].reads
        }
        made: dict[str, int] = {}
        beyond = 0
        for index, (name, cuts) in enumerate(beside.nodes):
            if name not in arena.steps:
                continue
            made[name] = self._nbytes(name, cuts)
            part = self.exact.part(self._graph.producers[name], dict(cuts)) if cuts else None
            scratch = part.scratch if part else arena.scratch[arena.steps[name]]
            beyond += max(0, around + sum(made.values()) + scratch - self._limit)
            made = {n: b for n, b in made.items() if last.get(n, len(beside.nodes)) > index}
        if any(cuts for _, cuts in beside.nodes):
            change[at] = change.get(at, 0) + sum(made.values())
        return beyond

    def _replaced(self, copies: Sequence[CopiesBeside]) -> set[str]:
        """Return the copied nodes whose originals have no reader left."""
        late = {reader for beside in copies for reader in beside.readers}
        replaced: set[str] = set()
        for name in reversed(dict.fromkeys(name for each in copies for name, _ in each.nodes)):
            if self._readers(name) <= late | replaced:
                replaced.add(name)
        return replaced

    def _readers(self, name: str) -> set[str]:
        """Return the nodes that read a tensor or a slice of it."""
        found: set[str] = set()
        for node in self._graph.consumers(name):
            if node.op == "SLICE" and self._is_view(node):
                found |= self._readers(node.output)
            else:
                found.add(node.output)
        return found

    def _share(self, name: str, cuts: Cuts) -> float:
        if not cuts:
            return 1.0
        shape = self._graph.tensors[name].shape
        return prod((stop - start) / shape[axis] for axis, (start, stop) in cuts)

    def _nbytes(self, name: str, cuts: Cuts) -> int:
        return aligned(int(self._share(name, cuts) * self._graph.nbytes(name)))

    def _ns(self, name: str, cuts: Cuts) -> float:
        if name not in self._arena.steps:
            return 0.0
        return self.exact.ns(self._graph.producers[name], self._share(name, cuts))


class _Chain:
    """The nodes to copy before a step, and the memory that is kept for them."""

    def __init__(self, finder: _Finder, root: str, after: int) -> None:
        self._finder, self._root, self._after = finder, root, after
        self._nodes: dict[tuple[str, Cuts], None] = {}
        self._kept: set[str] = set()

    def beside(
        self, reads: Mapping[str, tuple[str, Cuts]], readers: Sequence[str] | Mapping[str, object]
    ) -> CopiesBeside:
        """Return the copies, with the readers that get their results."""
        return CopiesBeside(tuple(self._nodes), reads, tuple(readers), frozenset(self._kept))

    def add(self, name: str, cuts: Cuts, left: int) -> bool:
        """Add the nodes that compute a part of a tensor; return whether they can be copied.

        Nodes that are ``left`` or more steps up the chain are not copied; their results are kept.
        """
        graph, finder = self._finder._graph, self._finder
        if (name, cuts) in self._nodes:
            return True
        node = graph.producers[name]
        if node.blocks or len(node.outputs) > 1 or graph.is_output(name):
            return False
        if not cuts:
            inputs: list[Cuts] = [()] * len(node.inputs)
        else:
            exact = finder.exact.part(node, dict(cuts)) if graph.is_static(node) else None
            if exact is None:
                return False
            inputs = [
                self._cuts(each, ranges)
                for each, ranges in zip(node.inputs, exact.part.inputs, strict=True)
            ]
        is_view = finder._is_view(node)
        left -= not is_view
        for each, its in zip(node.inputs, inputs, strict=True):
            if each == ABSENT or each not in graph.producers:
                if each != ABSENT and graph.tensors[each].role == "state":
                    return False
                continue
            root = finder._arena.roots.get(each)
            if root is None or (
                root != self._root and finder._arena.ranges[root].death >= self._after
            ):
                continue
            if left > 0 or is_view or root == self._root:
                if left <= -_DEEPEST or not self.add(each, its, left):
                    return False
            else:
                self._kept.add(root)
        self._nodes[name, cuts] = None
        return True

    def _cuts(self, name: str, ranges: Sequence[Range]) -> Cuts:
        """Return the ranges of the axes that are not whole."""
        if name == ABSENT:
            return ()
        shape = self._finder._graph.tensors[name].shape
        return tuple((axis, each) for axis, each in enumerate(ranges) if each != (0, shape[axis]))
