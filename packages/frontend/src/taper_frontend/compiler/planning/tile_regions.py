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
from typing import TYPE_CHECKING

from taper_frontend.compiler.planning.exact_parts import ExactParts
from taper_frontend.compiler.planning.region_parts import PartNeeds
from taper_frontend.compiler.stages.schedule.tiles import Tiles, rows_together
from taper_runtime.base.checks import aligned
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_frontend.compiler.planning.arena import Arena
    from taper_frontend.compiler.planning.exact_parts import KnownParts
    from taper_frontend.compiler.planning.region_parts import NodePart

#: The most nodes of a region, the parts that are tried, and the most regions that are weighed.
_LONGEST, _COUNTS, _MOST_WEIGHED = 48, (2, 3, 4, 6, 7, 8, 14, 16), 1024


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
        """Add nodes that compute a part of a tensor, behind what is held; return their outputs."""
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
        self._needs: dict[tuple[int, int, int], PartNeeds] = {}
        self._owners = {name: self._owner(name) for node in order for name in node.reads}

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
        parts: list[PartNeeds] = []
        early: set[str] = set()
        for part in range(count):
            if (stop, count, part) not in self._needs:
                first, end = (step * (rows * each // count) for each in (part, part + 1))
                wanted = [(0, each) for each in shape]
                wanted[axis] = first, min(size, end)
                self._needs[stop, count, part] = PartNeeds(
                    graph,
                    self._order,
                    self._arena,
                    self._exact,
                    stop,
                    tuple(wanted),
                    parts[-1] if parts else None,
                )
            needs = self._needs[stop, count, part]
            if not needs.reach(start):
                return None
            parts.append(needs)
            early.update(name for name in needs.early if self._place.get(name, -1) < start)
        names = tuple([node.output for node in nodes])
        executed = [name for name in names if name in self._arena.steps]
        before = sum(self._exact.ns(graph.nodes[name]) for name in executed)
        figures = (
            each.figures[name] for each in parts for name in executed if name in each.figures
        )
        after = sum(each.ns for each in figures)
        dying = self._dying(nodes)
        nbytes = self._outside(start, stop) + max(
            self._bytes(nodes, dying, each, later)
            for each, later in zip(parts, (*parts[1:], None), strict=True)
        )
        if early & self._overwritten(nodes):
            nbytes += aligned(graph.nbytes(last.output))
        views = frozenset(names).difference(executed)
        made = tuple([each.parts for each in parts])
        return TiledRegion(names, views, made, nbytes, max(0.0, after - before))

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

    def _dying(self, nodes: Sequence[Node]) -> list[list[str]]:
        """Return for each of some nodes the ones whose results it is the last to read."""
        last = {node.output: place for place, node in enumerate(nodes)}
        last.update(
            (self._owners[name], place) for place, node in enumerate(nodes) for name in node.reads
        )
        dying: list[list[str]] = [[] for _ in nodes]
        for name, place in last.items():
            dying[place].append(name)
        return dying

    def _bytes(
        self,
        nodes: Sequence[Node],
        dying: Sequence[Sequence[str]],
        part: PartNeeds,
        later: PartNeeds | None,
    ) -> int:
        """Return the peak of a region's live parts, in bytes, scratch included.

        What is kept of the part before lies in memory until its node, and what the next part needs
        of this one from there on.
        """
        roots = self._arena.roots
        root, most = roots.get(nodes[-1].output), 0
        live: dict[str, int] = {}
        stays: set[str] = set()
        own, figures = part.parts, part.figures
        used = sum(figures[node.output].kept for node in nodes if node.output in figures)
        for node, ending in zip(nodes, dying, strict=True):
            name = node.output
            if (known := figures.get(name)) is not None:
                if roots.get(name) != root or known.kept:  # else it lies where the last one does
                    over = None if known.kept else self._computed_over(node, live, known.nbytes)
                    live[name] = live.pop(over) if over else known.nbytes
                    used += 0 if over else known.nbytes
                most = max(most, used + known.scratch)
                used -= known.kept
                to = None if later is None else later.parts.get(name)
                if later is not None and to is not None:
                    if to.is_all_of(own[name]):
                        stays.add(name)
                    else:
                        used += later.figures[name].kept
            for each in ending:
                used -= 0 if each in stays else live.pop(each, 0)
        return most

    def _computed_over(self, node: Node, live: Mapping[str, int], nbytes: int) -> str | None:
        """Return the tensor of ``live`` in whose memory a node computes, if there is one."""
        roots = self._arena.roots
        root = roots.get(node.output)
        owners = (self._owners[name] for name in node.reads)
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
