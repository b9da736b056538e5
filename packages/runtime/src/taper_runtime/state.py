"""What a session keeps between runs: the buffers that a module writes to."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.errors import InputError
from taper_runtime.executor.inputs import check_input

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_runtime.executor.executor import Executor
    from taper_runtime.plan.plan import Plan


class State:
    """The state of one session.

    Every state tensor has two arrays: a run reads one and writes the other, then they change
    places. So a run that fails leaves the state as it was. Runs take turns.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._lock = Lock()
        self._arrays = {name: np.array(plan.constants[name]) for name in plan.states}
        self._spare = {name: np.empty_like(array) for name, array in self._arrays.items()}

    def run(
        self,
        executor: Executor,
        inputs: Sequence[np.ndarray],
        out: Sequence[np.ndarray | None] | None,
    ) -> list[np.ndarray]:
        """Run once from the present state to the next; return the plan's outputs."""
        count = len(self._plan.outputs)
        with self._lock:
            outputs = executor.run(
                [*inputs, *self._arrays.values()],
                [*(out or [None] * count), *self._spare.values()],
            )
            self._arrays, self._spare = self._spare, self._arrays
        return outputs[:count]

    def get(self, name: str) -> np.ndarray:
        """Return a copy of one tensor's present value."""
        self._check(name)
        with self._lock:
            return self._arrays[name].copy()

    def set(self, name: str, array: np.ndarray) -> None:
        """Give one tensor a value."""
        self._check(name)
        checked = check_input(self._plan.tensors[name], array)
        with self._lock:
            self._arrays[name][...] = checked

    def reset(self, name: str | None = None) -> None:
        """Give one tensor, or all, the value it was exported with."""
        for each in self._plan.states if name is None else (name,):
            self._check(each)
            self.set(each, self._plan.constants[each])

    def _check(self, name: str) -> None:
        if name not in self._plan.states:
            raise InputError(f"unknown state {name!r}; expected one of {[*self._plan.states]}")
