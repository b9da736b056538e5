"""Hold the values of variables that a block runs on, at one point of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    import numpy as np

    from taper_openinfer.simulator.caches import Cache
    from taper_openinfer.simulator.executor import Executor
    from taper_openinfer.simulator.variables import Scalar


class VariableSlot(NamedTuple):
    """A variable whose value is one array: any but persistent ones and tables of weights.

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
        The file's, where its data are the first value.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    init: Scalar | None = None
    tensor: str | None = None


class ThreadFrame:
    """The variables of a thread of a step.

    An array here is never written to: what changes a variable puts another array in its place. So
    arrays are shared between frames and variables, and one is another's only if nobody wrote it.

    Attributes
    ----------
    executor : Executor
    values : list of numpy.ndarray or None
        By the number of the slot. None is the first value, which nobody has needed yet.
    loops : list of int or None
        By the number of the loops' variable; None outside of its loop.
    caches : list of Cache
    is_consumer : bool
        Whether it is that of a block which waits for what ``entry`` yields.
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
        self.depth = 0  # of the branches around

    def get(self, slot: int) -> np.ndarray:
        """Return the value of a variable; the first one where nothing has written it."""
        value = self.values[slot]
        if value is None:
            value = self.values[slot] = self.executor.first_value(slot)
        return value

    def fork(self) -> ThreadFrame:
        """Return a frame of its own for a block in another thread, with the values of now."""
        return ThreadFrame(self.executor, self.values.copy(), self.loops.copy(), self.caches, True)
