"""Lay out blocks of memory that are needed at different steps, in several ways."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.checks import aligned
from taper_runtime.executor._program import assign_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taper_runtime.plan.liveness import LiveRange


def lay_out(blocks: Sequence[LiveRange], algorithm: str) -> tuple[list[int], int]:
    """Return the offsets of blocks, in the order given, and the bytes they take in all.

    Parameters
    ----------
    blocks : sequence of LiveRange
    algorithm : str
        One of :data:`LAYOUTS`.
    """
    rounded = [block._replace(nbytes=aligned(block.nbytes)) for block in blocks]
    return LAYOUTS[algorithm](rounded)


def _bump(blocks: Sequence[LiveRange]) -> tuple[list[int], int]:
    """Place the tensors end to end; none share memory."""
    offsets, end = [], 0
    for block in blocks:
        offsets.append(end)
        end += block.nbytes
    return offsets, end


def _greedy_by_size(blocks: Sequence[LiveRange]) -> tuple[list[int], int]:
    """Place the largest first, each in the smallest gap that fits, else at the end.

    Gaps are between those placed that are needed at the same time (Pisarchyk and Lee, "Efficient
    Memory Management for Deep Neural Net Inference", arXiv 2001.03288).
    """
    offsets = [0] * len(blocks)
    placed: list[int] = []
    for index in sorted(range(len(blocks)), key=lambda i: -blocks[i].nbytes):
        block, end, best = blocks[index], 0, None
        for other in sorted(placed, key=lambda i: offsets[i]):
            if not _meet(block, blocks[other]):
                continue
            gap = offsets[other] - end
            if gap >= block.nbytes and (best is None or gap < best[0]):
                best = gap, end
            end = max(end, offsets[other] + blocks[other].nbytes)
        offsets[index] = end if best is None else best[1]
        placed.append(index)
    return offsets, _end(blocks, offsets)


def _disjoint_groups(blocks: Sequence[LiveRange]) -> tuple[list[int], int]:
    """Group tensors that are never live together; place the groups end to end.

    At each step what is born there, largest first, goes to a group that is free, else a new one.
    """
    groups: list[tuple[int, int]] = []  # death of the last in it, bytes
    group_of = [0] * len(blocks)
    for index in sorted(range(len(blocks)), key=lambda i: (blocks[i].birth, -blocks[i].nbytes)):
        block = blocks[index]
        free = [g for g, (death, _) in enumerate(groups) if death < block.birth]
        if free:
            group = max(free, key=lambda g: groups[g][1])
            groups[group] = block.death, max(groups[group][1], block.nbytes)
        else:
            group = len(groups)
            groups.append((block.death, block.nbytes))
        group_of[index] = group
    starts = [sum(nbytes for _, nbytes in groups[:g]) for g in range(len(groups) + 1)]
    return [starts[group] for group in group_of], starts[-1]


def _best(blocks: Sequence[LiveRange]) -> tuple[list[int], int]:
    """Return the smallest of the other layouts."""
    ways = [assign_offsets(blocks), _greedy_by_size(blocks), _disjoint_groups(blocks)]
    return min(ways, key=lambda way: way[1])


def _meet(a: LiveRange, b: LiveRange) -> bool:
    """Whether both are needed at one step."""
    return a.birth <= b.death and b.birth <= a.death


def _end(blocks: Sequence[LiveRange], offsets: Sequence[int]) -> int:
    return max((o + b.nbytes for o, b in zip(offsets, blocks, strict=True)), default=0)


#: By the names that options have.
LAYOUTS: dict[str, Callable[[Sequence[LiveRange]], tuple[list[int], int]]] = {
    "bump": _bump,
    "greedy_by_size": _greedy_by_size,
    "disjoint_groups": _disjoint_groups,
    "best": _best,
}
