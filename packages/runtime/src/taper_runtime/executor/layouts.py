"""Lay out memory that is needed at different steps, in several ways."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.checks import aligned
from taper_runtime.executor._program import assign_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taper_runtime.plan.liveness import LiveRange


def lay_out(ranges: Sequence[LiveRange], algorithm: str) -> tuple[list[int], int]:
    """Return the offset of each live range, in the order given, and the bytes of the whole layout.

    Parameters
    ----------
    ranges : sequence of LiveRange
    algorithm : str
        One of :data:`LAYOUTS`.
    """
    rounded = [each._replace(nbytes=aligned(each.nbytes)) for each in ranges]
    return LAYOUTS[algorithm](rounded)


def _bump(ranges: Sequence[LiveRange]) -> tuple[list[int], int]:
    """Place the tensors end to end, so that none share memory."""
    offsets, end = [], 0
    for each in ranges:
        offsets.append(end)
        end += each.nbytes
    return offsets, end


def _greedy_by_size(ranges: Sequence[LiveRange]) -> tuple[list[int], int]:
    """Place the largest first, each in the smallest gap that fits, or else at the end.

    A gap is between placed tensors that are needed at the same time as the new one (Pisarchyk and
    Lee, "Efficient Memory Management for Deep Neural Net Inference", arXiv 2001.03288).
    """
    offsets = [0] * len(ranges)
    placed: list[int] = []
    for index in sorted(range(len(ranges)), key=lambda i: -ranges[i].nbytes):
        each, end, best = ranges[index], 0, None
        for other in sorted(placed, key=lambda i: offsets[i]):
            if not _meet(each, ranges[other]):
                continue
            gap = offsets[other] - end
            if gap >= each.nbytes and (best is None or gap < best[0]):
                best = gap, end
            end = max(end, offsets[other] + ranges[other].nbytes)
        offsets[index] = end if best is None else best[1]
        placed.append(index)
    return offsets, _end(ranges, offsets)


def _disjoint_groups(ranges: Sequence[LiveRange]) -> tuple[list[int], int]:
    """Group tensors that are never live together; place the groups end to end.

    At each step, the tensors that begin to live there are taken, largest first; each goes to a
    group that is free, or else to a new one.
    """
    groups: list[tuple[int, int]] = []  # death of the last in it, bytes
    group_of = [0] * len(ranges)
    for index in sorted(range(len(ranges)), key=lambda i: (ranges[i].birth, -ranges[i].nbytes)):
        each = ranges[index]
        free = [g for g, (death, _) in enumerate(groups) if death < each.birth]
        if free:
            group = max(free, key=lambda g: groups[g][1])
            groups[group] = each.death, max(groups[group][1], each.nbytes)
        else:
            group = len(groups)
            groups.append((each.death, each.nbytes))
        group_of[index] = group
    starts = [sum(nbytes for _, nbytes in groups[:g]) for g in range(len(groups) + 1)]
    return [starts[group] for group in group_of], starts[-1]


def _best(ranges: Sequence[LiveRange]) -> tuple[list[int], int]:
    """Return the smallest of the other layouts."""
    ways = [assign_offsets(ranges), _greedy_by_size(ranges), _disjoint_groups(ranges)]
    return min(ways, key=lambda way: way[1])


def _meet(a: LiveRange, b: LiveRange) -> bool:
    """Return whether two live ranges have a step in common."""
    return a.birth <= b.death and b.birth <= a.death


def _end(ranges: Sequence[LiveRange], offsets: Sequence[int]) -> int:
    return max((o + each.nbytes for o, each in zip(offsets, ranges, strict=True)), default=0)


#: The algorithms, by their names in options.
LAYOUTS: dict[str, Callable[[Sequence[LiveRange]], tuple[list[int], int]]] = {
    "bump": _bump,
    "greedy_by_size": _greedy_by_size,
    "disjoint_groups": _disjoint_groups,
    "best": _best,
}
