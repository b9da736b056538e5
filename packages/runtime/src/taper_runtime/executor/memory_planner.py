"""Plan memory for sizes that are known only in runs, by the largest that any run has needed."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.base.checks import ALIGNMENT, aligned
from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.forks import watch
from taper_runtime.base.records import NamedTuple
from taper_runtime.executor.interval import start
from taper_runtime.executor.layouts import LAYOUTS, lay_out
from taper_runtime.plan.liveness import LiveRange

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taper_runtime.base.option_values import MemoryPlanning


class Layout(NamedTuple):
    """Offsets of tensors in one piece of memory. Immutable; a new layout replaces it."""

    version: int
    places: Mapping[str, tuple[int, int]]  # offset and bytes of each
    nbytes: int


class MemoryPlanner:
    """Tracker of the largest size of each tensor, which makes a new layout if one grew.

    A run takes the newest layout by reading one reference; it never waits for the thread that makes
    the next layout. That thread starts with the first run and ends with the planner.

    Parameters
    ----------
    lives : mapping of str to tuple of int
        The first and the last step that need each tensor, both included.
    planning : MemoryPlanning
    """

    def __init__(self, lives: Mapping[str, tuple[int, int]], planning: MemoryPlanning) -> None:
        self.planning = planning
        self.layout = Layout(0, {}, 0)
        self._lives = lives
        self._maxima = dict.fromkeys(lives, 0)
        self._grown = False
        self._outgrown = 0
        self._slabs: list[np.ndarray] = []
        self._lock = threading.Lock()
        self._begun = False  # there is a thread
        watch(self)

    def take(self) -> tuple[Layout, np.ndarray]:
        """Return the newest layout and memory for it."""
        layout = self.layout
        try:
            slab = self._slabs.pop()
        except IndexError:
            slab = None
        if slab is None or slab.nbytes < layout.nbytes:
            slab = _memory(layout.nbytes)
        return layout, slab

    def give_back(self, slab: np.ndarray) -> None:
        """Keep a run's memory for the next run, if the options ask for reuse."""
        if not self.planning.deallocate_between_runs:
            self._slabs.append(slab)

    def learn(self, name: str, nbytes: int) -> None:
        """Record that a tensor needed more than its place in the layout."""
        if not self.planning.enabled:
            return
        with self._lock:
            self._outgrown += 1
            if nbytes > self._maxima[name]:
                self._maxima[name] = nbytes
                self._grown = True
        if not self._begun:
            self._begin()

    def replan(self) -> None:
        """Make a layout of the largest sizes, if one has grown since the last layout."""
        with self._lock:
            if not self._grown:
                return
            self._grown = False
            maxima = dict(self._maxima)
        ranges = [LiveRange(*self._lives[name], nbytes) for name, nbytes in maxima.items()]
        offsets, total = lay_out(ranges, self.planning.algorithm)
        places = dict(zip(maxima, zip(offsets, maxima.values(), strict=True), strict=True))
        self.layout = Layout(self.layout.version + 1, places, total)

    def stats(self) -> dict[str, Any]:
        """Return the planner's statistics.

        Returns
        -------
        dict
            ``plan_version``: how many layouts were made; ``outgrown``: how often a tensor did not
            fit its place and got memory of its own; ``slab_bytes``; ``bytes_by_algorithm``: the
            bytes that each algorithm would need for the largest sizes so far.
        """
        with self._lock:
            ranges = [LiveRange(*self._lives[name], n) for name, n in self._maxima.items()]
            outgrown = self._outgrown
        layout = self.layout
        return {
            "plan_version": layout.version,
            "outgrown": outgrown,
            "slab_bytes": layout.nbytes,
            "bytes_by_algorithm": {name: lay_out(ranges, name)[1] for name in LAYOUTS},
        }

    def after_fork(self) -> None:
        """Reset the thread and the lock in a forked child, which has no threads of its parent."""
        self._lock, self._begun = threading.Lock(), False

    def _begin(self) -> None:
        with self._lock:
            begin, self._begun = not self._begun, True
        if begin:
            name, interval_s = "taper_runtime memory planner", self.planning.interval_s
            start(self, MemoryPlanner._replan_again, interval_s, name)

    def _replan_again(self) -> bool:
        self.replan()
        return True


class Slab:
    """Memory of one run: the places of the layout, and extra memory for tensors that outgrew them.

    A context manager; its arrays must not be used after the ``with`` statement.
    """

    def __init__(self, planner: MemoryPlanner) -> None:
        self._planner = planner
        self._layout, self._memory = planner.take()

    def __enter__(self) -> Slab:
        return self

    def __exit__(self, *error: object) -> None:
        self._planner.give_back(self._memory)

    def array(self, name: str, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """Return memory for a tensor, not initialized."""
        storage = DTYPES[dtype].storage
        nbytes = storage.itemsize * math.prod(shape)
        offset, room = self._layout.places.get(name, (0, 0))
        if nbytes <= room:
            memory = self._memory[offset : offset + nbytes]
        else:
            self._planner.learn(name, nbytes)
            memory = _memory(nbytes)
        return memory.view(storage).reshape(shape)


def _memory(nbytes: int) -> np.ndarray:
    """Return so many aligned bytes."""
    room = np.empty(aligned(nbytes) + ALIGNMENT, np.uint8)
    start = -room.__array_interface__["data"][0] % ALIGNMENT
    return room[start : start + nbytes]
