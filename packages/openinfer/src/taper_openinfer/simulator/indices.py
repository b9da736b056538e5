"""Resolve the names in indices and bounds to getters, so that a step looks up no names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_openinfer.errors import StepError
from taper_openinfer.language import graph as g

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from taper_openinfer.link import LinkedProgram
    from taper_openinfer.simulator.access import Index
    from taper_openinfer.simulator.frame import ThreadFrame

    Number = Callable[[ThreadFrame], int]


class Names:
    """The meanings that a name in an index can have.

    Attributes
    ----------
    loops : dict of str to int
        The number of each loops' variable.
    caches : dict of str to int
        The number of each persistent variable.
    """

    def __init__(self, program: LinkedProgram) -> None:
        self.sizes: Mapping[str, int] = program.model.sizevars
        loops = [node.kind.index for node in program.graph.nodes() if isinstance(node.kind, g.Loop)]
        self.loops = {name: number for number, name in enumerate(dict.fromkeys(loops))}
        self._variables = {
            name: variable
            for name, variable in program.variables.items()
            if variable.declaration.kind == g.PERSISTENT
        }
        self.caches = {name: number for number, name in enumerate(self._variables)}

    def number(self, value: g.Value, cache: str | None = None) -> int | Number:
        """Return the value, or the getter, of a sizevar, a count, a loop or a persistent scalar.

        Parameters
        ----------
        value : int or str
        cache : str, optional
            The cache whose access contains the value; its counts can be named.
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
        outside = self._scalar(name) if name in self.caches else None

        def number(frame: ThreadFrame) -> int:
            value = frame.loops[place]
            if value is not None:
                return value
            if outside is None:
                raise StepError(f"{name}: expected a use of the variable inside its loop")
            return outside(frame)

        return number

    def _scalar(self, name: str) -> Number:
        place = self.caches[name]
        return lambda frame: int(frame.caches[place].read())


def whole_number(name: str, array: np.ndarray) -> int:
    """Return the value of an integer variable with one element.

    Raises
    ------
    StepError
        If the variable has several elements.
    """
    if array.size != 1:
        raise StepError(f"{name}: expected one number, got shape {array.shape}")
    return int(array.item())


def indices_of(access: g.Access, names: Names) -> Callable[[ThreadFrame], Sequence[Index]]:
    """Return a function that evaluates the indices of an access to a cache."""
    found: list[Index | Callable[[ThreadFrame], Index]] = [
        _index(index, names, access.base) for index in access.indices
    ]
    known = [index for index in found if not callable(index)]
    if len(known) == len(found):
        return lambda _: known
    getters = [_getter(index) for index in found]
    if len(getters) == 1:
        (only,) = getters
        return lambda frame: (only(frame),)
    if len(getters) == 2:
        first, second = getters
        return lambda frame: (first(frame), second(frame))
    return lambda frame: tuple([getter(frame) for getter in getters])


def _index(index: g.Index, names: Names, cache: str) -> Index | Callable[[ThreadFrame], Index]:
    """Return one index, or a function that evaluates it if it depends on the step."""
    if isinstance(index, g.Single):
        return names.number(index.value, cache)
    start, end = (
        None if end is None else names.number(end, cache) for end in (index.start, index.end)
    )
    if not callable(start) and not callable(end):
        return start, end
    first, last = _getter(start), _getter(end)
    return lambda frame: (first(frame), last(frame))


def _getter(value: Any) -> Callable[[ThreadFrame], Any]:
    """Return a function that returns the value; a function is returned as it is."""
    return value if callable(value) else lambda _: value


def bounds_of(
    start: g.Value, end: g.Value, names: Names, slots: Mapping[str, int]
) -> Callable[[ThreadFrame], tuple[int, int]]:
    """Return a function that evaluates a loop's bounds: literals, sizevars, or scalars.

    Parameters
    ----------
    start, end : int or str
    names : Names
    slots : mapping of str to int
        The slots of the variables that have one.
    """
    first, last = (_bound(bound, names, slots) for bound in (start, end))
    return lambda frame: (first(frame), last(frame))


def _bound(bound: g.Value, names: Names, slots: Mapping[str, int]) -> Number:
    if not isinstance(bound, str) or bound in names.sizes or bound not in slots:
        return _getter(names.number(bound))
    name, slot = bound, slots[bound]
    return lambda frame: whole_number(name, frame.get(slot))


def entry_of(
    access: g.Access, program: LinkedProgram, names: Names
) -> Callable[[ThreadFrame], str]:
    """Return a function that evaluates which tensor of the file a prefix table's entry is."""
    values = {
        index.value: names.number(index.value)
        for index in access.indices
        if isinstance(index, g.Single) and isinstance(index.value, str)
    }
    known: dict[tuple[int, ...], str] = {}
    getters = [_getter(value) for value in values.values()]

    def name(frame: ThreadFrame) -> str:
        numbers = tuple([getter(frame) for getter in getters])
        found = known.get(numbers)
        if found is None:
            given = dict(zip(values, numbers, strict=True))
            found = known[numbers] = program.resolve(access, given)
        return found

    return name
