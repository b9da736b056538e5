"""Resolve the names in indices and bounds once, so that a step only looks at numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.openinfer import graph as g
from taper_runtime.openinfer.errors import StepError
from taper_runtime.openinfer.simulator.values import python_scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from taper_runtime.openinfer.link import Program
    from taper_runtime.openinfer.simulator.caches import Index
    from taper_runtime.openinfer.simulator.frame import Frame

    Number = Callable[[Frame], int]


class Names:
    """What a name in an index can be.

    Attributes
    ----------
    loops : dict of str to int
        The number of each loops' variable.
    caches : dict of str to int
        The number of each persistent variable.
    """

    def __init__(self, program: Program) -> None:
        self.sizes: Mapping[str, int] = program.model.sizevars
        loops = [
            node.kind.index for node in program.graph.nodes() if isinstance(node.kind, g.Loop)
        ]
        self.loops = {name: number for number, name in enumerate(dict.fromkeys(loops))}
        self._variables = {
            name: variable
            for name, variable in program.variables.items()
            if variable.declaration.kind == g.PERSISTENT
        }
        self.caches = {name: number for number, name in enumerate(self._variables)}

    def number(self, value: g.Value, cache: str | None = None) -> int | Number:
        """Return what gives a value: a sizevar, a count of ``cache``, a loop, a persistent scalar.

        Parameters
        ----------
        value : int or str
        cache : str, optional
            The variable whose access it stands in.
        """
        if isinstance(value, int):
            return value
        if value in self.sizes:
            return self.sizes[value]
        if cache is not None and value in self._variables[cache].declaration.auto_dim:
            place, index = self.caches[cache], value
            return lambda frame: frame.caches[place].count(index)
        if value in self.loops:
            return self._loop(value)
        if value in self.caches:
            return self._scalar(value)
        raise StepError(f"expected the name of a size, a loop or a persistent number, got {value}")

    def _loop(self, name: str) -> Number:
        place = self.loops[name]

        def number(frame: Frame) -> int:
            value = frame.loops[place]
            if value is None:
                raise StepError(f"{name}: expected to be inside its loop")
            return value

        return number

    def _scalar(self, name: str) -> Number:
        place, dtype = self.caches[name], self._variables[name].dtype
        return lambda frame: whole_number(name, dtype, frame.caches[place].read())


def whole_number(name: str, dtype: str, array: object) -> int:
    """Return the one number of a variable as an int.

    Raises
    ------
    StepError
        If there are several, or it is none.
    """
    import numpy as np

    assert isinstance(array, np.ndarray)
    if array.size != 1:
        raise StepError(f"{name}: expected one number, got shape {array.shape}")
    value = python_scalar(dtype, array)
    if value != value or value in (float("inf"), float("-inf")) or value != int(value):
        raise StepError(f"{name}: expected a whole number as index, got {value}")
    return int(value)


def indices_of(access: g.Access, names: Names) -> Callable[[Frame], Sequence[Index]]:
    """Return what gives the indices of an access to a cache."""
    parts = [_part(index, names, access.base) for index in access.indices]
    if all(not callable(part) for part in parts):
        constant = tuple(parts)
        return lambda _: constant  # type: ignore[return-value]
    getters = [part if callable(part) else _constant(part) for part in parts]
    if len(getters) == 1:
        (only,) = getters
        return lambda frame: (only(frame),)
    if len(getters) == 2:
        first, second = getters
        return lambda frame: (first(frame), second(frame))
    return lambda frame: tuple([getter(frame) for getter in getters])


def _part(index: g.Index, names: Names, cache: str) -> Index | Callable[[Frame], Index]:
    """One index, or what gives it."""
    if isinstance(index, g.Single):
        return names.number(index.value, cache)
    ends = [
        None if end is None else names.number(end, cache) for end in (index.start, index.end)
    ]
    if not any(callable(end) for end in ends):
        return (ends[0], ends[1])  # type: ignore[return-value]
    start, end = (_constant(part) if not callable(part) else part for part in ends)
    return lambda frame: (start(frame), end(frame))


def _constant(value: object) -> Callable[[Frame], Index]:
    return lambda _: value  # type: ignore[return-value]


def bounds_of(
    start: g.Value, end: g.Value, names: Names, slots: Mapping[str, tuple[int, str]]
) -> Callable[[Frame], tuple[int, int]]:
    """Return what gives the bounds of a loop: literals, sizevars, or scalar variables.

    Parameters
    ----------
    start, end : int or str
    names : Names
    slots : mapping of str to (int, str)
        The slot and the dtype of each variable that has one.
    """
    first, last = (_bound(bound, names, slots) for bound in (start, end))
    if isinstance(first, int) and isinstance(last, int):
        constant = first, last
        return lambda _: constant
    return lambda frame: (
        first if isinstance(first, int) else first(frame),
        last if isinstance(last, int) else last(frame),
    )


def _bound(
    bound: g.Value, names: Names, slots: Mapping[str, tuple[int, str]]
) -> int | Number:
    if not isinstance(bound, str) or bound in names.sizes or bound not in slots:
        return names.number(bound)
    name = bound
    slot, dtype = slots[name]
    return lambda frame: whole_number(name, dtype, frame.get(slot))


def entry_of(access: g.Access, program: Program, names: Names) -> Callable[[Frame], str]:
    """Return what gives the name of the file's tensor that an entry of a table of weights is."""
    values = {
        index.value: names.number(index.value)
        for index in access.indices
        if isinstance(index, g.Single) and isinstance(index.value, str)
    }
    known: dict[tuple[int, ...], str] = {}
    getters = [value if callable(value) else _number(value) for value in values.values()]

    def name(frame: Frame) -> str:
        numbers = tuple([getter(frame) for getter in getters])
        found = known.get(numbers)
        if found is None:
            given = dict(zip(values, numbers, strict=True))
            found = known[numbers] = program.resolve(access, given)
        return found

    return name


def _number(value: int) -> Number:
    return lambda _: value
