"""Compute regions of a scheduled graph in parts, so that tensors inside need little memory.

A *region* is a run of nodes, in the order in which they run, of which only the last one is read
afterwards. It may have branches, such as the blocks of a residual network. For each part of the
last output, every node computes the rows that its readers in the region need and that the part
before has not computed. Rows that both need, such as those around a window, are copied from one
part to the next, so nothing is computed twice; only the weights are read again. The passes that
split do so where it is faster; this does it where memory is short.
"""

from __future__ import annotations

from itertools import islice
from math import prod
from operator import lt
from typing import TYPE_CHECKING

from taper_frontend.compiler.graph.node import ABSENT
from taper_frontend.compiler.planning.exact_parts import ExactParts, KnownParts
from taper_frontend.compiler.stages.schedule.tiles import Tiles, rows_together
from taper_runtime.base.checks import aligned
from taper_runtime.base.records import NamedTuple
from taper_runtime.machine.cost import shared_ns

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_frontend.compiler.planning.arena import Arena
    from taper_runtime.ops.region import Range

#: The most nodes of a region, the parts that are tried, and the most regions that are weighed.
_LONGEST, _COUNTS, _MOST_WEIGHED = 48, (2, 3, 4, 6, 7, 8, 14, 16), 128

#: The range of each axis of a node's output that a part needs.
_Ranges = tuple["Range", ...]


class NodePart(NamedTuple):
    """The part of a node's output that a part of a region has in memory.

    Attributes
    ----------
    ranges : tuple of Range
        The range of each axis.
    axis : int
        The axis along which the part before has the first ``kept`` elements of it.
    kept : int
    """

    ranges: _Ranges
    axis: int = 0
    kept: int = 0

    @property
    def known(self) -> _Ranges:
        """Return the ranges that the part before has computed."""
        start = self.ranges[self.axis][0]
        return self._along(start, start + self.kept)

    @property
    def computed(self) -> _Ranges | None:
        """Return the ranges that this part computes; None if it computes nothing."""
        start, stop = self.ranges[self.axis]
        return self._along(start + self.kept, stop) if start + self.kept < stop else None

    def is_all_of(self, before: NodePart) -> bool:
        """Return whether this is what the part before has, so that no copy is needed."""
        return bool(self.kept) and self.ranges == before.ranges

    def _along(self, start: int, stop: int) -> _Ranges:
        return (*self.ranges[: self.axis], (start, stop), *self.ranges[self.axis + 1 :])

    def after(self, before: NodePart | None) -> NodePart:
        """Return this part, without what the part before has computed, if they overlap."""
        if before is None:
            return self
        pairs = [*zip(self.ranges, before.ranges, strict=True)]
        axes = [axis for axis, (now, then) in enumerate(pairs) if now != then]
        if len(axes) > 1:
            return self
        axis = axes[0] if axes else 0
        (start, stop), (first, end) = pairs[axis]
        if not first <= start < end:
            return self
        longer = self._replace(axis=axis)._along(start, max(stop, end))
        return NodePart(longer, axis, end - start)


