"""Offsets in the arena: intervals in time and bytes that must not overlap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from taper_runtime.executor import _native

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
    """Offsets for the intervals, and the arena's size, as the runtime finds them for its own."""
    return _native.lay_out(
        [interval.birth for interval in intervals],
        [interval.death for interval in intervals],
        [interval.size for interval in intervals],
    )


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
