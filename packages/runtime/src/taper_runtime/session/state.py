"""Keep state between runs: the buffers that a module writes to, and its random generator."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from itertools import repeat
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.base.buffers import address_of, copy_written, lazy_zeros
from taper_runtime.base.errors import InputError
from taper_runtime.base.option_values import BFLOAT16
from taper_runtime.base.random_state import new_state
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.sizes import is_static, linear
from taper_runtime.base.text import is_one_of
from taper_runtime.executor._pool import Taken, Turn
from taper_runtime.executor.inputs import check_value
from taper_runtime.plan.plan import is_converted
from taper_runtime.plan.rewind_rule import read_rewind_rule
from taper_runtime.session.shared_arrays import SharedArrays

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import NoReturn

    from taper_runtime.executor._stop import Stop
    from taper_runtime.executor.executor import PlanExecutor
    from taper_runtime.plan.plan import Plan

#: No state has a part of its own.
_WHOLE: Mapping[str, Any] = MappingProxyType({})


class State:
    """State of one sequence, which runs read and write.

    Every session has one, which a run uses unless it is given another. ``session.new_state()``
    makes more. Runs with the same state take turns; runs with different states go on at the same
    time. A run that fails leaves its states as they were.

    The random generator is a state too, which users do not see. If it has no seed, or a run has a
    seed of its own, the run uses a generator of its own; such runs take turns only because of other
    states.

    Attributes
    ----------
    names : tuple of str
        The states that users see. If the first value of a state has no dim that varies, the state
        has that shape; along a batch dim of any size it holds one row.
    """

    # A state that all entries write in place has one array. The others have two: a run reads one
    # and writes the other, then they change places. After a run of several states their arrays are
    # those of the batch, until one is looked at by itself.

    def __init__(self, plan: Plan, seed: int | None = None, bfloat16: str = BFLOAT16[0]) -> None:
        self._plan = plan.without_values()
        self._bfloat16 = bfloat16
        self._seed = seed
        functions = [plan.entry(name) for name in plan.entry_names]
        states = [name for name, spec in plan.tensors.items() if spec.role == "state"]
        generators = {function.generator for function in functions}
        self._generators = [name for name in states if name in generators]
        self.names = tuple(name for name in states if name not in generators)
        doubled = {name for function in functions for name in _doubled(function)}
        self._begin(states, [name for name in states if name in doubled])

    def _begin(self, states: Iterable[str], doubled: Iterable[str]) -> None:
        self._turn = Turn()
        self._own = {name: self._plan.first_value(name) for name in states}
        self._shapes = {name: array.shape for name, array in self._own.items()}
        self._row: tuple[_Batch, int] | None = None
        self._spare = {name: np.empty_like(self._own[name]) for name in doubled}
        self._read = _WHOLE
        self._seed_generators()

    @property
    def _arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays of the present values; only who holds the turn may ask."""
        if self._row is not None:
            batch, row = self._row
            self._own.update(batch.of_row(row))
            self._row = None
        return self._own

    def _seed_generators(self) -> None:
        if self._seed is not None:
            for generator in self._generators:
                self._arrays[generator][...] = new_state(self._seed)

    def new(self) -> State:
        """Return a new state of the same session, with the exported values."""
        other = State.__new__(State)
        vars(other).update(vars(self))
        other._begin(self._shapes, self._spare)
        return other

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse a copy, which would share the arrays, and a pickle, which would lose the session.

        Raises
        ------
        InputError
        """
        raise InputError(
            "a State cannot be copied or pickled: take the values of copy(), and give them to "
            "restore() of a new one, which new_state() of a session returns"
        )

    def get(self, name: str) -> np.ndarray:
        """Return a copy of a state's present value.

        Raises
        ------
        InputError
            If there is none of this name.
        """
        self._check(name)
        with self._turn.take():
            value = self._arrays[name].copy()
        spec = self._plan.tensors[name]
        if not is_converted(spec):
            return value
        from taper_runtime.session.ends import to_user

        return to_user(spec, value, self._bfloat16)

    def set(self, name: str, array: np.ndarray) -> None:
        """Give a state a value of exactly its dtype and shape, which is copied.

        Raises
        ------
        InputError
            If there is none of this name, or the array does not fit.
        """
        self._check(name)
        spec = self._plan.tensors[name]
        if is_converted(spec):
            from taper_runtime.session.ends import to_plan

            array = to_plan(spec, array, f"state {name!r}")
        checked = self._fitting(name, array)
        with self._turn.take():
            self._arrays[name][...] = checked

    def copy(self, parts: Mapping[str, Any] = _WHOLE) -> dict[str, np.ndarray]:
        """Return copies of all states, including the generator; no run changes them meanwhile.

        Parameters
        ----------
        parts : mapping of str to slice or tuple of slice
            The parts of arrays that are copied; by default all of each.
        """
        with self._turn.take():
            arrays = self._arrays.items()
            return {name: array[parts.get(name, ...)].copy() for name, array in arrays}

    def restore(self, arrays: Mapping[str, np.ndarray], parts: Mapping[str, Any] = _WHOLE) -> None:
        """Continue from the values that :meth:`copy` of this or another state returned.

        Parameters
        ----------
        arrays : mapping of str to numpy.ndarray
        parts : mapping of str to slice or tuple of slice
            The parts of arrays that they are; the rest keeps its values.

        Raises
        ------
        InputError
            If they are not those of a state of such a plan.
        """
        if not isinstance(arrays, Mapping):
            raise InputError(f"states: expected a dict, got {type(arrays).__name__}")
        if arrays.keys() != self._shapes.keys():
            raise InputError(f"states: expected {[*self._shapes]}, got {[*arrays]}")
        checked = {
            name: self._fitting(name, array, parts.get(name, ...)) for name, array in arrays.items()
        }
        self._turn.mark_complete()
        with self._turn.take():
            for name, array in checked.items():
                self._arrays[name][parts.get(name, ...)] = array

    def share(self, parts: Mapping[str, Any] = _WHOLE) -> Mapping[str, np.ndarray]:
        """Return what :meth:`copy` returns, in memory that :meth:`adopt` need not copy.

        Where the system has no such memory it is that of :meth:`copy`.
        """
        with self._turn.take():
            arrays = {name: np.ascontiguousarray(each) for name, each in self._arrays.items()}
            with suppress(OSError):
                return SharedArrays(arrays, parts)
        return self.copy(parts)

    def adopt(
        self,
        arrays: Mapping[str, np.ndarray],
        parts: Mapping[str, Any] = _WHOLE,
        rest: Mapping[str, Any] = _WHOLE,
    ) -> None:
        """Continue from parts of what :meth:`share` of a state of the same session returned.

        Parameters
        ----------
        arrays : mapping of str to numpy.ndarray
        parts : mapping of str to slice or tuple of slice
            The parts of arrays that this state takes; others keep their values.
        rest : mapping of str to slice or tuple of slice
            Parts that contain what ``arrays`` hold beyond ``parts``.

        Raises
        ------
        InputError
            If an array does not fit.
        """
        taken = {name: array[parts.get(name, ...)] for name, array in arrays.items()}
        mapped = None
        # of arrays that are mapped the rest is written, else all that is taken
        if isinstance(arrays, SharedArrays) and 2 * _nbytes(taken) >= _nbytes(arrays):
            with suppress(OSError):
                mapped = arrays.map()
        if mapped is None:
            self.restore(taken, parts)
            return
        self._turn.mark_complete()
        with self._turn.take():
            for name, part in rest.items():
                mapped[name][part] = self._arrays[name][part]
            self._arrays.update(mapped)

    def reset(self, name: str | None = None) -> None:
        """Give a state, or all including the generator, the value that it was exported with.

        Raises
        ------
        InputError
            If there is none of this name.
        """
        if name is None:
            self._turn.mark_complete()
        names = self.names if name is None else (name,)
        for each in names:
            self._check(each)
        with self._turn.take():
            # new arrays, for a cache that was written takes its memory
            self._arrays.update({each: self._plan.first_value(each) for each in names})
            if name is None:
                self._seed_generators()

    def _check(self, name: str) -> None:
        if not is_one_of(name, self.names):
            raise InputError(f"unknown state {name!r}; expected one of {[*self.names]}")

    def _fitting(self, name: str, array: object, part: Any = ...) -> np.ndarray:
        shape = np.broadcast_to(0, self._shapes[name])[part].shape
        return check_value(self._plan.tensors[name]._replace(shape=shape), array)

    def check_given(self, given: object) -> State | Sequence[State]:
        """Return a run's state or states, after checking that they belong to the same session.

        Raises
        ------
        InputError
            If they do not, or one is given twice.
        """
        states: Sequence[Any] = given if isinstance(given, (list, tuple)) else [given]
        for state in states:
            if not isinstance(state, State):
                got = type(state).__name__
                raise InputError(f"state: expected a State or a list of them, got {got}")
            if state._plan is not self._plan:
                raise InputError(
                    "state: expected a State that new_state() of this session returned"
                )
        if len({*map(id, states)}) < max(len(states), 1):
            raise InputError(f"state: expected one or more states, each once, got {len(states)}")
        return given if isinstance(given, State) else states

    # -- a run ------------------------------------------------------------------------------------

    def mark_read(self, parts: Mapping[str, Any]) -> None:
        """Tell which parts of arrays the next run reads, as for :meth:`copy`.

        If it joins rows, the others become zeros instead of being copied.
        """
        self._read = parts

    def take_read(self) -> Mapping[str, Any]:
        """Return the parts that were told for this run, and forget them."""
        found, self._read = self._read, _WHOLE
        return found

    @property
    def rows(self) -> int:
        """Return how many rows of a batch it holds."""
        return 1

    def take(self, stop: Stop | None) -> Taken:
        """Return a context manager that holds the state's turn."""
        return self._turn.take(stop)

    def present(self, names: Sequence[str]) -> Mapping[str, np.ndarray]:
        """Return the arrays that a run reads, and writes where the plan writes them in place."""
        self.take_read()  # nothing is copied
        return self._arrays

    def following(self, names: Sequence[str]) -> Mapping[str, np.ndarray]:
        """Return the arrays that a run writes, for states that it does not write in place."""
        return self._spare

    def advance(self, names: Sequence[str]) -> None:
        """Make the values that the run has written the present ones."""
        for name in names:
            swapped = self._spare[name], self._arrays[name]
            self._arrays[name], self._spare[name] = swapped


