"""Hold the values of variables that a block works on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    import numpy as np

    from taper_openinfer.simulator.caches import Cache
    from taper_openinfer.simulator.executor import Executor
    from taper_openinfer.simulator.variables import Scalar


class VariableSlot(NamedTuple):
    """A variable that is a single array: any except persistent ones and prefix tables.

    Attributes
    ----------
    name : str
    kind : str
        ``"dynamic"``, ``"volatile"``, ``"constant"`` or ``"temporary"``.
    dtype : str
    shape : tuple of int
        As declared.
    init : bool, int, float or None
    tensor : str or None
        The name of the file's tensor that is the initial value.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    init: Scalar | None = None
    tensor: str | None = None


class ThreadFrame:
    """The values of the variables in one thread of a step.

    Arrays are never written to: changing a variable replaces its array. So frames and variables can
    share arrays, and a variable was written if and only if its array is another one.

    Attributes
    ----------
    executor : Executor
    values : list of numpy.ndarray or None
        The values by slot. None stands for an initial value that was not needed yet.
    loops : list of int or None
        The values of loop variables, by number; None outside of the loop.
    caches : list of Cache
    is_consumer : bool
        Whether the thread runs a block that waits for what ``entry`` yields.
    """

    __slots__ = ("caches", "depth", "executor", "is_consumer", "loops", "values")

    def __init__(
        self,
        executor: Executor,
        values: list[np.ndarray | None],
        loops: list[int | None],
        caches: list[Cache],
        is_consumer: bool = False,
    ) -> None:
        self.executor = executor
        self.values = values
        self.loops = loops
        self.caches = caches
        self.is_consumer = is_consumer
        self.depth = 0  # the number of enclosing branches

    def get(self, slot: int) -> np.ndarray:
        """Return the value of a variable; its initial value if nothing has written it."""
        value = self.values[slot]
        if value is None:
            value = self.values[slot] = self.executor.first_value(slot)
        return value

    def fork(self) -> ThreadFrame:
        """Return a copy of the frame for a block in another thread."""
        return ThreadFrame(self.executor, self.values.copy(), self.loops.copy(), self.caches, True)
