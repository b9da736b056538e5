"""Find which nodes must wait for which, if nodes may run at the same time.

A node waits for the nodes that write its inputs, and for those that read or write the bytes that it
overwrites. So values flow as in the plan's own order; in particular, random draws and writes to
states stay in order. A run need not keep the rest of that order. Sets of nodes and of pieces of
memory are stored as the bits of ints.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from taper_runtime.base.records import NamedTuple
from taper_runtime.plan.extents import Extent, extent_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from taper_runtime.plan.plan import Plan, PlanNode


class _Access(NamedTuple):
    """Bytes of a root that a node reads or writes."""

    node: int
    extent: Extent


class Order(NamedTuple):
    """A partial order of nodes, which are numbered in the plan's order.

    Attributes
    ----------
    producers : list of list of int
        The nodes that each node waits for, ascending. Further ones follow from these.
    ancestors : list of int
        As bits, all nodes that have ended when each node begins.
    """

    producers: list[list[int]]
    ancestors: list[int]

    @property
    def is_total(self) -> bool:
        """Return whether no two nodes may run at the same time."""
        return all(bits == (1 << node) - 1 for node, bits in enumerate(self.ancestors))


def order_of(plan: Plan, nodes: Sequence[PlanNode]) -> Order:
    """Return the order of the executed ``nodes`` of a valid plan."""
    producers = [sorted(waits_for) for waits_for in _producers(plan, nodes)]
    ancestors: list[int] = []
    for waits_for in producers:
        ancestors.append(_union(ancestors[node] | 1 << node for node in waits_for))
    return Order(producers, ancestors)


def _producers(plan: Plan, nodes: Sequence[PlanNode]) -> Iterator[set[int]]:
    """Yield, for each node, the nodes that it waits for.

    Some nodes that another one of them waits for are left out: those whose bytes it has
    overwritten.
    """
    read = defaultdict[str, list[_Access]](list)  # by root
    written = defaultdict[str, list[_Access]](list)
    for index, node in enumerate(nodes):
        reads = list(_places(plan, node.reads))
        writes = list(_places(plan, node.outputs))
        found: set[int] = set()
        for root, extent in reads:
            found.update(_overlapping(written[root], extent))
        for root, extent in writes:
            for accesses in (read[root], written[root]):
                found.update(_overlapping(accesses, extent))
                accesses[:] = [each for each in accesses if not extent.covers(each.extent)]
        for root, extent in reads:
            read[root].append(_Access(index, extent))
        for root, extent in writes:
            written[root].append(_Access(index, extent))
        yield found


def _places(plan: Plan, names: Iterable[str]) -> Iterator[tuple[str, Extent]]:
    """Yield the root and the bytes of each tensor in memory that a node may write."""
    for name in dict.fromkeys(names):
        placement = plan.placements[name]
        if placement.root in plan.states or placement.root not in plan.constants:
            yield placement.root, extent_of(plan.tensors[name].storage, placement)


def _overlapping(accesses: Iterable[_Access], extent: Extent) -> Iterator[int]:
    return (node for node, other in accesses if other.overlaps(extent))


def memory_before(order: Order, users: Sequence[int]) -> list[int]:
    """Return, for each piece of memory, the pieces that are free when its first user begins.

    Two pieces may share bytes only if one is free when the other begins. In a total order this
    means that the one dies before the other is born.

    Parameters
    ----------
    order : Order
    users : sequence of int
        As bits, the nodes that read or write each piece. A bit beyond the last node means that the
        piece is needed at the end of the run.

    Returns
    -------
    list of int
        As bits, the pieces before each piece.
    """
    used: list[list[int]] = [[] for _ in order.ancestors]
    for piece, nodes in enumerate(users):
        for node in _bits(nodes & ((1 << len(used)) - 1)):
            used[node].append(piece)
    ended: list[int] = []  # bits per node: the pieces all of whose users are its ancestors
    open_: list[int] = []  # bits per node: the others that an ancestor or it itself uses
    for node, waits_for in enumerate(order.producers):
        over = _union(ended[each] for each in waits_for)
        candidates = _union(open_[each] for each in waits_for) & ~over
        for piece in _bits(candidates):
            if not users[piece] & ~order.ancestors[node]:
                over |= 1 << piece
        ended.append(over)
        open_.append(candidates & ~over | _union(1 << piece for piece in used[node]))
    before = [-1] * len(users)
    for node, pieces in enumerate(used):
        for piece in pieces:
            before[piece] &= ended[node]
    return [max(bits, 0) for bits in before]


def users_of(
    nodes: Sequence[PlanNode], roots: Mapping[str, str], kept: Iterable[str] = ()
) -> dict[str, int]:
    """Return the nodes that read or write each root, as bits.

    ``roots`` has the root of each tensor; others are ignored. Tensors in ``kept`` are needed to the
    end of the run.
    """
    users = dict.fromkeys(roots.values(), 0)
    for index, node in enumerate(nodes):
        for name in (*node.reads, *node.outputs):
            if name in roots:
                users[roots[name]] |= 1 << index
    for name in kept:
        if name in roots:
            users[roots[name]] |= 1 << len(nodes)
    return users


def _union(sets: Iterable[int]) -> int:
    union = 0
    for each in sets:
        union |= each
    return union


def _bits(number: int) -> Iterator[int]:
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low
