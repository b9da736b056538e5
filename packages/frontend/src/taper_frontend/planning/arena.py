"""Offsets in the arena: intervals in time and bytes that must not overlap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Every offset is a multiple: whole cache lines, and aligned for any vector load.
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Interval:
    """A block of memory needed from step ``birth`` to step ``death``, both included."""

    birth: int
    death: int
    nbytes: int

    @property
    def size(self) -> int:
        """Bytes, rounded up to the alignment."""
        return -(-self.nbytes // ALIGNMENT) * ALIGNMENT


def lay_out(intervals: Sequence[Interval]) -> tuple[list[int], int]:
    """Offsets for the intervals, and the arena's size.

    First fit in order of birth, and first fit largest first: neither is better on every graph, so
    both are tried and the smaller kept.
    """
    indices = range(len(intervals))
    by_birth = sorted(indices, key=lambda i: (intervals[i].birth, -intervals[i].size))
    by_size = sorted(indices, key=lambda i: (-intervals[i].size, intervals[i].birth))
    layouts = [_first_fit(intervals, order) for order in (by_birth, by_size)]
    return min(layouts, key=lambda layout: layout[1])


def lower_bound(intervals: Sequence[Interval]) -> int:
    """Peak of the live bytes: no layout is smaller."""
    changes: dict[int, int] = {}
    for interval in intervals:
        changes[interval.birth] = changes.get(interval.birth, 0) + interval.size
        changes[interval.death + 1] = changes.get(interval.death + 1, 0) - interval.size
    live = peak = 0
    for step in sorted(changes):
        live += changes[step]
        peak = max(peak, live)
    return peak


def _first_fit(intervals: Sequence[Interval], order: Sequence[int]) -> tuple[list[int], int]:
    offsets = [0] * len(intervals)
    placed: list[tuple[int, int, int, int]] = []  # (offset, end, birth, death), by offset
    arena = 0
    for i in order:
        interval = intervals[i]
        if interval.size == 0:
            continue
        at = 0
        for offset, end, birth, death in placed:
            if birth <= interval.death and interval.birth <= death:
                if at + interval.size <= offset:
                    break
                at = max(at, end)
        offsets[i] = at
        arena = max(arena, at + interval.size)
        placed.append((at, at + interval.size, interval.birth, interval.death))
        placed.sort()
    return offsets, arena