def _nbytes(arrays: Mapping[str, np.ndarray]) -> int:
    return sum(array.nbytes for array in arrays.values())


class _Batch:
    """Arrays of the rows that a run has left side by side.

    Attributes
    ----------
    names : sequence of str
        The states that the run has.
    arrays : dict of str to numpy.ndarray
    """

    def __init__(self, names: Sequence[str], axes: Mapping[str, int], rows: int) -> None:
        self.names = names
        self.arrays: dict[str, np.ndarray] = {}
        self._axes, self._rows = axes, rows

    def of_row(self, row: int) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the name and the array of each state of a row."""
        for name, whole in self.arrays.items():
            if self._rows == 1:
                yield name, whole
            elif self._axes[name]:
                yield name, whole.take([row], self._axes[name])
            else:
                yield name, whole[row : row + 1]

    def is_of(self, names: Sequence[str], states: Sequence[State]) -> bool:
        """Return whether its rows are those of these states, in order."""
        rows = enumerate(states)
        return (
            self._rows == len(states)
            and self.names == names
            and all(state._row == (self, row) for row, state in rows)
        )


class StateRows:
    """Several states as one batch, a row each.

    Parameters
    ----------
    states : sequence of State
        Different ones, of one session.
    axes : mapping of str to int
        For each state of the run, the axis that counts rows.
    """

    def __init__(self, states: Sequence[State], axes: Mapping[str, int]) -> None:
        self._states = states
        self._axes = axes
        self._batch: _Batch | None = None
        self._following: dict[str, np.ndarray] = {}

    @property
    def rows(self) -> int:
        """Return how many states there are."""
        return len(self._states)

    def take(self, stop: Stop | None) -> Taken:
        """Return a context manager that holds the turns of all states."""
        turns = [state._turn for state in self._states]
        # always in the same order, so that no two runs wait for each other
        return Taken(sorted(turns, key=id), stop)

    def present(self, names: Sequence[str]) -> Mapping[str, np.ndarray]:
        """See :meth:`State.present`."""
        read = [state.take_read() for state in self._states]
        place = self._states[0]._row
        if place is not None and place[0].is_of(names, self._states):
            self._batch = place[0]
            return self._batch.arrays
        self._batch = _Batch(names, self._axes, len(self._states))
        arrays = [state._arrays for state in self._states]
        for name in names:
            self._batch.arrays[name] = _joined(
                [each[name] for each in arrays],
                self._axes[name],
                [each.get(name) for each in read],
            )
        return self._batch.arrays

    def following(self, names: Sequence[str]) -> Mapping[str, np.ndarray]:
        """See :meth:`State.following`."""
        assert self._batch is not None
        present = self._batch.arrays
        self._following = {name: np.empty_like(present[name]) for name in names}
        return self._following

    def advance(self, names: Sequence[str]) -> None:
        """See :meth:`State.advance`."""
        batch = self._batch
        assert batch is not None
        batch.arrays.update(self._following)
        if self._states[0]._row is not None:  # they are of this batch
            return
        places = [(batch, row) for row in range(len(self._states))]
        # in C, which no signal interrupts, so that either all states get their values or none
        deque(map(setattr, self._states, repeat("_row"), places), maxlen=0)
        for state in self._states:
            for name in batch.names:  # the batch has them
                state._own.pop(name, None)


def _joined(parts: Sequence[np.ndarray], axis: int, read: Sequence[Any]) -> np.ndarray:
    """Return rows joined along an axis, without a copy if the last run left them adjacent.

    A row along the first axis is a view of the array that the run has written. Of rows whose parts
    that are read are known (``read``), only these are copied.
    """
    whole = parts[0].base
    if len(parts) == 1 and (not isinstance(whole, np.ndarray) or whole.nbytes == parts[0].nbytes):
        return parts[0]  # it has its memory alone
    if axis == 0 and whole is not None and len(whole) == len(parts):
        first, step = address_of(whole), whole.strides[0]
        if all(
            part.base is whole and address_of(part) == first + row * step
            for row, part in enumerate(parts)
        ):
            return whole
    if axis != 0 or not all(part.flags.c_contiguous for part in parts):
        return np.concatenate(parts, axis)
    # most of a cache of a long context is zeros, which take no memory
    rows = lazy_zeros((len(parts), *parts[0].shape[1:]), parts[0].dtype)
    for row, (part, index) in enumerate(zip(parts, read, strict=True)):
        to = rows[row : row + 1]
        if index is None:
            copy_written(to, part)
        else:
            to[index] = part[index]
    return rows


class _Count(NamedTuple):
    """Dim of an input that counts the rows: ``factor * rows + addend``."""

    name: str
    place: int
    axis: int
    factor: int
    addend: int


class EntryStates:
    """Access to the states that the runs of one entry read and write.

    Parameters
    ----------
    plan : Plan
        Of the entry.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan.without_values()
        self._generator = plan.generator
        self._doubled = _doubled(plan)
        self._names = tuple(plan.states)
        self._others = [name for name in plan.states if name != self._generator]
        axes = {name: _batch_axis(plan, name) for name in self._others}
        self._counts = _counts(plan, axes)
        # a step of a decoder has many states and little time
        self._row_axes = {name: axis for name, axis in axes.items() if axis is not None}
        self._unbatched = next((name for name in axes if name not in self._row_axes), None)
        self._rewind = read_rewind_rule(plan)

    def run(
        self,
        executor: PlanExecutor,
        state: State | Sequence[State],
        inputs: Sequence[np.ndarray],
        out: Sequence[np.ndarray | None] | None,
        seed: int | None = None,
        stop: Stop | None = None,
    ) -> list[np.ndarray]:
        """Run once from the present state to the next; return the plan's outputs.

        Parameters
        ----------
        executor : PlanExecutor
        state : State or sequence of State
            Distinct states, one for each row of the batch.
        inputs, out, stop
            As for :meth:`.PlanExecutor.run`, without states.
        seed : int, optional
            A seed for the random numbers of this run alone.

        Raises
        ------
        InputError
            As :meth:`.PlanExecutor.run`, or if several states cannot form a batch, or a row cannot
            go on where an input says.
        """
        plan = self._plan
        count = len(plan.outputs)
        out = out or [None] * count
        one = state if isinstance(state, State) else state[0]
        own = {}
        if self._generator is not None and (seed is not None or one._seed is None):
            own = {self._generator: new_state(seed)}
        if own and not self._others:
            return executor.run([*inputs, *own.values()], [*out, None], stop=stop)[:count]
        held = state if isinstance(state, State) else StateRows(state, self._batch_axes(own))
        for at in self._counts:
            _check_count(at, inputs[at.place], held.rows)
        kept = [name for name in self._doubled if name not in own]
        with held.take(stop):
            names = tuple([n for n in self._names if n not in own]) if own else self._names
            arrays = held.present(names)
            if own:
                arrays = {**arrays, **own}
            if self._rewind is not None:
                position = inputs[plan.inputs.index(self._rewind.position)]
                self._rewind.check(arrays[self._rewind.reached], position)
            spare = {**held.following(kept), **dict.fromkeys(own)}
            outputs = executor.run(
                [*inputs, *map(arrays.__getitem__, self._names)],
                [*out, *(spare[name] for name in self._doubled)],
                stop=stop,
            )
            held.advance(kept)
        return outputs[:count]

    def _batch_axes(self, own: Mapping[str, object]) -> Mapping[str, int]:
        """Return the axis of each state that counts rows, if all states have one."""
        if self._generator is not None and not own:
            raise InputError(
                "state: expected one State, because all rows of a batch draw from one generator; "
                "RunOptions.seed gives a run of several states a generator of its own"
            )
        if self._unbatched is not None:
            raise InputError(
                f"state: expected one State, because state {self._unbatched!r} of shape "
                f"{self._plan.tensors[self._unbatched].shape} has no dim that varies with the "
                "batch; got a list"
            )
        return self._row_axes