class TiledRegion(NamedTuple):
    """A region and how it is computed.

    Attributes
    ----------
    names : tuple of str
        The nodes in order, by their outputs.
    views : frozenset of str
        Those of them that need no memory.
    parts : tuple of dict of str to NodePart
        For each part, what it has of every node's output.
    nbytes : int
        The estimated bytes at the step with the most of them.
    ns : float
        How much longer it takes, estimated.
    """

    names: tuple[str, ...]
    views: frozenset[str]
    parts: tuple[Mapping[str, NodePart], ...]
    nbytes: int
    ns: float

    def apply(self, graph: Graph, order: Sequence[Node]) -> list[Node]:
        """Change the graph, and return the order of its nodes afterwards."""
        known = len(graph.nodes)
        name = self.names[-1]
        shape = graph.tensors[name].shape
        results, axis = [], 0
        held: dict[str, str] = {}
        computed: set[str] = set()
        for part, later in zip(self.parts, (*self.parts[1:], {}), strict=True):
            tiles = Tiles(graph, ".part")
            for each in self.names:
                if each in part:
                    made = self._compute(graph, tiles, each, part[each], held)
                    computed.update([] if each in self.views else made)
                    if each in later:
                        self._hold(graph, tiles, each, part[each], later[each], held)
            ranges = part[name].ranges
            results.append(tiles.take(name, ranges))
            axis = next(i for i, each in enumerate(ranges) if each != (0, shape[i]))
        added = _slices_first([*graph.nodes.values()][known:], computed)
        graph.replace_node(graph.nodes[name], "CAT", results, {"axis": axis})
        after: list[Node] = []
        for node in order:
            after += [*added, node] if node.output == name else [node]
        return [node for node in after if graph.nodes.get(node.output) is node]

    @staticmethod
    def _compute(
        graph: Graph, tiles: Tiles, name: str, part: NodePart, held: Mapping[str, str]
    ) -> list[str]:
        """Add the nodes that compute a part of a tensor, behind what is held; return their outputs."""
        node, computed = graph.nodes[name], part.computed
        if not part.kept:
            return [tiles.compute(node, dict(enumerate(part.ranges)))]
        if computed is None:
            tiles.has(name, part.ranges, held[name])
            return []
        copy = graph.add_node("COPY", [held[name]], name=f"{name}.kept")
        new = tiles.compute(node, dict(enumerate(computed)))
        both = graph.add_node("CAT", [copy, new], {"axis": part.axis}, name=f"{name}.rows")
        tiles.has(name, part.ranges, both)
        return [copy, new, both]

    @staticmethod
    def _hold(
        graph: Graph, tiles: Tiles, name: str, part: NodePart, later: NodePart, held: dict[str, str]
    ) -> None:
        """Copy what the next part needs of a part, so that the rest need not be kept for it."""
        if later.is_all_of(part):
            held[name] = tiles.take(name, part.ranges)
        elif later.kept:
            held[name] = graph.add_node(
                "COPY", [tiles.take(name, later.known)], name=f"{name}.held"
            )


def _slices_first(nodes: Sequence[Node], computed: Collection[str]) -> list[Node]:
    """Return the nodes with the views of what others made before the rest.

    Parts may be computed in the memory of a tensor of which all views are known before. Those in
    ``computed`` are no views, whatever their ops are.
    """
    views: list[Node] = []
    rest: dict[str, Node] = {}
    for node in nodes:
        is_view = node.definition.view is not None and node.output not in computed
        if is_view and node.inputs[0] not in rest:
            views.append(node)
        else:
            rest[node.output] = node
    return [*views, *rest.values()]


