"""Find what parts of a region of nodes compute, and what they copy from one part to the next."""

from __future__ import annotations

from math import prod
from operator import lt
from typing import TYPE_CHECKING

from taper_frontend.compiler.graph.node import ABSENT
from taper_frontend.compiler.stages.schedule.tiles import rows_together
from taper_runtime.base.checks import aligned
from taper_runtime.base.records import NamedTuple
from taper_runtime.machine.cost import shared_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_frontend.compiler.planning.arena import Arena
    from taper_frontend.compiler.planning.exact_parts import ExactPart, ExactParts
    from taper_runtime.ops.region import Range

#: The range of each axis of a node's output.
Ranges = tuple["Range", ...]


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

    ranges: Ranges
    axis: int = 0
    kept: int = 0

    @property
    def known(self) -> Ranges:
        """Return the ranges that the part before has computed."""
        start = self.ranges[self.axis][0]
        return self._along(start, start + self.kept)

    @property
    def computed(self) -> Ranges | None:
        """Return the ranges that this part computes; None if it computes nothing."""
        start, stop = self.ranges[self.axis]
        return self._along(start + self.kept, stop) if start + self.kept < stop else None

    def is_all_of(self, before: NodePart) -> bool:
        """Return whether this is what the part before has, so that no copy is needed."""
        return bool(self.kept) and self.ranges == before.ranges

    def _along(self, start: int, stop: int) -> Ranges:
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


class PartFigures(NamedTuple):
    """The bytes and the time of a part of a node.

    Attributes
    ----------
    nbytes, kept, scratch : int
        The bytes of the part, of what the part before has of it, and of the kernel's scratch.
    ns : float
        The estimated time, in nanoseconds, with that of copies.
    """

    nbytes: int
    kept: int
    scratch: int
    ns: float


class PartNeeds:
    """The parts of nodes that a part of the last of them needs, from that node backwards.

    Attributes
    ----------
    parts : dict of str to NodePart
        What is computed, by the nodes' outputs.
    figures : dict of str to PartFigures
        Of those that need memory.
    early : set of str
        The tensors that are read before the place of the part.
    """

    def __init__(
        self,
        graph: Graph,
        order: Sequence[Node],
        arena: Arena,
        exact: ExactParts,
        last: int,
        wanted: Ranges,
        before: PartNeeds | None,
    ) -> None:
        self.parts: dict[str, NodePart] = {}
        self.figures: dict[str, PartFigures] = {}
        self.early: set[str] = set()
        self._needed: dict[str, Ranges] = {order[last].output: wanted}
        self._graph, self._order, self._arena, self._exact = graph, order, arena, exact
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
        own, before = NodePart(needed), None
        if self._before is not None and node.definition.view is None:
            before = self._before.parts.get(node.output)
            own = own.after(before)
        self.parts[node.output] = own
        computed = own.computed
        cuts: dict[int, Range] = {}
        if computed is not None:
            cuts = {axis: each for axis, each in enumerate(computed) if each != (0, shape[axis])}
        exact = self._exact.part(node, cuts) if cuts else None
        if cuts and exact is None:
            return False
        if node.output in self._arena.steps:
            copied = own.kept and (before is None or not own.is_all_of(before))
            self.figures[node.output] = self._figures(node, own, exact, copied=bool(copied))
        if computed is None:
            return True
        for place, name in enumerate(node.inputs):
            if name == ABSENT or graph.is_constant(name):
                continue
            read: Ranges = (
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

    def _figures(
        self, node: Node, own: NodePart, exact: ExactPart | None, *, copied: bool
    ) -> PartFigures:
        """Return the figures of a part; ``copied`` tells whether what is kept is copied twice."""
        computed = own.computed
        kept = self._nbytes(node, own.known) if own.kept else 0
        ns, scratch = shared_ns(4 * kept) if copied else 0.0, 0
        if computed is not None and (share := self._share(node, computed)):
            ns += self._exact.ns(node, share)
            whole = self._arena.scratch[self._arena.steps[node.output]]
            scratch = whole if exact is None else exact.scratch
        return PartFigures(self._nbytes(node, own.ranges), kept, scratch, ns)

    def _nbytes(self, node: Node, ranges: Ranges) -> int:
        return aligned(int(self._share(node, ranges) * self._graph.nbytes(node.output)))

    def _share(self, node: Node, ranges: Ranges) -> float:
        shape = self._graph.tensors[node.output].shape
        return prod(
            [(stop - start) / size for (start, stop), size in zip(ranges, shape, strict=True)]
        )
