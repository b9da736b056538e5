"""Keep state between runs: the buffers that a module writes to, and its generator."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.dtypes import is_converted
from taper_runtime.base.errors import InputError
from taper_runtime.base.option_values import BFLOAT16
from taper_runtime.base.random_state import new_state
from taper_runtime.executor._runs import Turn
from taper_runtime.executor.inputs import check_input

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taper_runtime.executor._runs import Stop
    from taper_runtime.executor.executor import Executor
    from taper_runtime.plan.plan import Plan


class State:
    """The state of one session.

    A state tensor that the plan writes in place has one array. The others have two: a run reads one
    and writes the other, then they change places. A run that fails leaves the state as it was: what
    it has overwritten in place it puts back. Runs take turns.

    The generator of random numbers is a state too, though nobody is shown it. Where it has no seed,
    and in a run with a seed of its own, the run has a generator of its own; such runs take turns
    only for other states.

    Attributes
    ----------
    names : tuple of str
        The states that users see.
    """

    def __init__(self, plan: Plan, seed: int | None = None, bfloat16: str = BFLOAT16[0]) -> None:
        self._plan = plan.without_values()
        self._bfloat16 = bfloat16
        self._turn = Turn()
        self._seed = seed
        self._generator = plan.generator
        functions = [plan.entry(name) for name in plan.entry_names]
        states = [name for name, spec in plan.tensors.items() if spec.role == "state"]
        generators = {function.generator for function in functions}
        self._generators = [name for name in states if name in generators]
        self.names = tuple(name for name in states if name not in generators)
        self._arrays = {name: np.array(plan.first_value(name)) for name in states}
        doubled = {name for function in functions for name in _doubled(function)}
        self._spare = {
            name: np.empty_like(self._arrays[name]) for name in states if name in doubled
        }
        self._doubled = _doubled(plan)
        self.reset()

    def of(self, plan: Plan) -> State:
        """Return this state as another entry of the plan sees it: they share all tensors."""
        other = copy(self)
        other._plan, other._generator = plan.without_values(), plan.generator
        other._doubled = _doubled(plan)
        return other

    def run(
        self,
        executor: Executor,
        inputs: Sequence[np.ndarray],
        out: Sequence[np.ndarray | None] | None,
        seed: int | None = None,
        stop: Stop | None = None,
    ) -> list[np.ndarray]:
        """Run once from the present state to the next; return the plan's outputs."""
        count = len(self._plan.outputs)
        out = out or [None] * count
        own = {}
        if self._generator is not None and (seed is not None or self._seed is None):
            own = {self._generator: new_state(seed)}
        if own and not self.names:
            return executor.run([*inputs, *own.values()], [*out, None], stop=stop)[:count]
        with self._turn.take(stop):
            arrays = self._arrays | own
            outputs = executor.run(
                [*inputs, *(arrays[name] for name in self._plan.states)],
                [*out, *(self._spare[name] for name in self._doubled)],
                stop=stop,
            )
            for name in self._doubled:
                if name not in own:
                    swapped = self._spare[name], self._arrays[name]
                    self._arrays[name], self._spare[name] = swapped
        return outputs[:count]

    def get(self, name: str) -> np.ndarray:
        """Return a copy of one tensor's present value."""
        self._check(name)
        with self._turn.take():
            value = self._arrays[name].copy()
        spec = self._plan.tensors[name]
        if not is_converted(spec):
            return value
        from taper_runtime.session.ends import to_user

        return to_user(spec, value, self._bfloat16)

    def set(self, name: str, array: np.ndarray) -> None:
        """Give one tensor a value."""
        self._check(name)
        spec = self._plan.tensors[name]
        if is_converted(spec):
            from taper_runtime.session.ends import to_plan

            array = to_plan(spec, array, f"state {name!r}")
        checked = check_input(spec, array)
        with self._turn.take():
            self._arrays[name][...] = checked

    def copy(self) -> dict[str, np.ndarray]:
        """Return copies of all tensors, the generator's too, as one run left them."""
        with self._turn.take():
            return {name: array.copy() for name, array in self._arrays.items()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go on from what :meth:`copy` returned.

        Raises
        ------
        InputError
            If the plan has other states by now.
        """
        if arrays.keys() != self._arrays.keys():
            raise InputError(f"states: expected {[*self._arrays]}, got {[*arrays]}")
        checked = {
            name: check_input(self._plan.tensors[name], array) for name, array in arrays.items()
        }
        self._turn.mend()
        with self._turn.take():
            for name, array in checked.items():
                self._arrays[name][...] = array

    def reset(self, name: str | None = None) -> None:
        """Give one tensor, or all, the value it was exported with; to all belongs the generator."""
        if name is None:
            self._turn.mend()
        for each in self.names if name is None else (name,):
            self._check(each)
            self.set(each, self._plan.first_value(each))
        if name is None and self._seed is not None:
            with self._turn.take():
                for generator in self._generators:
                    self._arrays[generator][...] = new_state(self._seed)

    def _check(self, name: str) -> None:
        if name not in self.names:
            raise InputError(f"unknown state {name!r}; expected one of {[*self.names]}")


def _doubled(plan: Plan) -> list[str]:
    """Return the states that a run writes elsewhere than it reads them."""
    return [name for name in plan.states if not plan.is_in_place(name)]