class _PartNeeds:
    """What a part of a node's output needs of the nodes before, from that node backwards.

    Attributes
    ----------
    parts : dict of str to NodePart
    early : set of str
        The tensors that are read before the place of the part.
    """

    def __init__(
        self,
        graph: Graph,
        order: Sequence[Node],
        exact: ExactParts,
        last: int,
        wanted: _Ranges,
        before: _PartNeeds | None,
    ) -> None:
        self.parts: dict[str, NodePart] = {}
        self.early: set[str] = set()
        self._needed: dict[str, _Ranges] = {order[last].output: wanted}
        self._graph, self._order, self._exact = graph, order, exact
        self._wanted, self._left, self._before = wanted, last + 1, before
        self._impossible = -1  # the place of the last node that cannot compute its ranges

    def reach(self, start: int) -> bool:
        """Find the parts from the node at ``start`` on; return whether all can be computed.

        Those of the part before are known.
        """
        while self._impossible < 0 and self._left > start:
            self._left -= 1
            node = self._order[self._left]
            if node.output in self._needed and not self._add(node):
                self._impossible = self._left
        return self._impossible < start

    def _add(self, node: Node) -> bool:
        """Add the ranges that a node reads for its own; return whether it can compute these."""
        graph = self._graph
        shape, needed = graph.tensors[node.output].shape, self._needed[node.output]
        step = rows_together(graph, node)
        if step > 1:  # rows in other groups would have other bits
            first, (start, end), *rest = needed
            needed = first, (start // step * step, min(shape[1], -(-end // step) * step)), *rest
        own = NodePart(needed)
        if self._before is not None and node.definition.view is None:
            own = own.after(self._before.parts.get(node.output))
        self.parts[node.output] = own
        if (computed := own.computed) is None:
            return True
        cuts = _cuts(computed, shape)
        exact = self._exact.part(node, cuts) if cuts else None
        if cuts and exact is None:
            return False
        for place, name in enumerate(node.inputs):
            if name == ABSENT or graph.is_constant(name):
                continue
            read: _Ranges = (
                tuple([(0, size) for size in graph.tensors[name].shape])
                if exact is None
                else exact.part.inputs[place]
            )
            begins = (begin for begin, _ in read)
            if len(read) != len(self._wanted) or any(map(lt, begins, (a for a, _ in self._wanted))):
                self.early.add(name)
            known = self._needed.get(name)
            if known is not None and known != read:
                read = tuple(
                    [(min(a, c), max(b, d)) for (a, b), (c, d) in zip(known, read, strict=True)]
                )
            self._needed[name] = read
        return True


def _cuts(ranges: _Ranges, shape: Sequence[int]) -> dict[int, Range]:
    """Return the ranges that are not whole axes."""
    return {axis: each for axis, each in enumerate(ranges) if each != (0, shape[axis])}


class RegionFinder:
    """Finds regions of a scheduled graph that need less memory if they are computed in parts.

    What was found out about a region is kept for further limits.

    Parameters
    ----------
    graph : Graph
    order : sequence of Node
        The order in which the nodes run.
    arena : Arena
        The arena of the graph in that order.
    known : KnownParts
        What was found out about parts of nodes.
    """

    def __init__(
        self, graph: Graph, order: Sequence[Node], arena: Arena, known: KnownParts
    ) -> None:
        self._graph, self._order, self._arena = graph, order, arena
        self._place = {node.output: place for place, node in enumerate(order)}
        self._last = [self._last_reader(node) for node in order]
        self._may_be_inside = [
            not node.blocks and len(node.outputs) == 1 and graph.is_static(node) for node in order
        ]
        self._exact = ExactParts(graph, arena.strides, known)
        self._weighings: dict[tuple[int, int, int], TiledRegion | None] = {}
        self._bytes_outside: dict[tuple[int, int], int] = {}
        self._needs: dict[tuple[int, int, int], _PartNeeds] = {}

    def _last_reader(self, node: Node) -> int:
        """Return the place of a node's last reader; for a kept result, the number of nodes."""
        graph, last = self._graph, -1
        for name in node.outputs:
            if graph.is_output(name) or name in graph.kept:
                return len(self._order)
            last = max([last, *(self._place[each.output] for each in graph.consumers(name))])
        return last

    def best(self, limit: int) -> list[TiledRegion]:
        """Return the regions with the lowest peak and, among equal ones, the least time.

        This is a shortest path over the places in the order: an edge is one step as it is, or a
        region over all its steps. Steps that no region makes smaller stay as they are.

        Parameters
        ----------
        limit : int
            In bytes. Few steps are to need more.

        Returns
        -------
        list of TiledRegion
            They have no node in common.
        """
        ends: dict[int, list[tuple[int, TiledRegion]]] = {}
        left = _MOST_WEIGHED
        for start, stop in self._windows(limit):
            if not left:
                break
            if self._outside(start, stop) < limit:
                left -= 1
                for region in self._ways(start, stop, limit):
                    ends.setdefault(stop, []).append((start, region))
        steps, live = self._arena.steps, self._arena.live
        best: list[tuple[int, float, list[TiledRegion]]] = [(0, 0.0, [])]
        for place, node in enumerate(self._order):
            beyond, ns, regions = best[place]
            own = live[steps[node.output]] - limit if node.output in steps else 0
            options = [(max(beyond, own, 0), ns, regions)]
            for start, region in ends.get(place, ()):
                beyond, ns, regions = best[start]
                needed = max(beyond, region.nbytes - limit)
                options.append((needed, ns + region.ns, [*regions, region]))
            best.append(min(options, key=lambda option: option[:2]))
        return best[-1][2]

    def _windows(self, limit: int) -> list[tuple[int, int]]:
        """Return the first and last places of regions that may help, short ones first."""
        found = []
        live, steps = self._arena.live, self._arena.steps
        executed = [node.output in steps for node in self._order]
        over = [
            own and live[steps[node.output]] > limit
            for own, node in zip(executed, self._order, strict=True)
        ]
        for start, begins in enumerate(executed):
            if not begins:
                continue
            needed, helps = -1, False
            for stop in range(start, min(len(self._order), start + _LONGEST)):
                if not self._may_be_inside[stop]:
                    break
                helps = helps or over[stop]
                if helps and executed[stop] and needed <= stop and stop > start:
                    found.append((start, stop))
                needed = max(needed, self._last[stop])
        return sorted(found, key=lambda each: each[1] - each[0])

    def _ways(self, start: int, stop: int, limit: int) -> Iterator[TiledRegion]:
        """Yield a region in more and more parts, until its parts fit in the limit.

        If they never do, the last one has the most parts that are possible.
        """
        outside = self._outside(start, stop)
        needed, skipped = 0, list[int]()
        for count in _COUNTS:
            if count < needed:
                skipped.append(count)
                continue
            region = self._in_parts(start, stop, count)
            if region is None:
                break
            # so many parts fit if none has anything in common with the one before
            needed = -(-count * (region.nbytes - outside) // (limit - outside))
            skipped.clear()
            yield region
            if region.nbytes <= limit:
                return
        found = (self._in_parts(start, stop, count) for count in reversed(skipped))
        yield from islice((region for region in found if region is not None), 1)

    def _in_parts(self, start: int, stop: int, count: int) -> TiledRegion | None:
        """Return what :meth:`_weighed` returns, and keep it."""
        key = start, stop, count
        if key not in self._weighings:
            self._weighings[key] = self._weighed(start, stop, count)
        return self._weighings[key]

    def _outside(self, start: int, stop: int) -> int:
        """Return the most bytes that are live during a region and come from outside it."""
        if (start, stop) not in self._bytes_outside:
            self._bytes_outside[start, stop] = self._find_outside(start, stop)
        return self._bytes_outside[start, stop]

    def _find_outside(self, start: int, stop: int) -> int:
        """Return what :meth:`_outside` returns, which keeps it."""
        arena = self._arena
        steps = [
            arena.steps[node.output]
            for node in self._order[start : stop + 1]
            if node.output in arena.steps
        ]
        first, final = min(steps), max(steps)
        last = arena.roots.get(self._order[stop].output)
        total = 0
        for root, lives in arena.ranges.items():
            if root != last and lives.birth >= first and lives.death <= final:
                continue
            if root == last or (lives.birth <= final and lives.death >= first):
                total += lives.nbytes
        return total

    def _weighed(self, start: int, stop: int, count: int) -> TiledRegion | None:
        """Return a region in ``count`` parts, with its bytes and time; None if impossible."""
        graph, nodes = self._graph, self._order[start : stop + 1]
        last = nodes[-1]
        shape = graph.tensors[last.output].shape
        axis = next((i for i, size in enumerate(shape) if size != 1), None)
        if axis is None:
            return None
        size, step = shape[axis], rows_together(graph, last) if axis == 1 else 1
        rows = -(-size // step)
        if rows < 2 * count:
            return None
        parts: list[Mapping[str, NodePart]] = []
        early: set[str] = set()
        for part in range(count):
            if (stop, count, part) not in self._needs:
                first, end = (step * (rows * each // count) for each in (part, part + 1))
                wanted = [(0, each) for each in shape]
                wanted[axis] = first, min(size, end)
                before = self._needs.get((stop, count, part - 1))
                self._needs[stop, count, part] = _PartNeeds(
                    graph, self._order, self._exact, stop, tuple(wanted), before
                )
            needs = self._needs[stop, count, part]
            if not needs.reach(start):
                return None
            parts.append(needs.parts)
            early.update(name for name in needs.early if self._place.get(name, -1) < start)
        before = sum(self._ns(node, None) for node in nodes)
        after, nbytes = 0.0, 0
        for index, own in enumerate(parts):
            after += sum(self._part_ns(node, own.get(node.output)) for node in nodes)
            later = parts[index + 1] if index + 1 < count else {}
            nbytes = max(nbytes, self._bytes(nodes, own, later))
        nbytes += self._outside(start, stop)
        if early & self._overwritten(nodes):
            nbytes += aligned(graph.nbytes(last.output))
        names = tuple([node.output for node in nodes])
        views = frozenset(names) - self._arena.steps.keys()
        return TiledRegion(names, views, tuple(parts), nbytes, max(0.0, after - before))

    def _overwritten(self, nodes: Sequence[Node]) -> set[str]:
        """Return the tensors from outside of a region in whose memory its last node computes."""
        roots, inside = self._arena.roots, {node.output for node in nodes}
        root = roots.get(nodes[-1].output)
        return {
            name
            for node in nodes
            for name in node.reads
            if name not in inside and name in roots and roots[name] == root
        }

    def _share(self, node: Node, ranges: _Ranges) -> float:
        shape = self._graph.tensors[node.output].shape
        return prod(
            (stop - start) / size for (start, stop), size in zip(ranges, shape, strict=True)
        )

    def _ns(self, node: Node, ranges: _Ranges | None) -> float:
        if node.output not in self._arena.steps:
            return 0.0
        share = 1.0 if ranges is None else self._share(node, ranges)
        return self._exact.ns(node, share) if share else 0.0

    def _part_ns(self, node: Node, part: NodePart | None) -> float:
        """Return the time of a part, with that of copying what is kept out of and into memory."""
        if part is None:
            return 0.0
        copied = 4 * self._part_bytes(node, part.known) if part.kept else 0
        return shared_ns(copied) + (self._ns(node, part.computed) if part.computed else 0.0)

    def _part_bytes(self, node: Node, ranges: _Ranges) -> int:
        return aligned(int(self._share(node, ranges) * self._graph.nbytes(node.output)))

    def _scratch(self, node: Node, computed: _Ranges | None) -> int:
        """Return the bytes of the scratch memory of a part."""
        if computed is None:
            return 0
        cuts = _cuts(computed, self._graph.tensors[node.output].shape)
        part = self._exact.part(node, cuts) if cuts else None
        return part.scratch if part else self._arena.scratch[self._arena.steps[node.output]]

    def _bytes(
        self,
        nodes: Sequence[Node],
        part: Mapping[str, NodePart],
        later: Mapping[str, NodePart],
    ) -> int:
        """Return the peak of a region's live parts, in bytes, scratch included.

        What is kept of the part before lies in memory until its node, and what the next part needs
        of this one from there on.
        """
        arena, graph = self._arena, self._graph
        last: dict[str, int] = {}
        for place, node in enumerate(nodes):
            for name in node.reads:
                last[self._owner(name)] = place
        live: dict[str, int] = {}
        kept = {
            node.output: self._part_bytes(node, part[node.output].known)
            for node in nodes
            if node.output in part and part[node.output].kept
        }
        root, most = arena.roots.get(nodes[-1].output), 0
        for place, node in enumerate(nodes):
            if node.output not in part or node.output not in arena.steps:
                continue
            own, to = part[node.output], later.get(node.output)
            nbytes = self._part_bytes(node, own.ranges)
            if arena.roots.get(node.output) != root or own.kept:  # else it lies with the last one
                over = None if own.kept else self._computed_over(node, live, nbytes)
                live[node.output] = live.pop(over) if over else nbytes
            scratch = self._scratch(node, own.computed)
            most = max(most, sum(live.values()) + sum(kept.values()) + scratch)
            kept.pop(node.output, None)
            if to is not None and to.is_all_of(own):
                last[node.output] = len(nodes)
            elif to is not None and to.kept:
                kept[node.output] = self._part_bytes(node, to.known)
            live = {name: n for name, n in live.items() if last.get(name, place) > place}
        return most

    def _computed_over(self, node: Node, live: Mapping[str, int], nbytes: int) -> str | None:
        """Return the tensor of ``live`` in whose memory a node computes, if there is one."""
        roots = self._arena.roots
        root = roots.get(node.output)
        owners = (self._owner(name) for name in node.reads)
        return next(
            (each for each in owners if live.get(each) == nbytes and roots.get(each) == root), None
        )

    def _owner(self, name: str) -> str:
        """Return the node whose result a tensor is or views."""
        node = self._graph.producers.get(name)
        while node is not None and node.output not in self._arena.steps and node.reads:
            name = node.inputs[0]
            node = self._graph.producers.get(name)
        return name
