"""Track which bytes of a root are read later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.sizes import Size

if TYPE_CHECKING:
    from array import array

    from taper_runtime.base.file_limits import Budget
    from taper_runtime.plan.extents import Extent

#: Number of tensors above which one numpy comparison is faster than a Python loop.
_MANY = 32


class Occupancy:
    """The tensors in one root.

    A file may have any number of tensors, so comparing all pairs must be cheap.

    Parameters
    ----------
    comparisons : Budget
        The quota of comparisons whose sizes vary: these may take long.
    """

    def __init__(self, comparisons: Budget) -> None:
        self._comparisons = comparisons
        self._tensors: list[tuple[str, Extent, int]] = []
        self._numbers: array[int] | None = None  # start, stop and death of each tensor
        self._varies = False

    def add(self, name: str, extent: Extent, death: int) -> None:
        """Add a tensor that is read until the step ``death``."""
        self._tensors.append((name, extent, death))
        self._varies = self._varies or Size in map(type, extent)

    def overlapping(self, extent: Extent, step: int) -> list[str]:
        """Return the tensors that share bytes with ``extent`` and are read at ``step`` or later.

        Raises
        ------
        PlanFormatError
            If the quota of comparisons is exceeded.
        """
        if len(self._tensors) > _MANY and not self._varies and Size not in map(type, extent):
            starts, stops, deaths = self._columns()
            found = (starts < extent.stop) & (stops > extent.start) & (deaths >= step)
            return [self._tensors[index][0] for index in np.flatnonzero(found)]
        alive = [(name, other) for name, other, death in self._tensors if death >= step]
        if self._varies:
            self._comparisons.spend(len(alive))
        return [name for name, other in alive if other.overlaps(extent)]

    def _columns(self) -> np.ndarray:
        if self._numbers is None:
            from array import array  # imported here because few plans need it

            self._numbers = array("q")
        for _, extent, death in self._tensors[len(self._numbers) // 3 :]:
            self._numbers.extend((*extent, death))
        return np.frombuffer(self._numbers, "q").reshape(-1, 3).T