def _doubled(plan: Plan) -> list[str]:
    """Return the states that a run does not write in place."""
    return [name for name in plan.states if not plan.is_in_place(name)]


def _batch_axis(plan: Plan, state: str) -> int | None:
    """Return the axis of a state that counts the rows of a batch: the one that varies."""
    shape = plan.tensors[state].shape
    return next((axis for axis, size in enumerate(shape) if not is_static(size)), None)


def _counts(plan: Plan, axes: Mapping[str, int | None]) -> list[_Count]:
    """Return the dims of inputs from which the number of rows can be read."""
    varying = [(name, axis) for name, axis in axes.items() if axis is not None]
    if not varying:
        return []
    name, axis = varying[0]
    batch = str(plan.tensors[name].shape[axis])
    found = []
    for place, each in enumerate(plan.inputs):
        for at, size in enumerate(plan.tensors[each].shape):
            solution = linear(size)
            if solution is not None and solution[0] == batch:
                found.append(_Count(each, place, at, *solution[1:]))
    return found


def _check_count(at: _Count, array: object, rows: int) -> None:
    """Check that an input has as many rows as there are states."""
    shape = getattr(array, "shape", ())
    if len(shape) <= at.axis:
        return  # the executor reports what is wrong
    got, rest = divmod(shape[at.axis] - at.addend, at.factor)
    if got != rows and not rest:
        raise InputError(
            f"state: expected {got} states, one for each row of the batch in dimension {at.axis} "
            f"of input {at.name!r}, got {rows}"
        )
