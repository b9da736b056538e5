"""Keep persistent variables as states of a plan.

The simulator's box of a cache (:mod:`taper_openinfer.simulator.boxes`) grows; a state has
one shape. So a state has the largest shape of the box, and an access reads the part that the box
would have at that point. This needs extents that follow from the program alone, whatever earlier
steps did.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from taper_openinfer.compiler.refusal import CannotLower
from taper_openinfer.compiler.scope import filled
from taper_openinfer.language.graph import Single, Slice
from taper_openinfer.simulator.boxes import BoxAxis, make_axes
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from taper_openinfer.compiler.scope import Scope
    from taper_openinfer.language.graph import Access
    from taper_openinfer.link import LinkedVariable

#: One index of an access: a position, the tensor that holds it, or the ends of a slice.
Index = int | str | tuple[int | str | None, int | str | None]

#: Up to so many entries of a table, the lowering tracks which of them are written.
_FOLLOWED = 4096


@dataclass(frozen=True)
class KnownBox:
    """Facts about a cache's box at one point of the program, whatever earlier steps did.

    Attributes
    ----------
    least, most : tuple of int
        The smallest and the largest extent of each axis.
    written, unwritten : frozenset of tuple of int
        Positions of entries that are written by now in every run, and in no run.
    """

    least: tuple[int, ...]
    most: tuple[int, ...]
    written: frozenset[tuple[int, ...]] = frozenset()
    unwritten: frozenset[tuple[int, ...]] = frozenset()

    def with_entry(self, place: tuple[int | str | range, ...]) -> KnownBox:
        """Return what is known after an entry at these places has been written.

        A place is a known position, a range of positions, or the name of a tensor that holds it.
        """
        known = tuple(index for index in place if isinstance(index, int))
        if len(known) < len(place):
            return replace(self, unwritten=frozenset())
        return replace(self, written=self.written | {known}, unwritten=self.unwritten - {known})

    def joined(self, other: KnownBox) -> KnownBox:
        """Return what is known if either of two boxes may be the current one."""
        return KnownBox(
            tuple(map(min, self.least, other.least)),
            tuple(map(max, self.most, other.most)),
            self.written & other.written,
            self.unwritten & other.unwritten,
        )


class Cut(NamedTuple):
    """The part that an access selects per axis: a position, a tensor that holds it, or a range."""

    of: tuple[int | str | range, ...]


class CompiledCache:
    """Keeps one persistent variable with indices as a state.

    Parameters
    ----------
    variable : LinkedVariable
    dtype : str
        Taper's.
    reached : sequence of int or None
        For each index the largest size, or count, that the program gives it; None if only a run
        knows it.
    first : numpy.ndarray
        The initial value of each element, without dims.
    """

    def __init__(
        self,
        variable: LinkedVariable,
        dtype: str,
        reached: Sequence[int | None],
        first: np.ndarray,
    ) -> None:
        declared = variable.declaration
        self.name, self.dtype, self.first = declared.name, dtype, first
        self.indices = tuple(declared.table_indices)
        axes = make_axes(variable.shape, self.indices, declared.auto_dim, declared.fixed)
        self.axes = axes
        self.rank = sum(axis.is_table for axis in axes)
        places = {axis.name: place for place, axis in enumerate(axes)}
        self._places = tuple(places[index] for index in self.indices)
        sizes = dict(zip(self.indices, reached, strict=True))
        self.shape = tuple(self._capacity(axis, sizes.get(axis.name, 0)) for axis in axes)

    def _capacity(self, axis: BoxAxis, reached: int | None) -> int:
        if axis.limit is not None:
            return axis.limit if axis.is_table else axis.base + axis.limit
        if reached is None:
            raise CannotLower(
                f"{self.name}: expected a limit of index {axis.name}, because a state has a fixed "
                f"size, got an index that depends on the run; @fixed({axis.name}=N) sets a limit"
            )
        return reached if axis.is_table else axis.base + reached

    # -- what is known of the size ---------------------------------------------------------------

    @property
    def base(self) -> tuple[int, ...]:
        """Return the extents before anything is written."""
        return tuple(axis.base for axis in self.axes)

    @property
    def at_start(self) -> KnownBox:
        """Return what is known at the start of a step."""
        return KnownBox(self.base, self.shape)

    @property
    def _empty(self) -> KnownBox:
        return KnownBox(self.base, self.base, frozenset(), frozenset(self._positions()))

    def _positions(self) -> Sequence[tuple[int, ...]]:
        sizes = self.shape[: self.rank]
        return list(product(*map(range, sizes))) if math.prod(sizes) <= _FOLLOWED else []

    def count(self, scope: Scope, index: str) -> int | None:
        """Return how much an ``@auto_dim`` index has grown, or None for another name."""
        for place, axis in enumerate(self.axes):
            if index and axis.name == index and not axis.is_table:
                extent = scope.extents[self.name]
                return self._size(place, extent.least, extent.most) - axis.base
        return None

    def takes_tensors(self, access: Access, name: str) -> bool:
        """Return whether the index ``name`` of an access may be a tensor's value."""
        for place, index in zip(self._places, access.indices, strict=False):
            axis = self.axes[place]
            if isinstance(index, Slice) and name in (index.start, index.end):
                return False
            if index == Single(name) and not (axis.is_table and axis.limit is not None):
                return False
        return True

    # -- accesses --------------------------------------------------------------------------------

    def read(self, scope: Scope, access: Sequence[Index]) -> str:
        """Return the tensor that an access selects."""
        extent, cut = self._resolve(scope.extents[self.name], access)
        scope.extents[self.name] = extent
        tensor = scope.values[self.name]
        for axis, part in enumerate(cut.of):
            if isinstance(part, str):
                place = scope.reshape(self._checked(scope, axis, part), (1,))
                name = f"{self.name}.read"
                tensor = scope.emit("INDEX_SELECT", [tensor, place], name=name, axis=axis)
            elif isinstance(part, int):
                tensor = scope.slice(tensor, axis, part, part + 1)
            else:
                tensor = scope.slice(tensor, axis, part.start, part.stop)
        return scope.reshape(tensor, [len(part) for part in cut.of if isinstance(part, range)])

    def write(self, scope: Scope, access: Sequence[Index], value: str) -> None:
        """Write an entry; a variable that is no table is written whole."""
        if len(access) != len(self.indices) or any(isinstance(i, tuple) for i in access):
            raise CannotLower(
                f"{self.name}: expected a position for each of its indices in a write"
            )
        extent, cut = self._resolve(scope.extents[self.name], access)
        shape = tuple(len(part) for part in cut.of[self.rank :] if isinstance(part, range))
        if scope.type(value).shape != shape:
            got = scope.type(value).shape
            raise CannotLower(f"{self.name}: expected a value of shape {shape}, got {got}")
        if self.rank == 0:
            scope.values[self.name] = _paste(scope, scope.values[self.name], value)
        else:
            whole = self.shape[self.rank :]
            if shape != whole:
                value = _paste(scope, self._entry(scope, cut), value)
            self._put(scope, cut.of[: self.rank], value)
            extent = extent.with_entry(cut.of[: self.rank])
        scope.extents[self.name] = extent

    def _entry(self, scope: Scope, cut: Cut) -> str:
        tensor = scope.values[self.name]
        for axis, part in enumerate(cut.of[: self.rank]):
            if isinstance(part, str):
                place = scope.reshape(self._checked(scope, axis, part), (1,))
                tensor = scope.emit("INDEX_SELECT", [tensor, place], axis=axis)
            elif isinstance(part, int):
                tensor = scope.slice(tensor, axis, part, part + 1)
        return scope.reshape(tensor, self.shape[self.rank :])

    def reset(self, scope: Scope, access: Sequence[Index]) -> None:
        """Go back to the initial state, or drop the entries whose first indices are these."""
        if not access:
            scope.extents[self.name] = self._empty
            constant = filled(self.first, self.dtype, self.shape)
            scope.values[self.name] = scope.graph.add_constant(f"{self.name}.first", constant)
            return
        prefix = [i for i in access if not isinstance(i, tuple)]
        places = self._places[: len(access)]
        if len(prefix) < len(access) or len(access) > self.rank or max(places) >= self.rank:
            raise CannotLower(f"{self.name}: expected only positions in the table in a reset")
        for axis, index in enumerate(prefix):
            self._check_position(axis, index)
        row = filled(self.first, self.dtype, self.shape[len(prefix) :])
        self._put(scope, prefix, scope.graph.add_constant(f"{self.name}.first", row))
        scope.extents[self.name] = self._dropped(scope.extents[self.name], tuple(prefix))

    def _dropped(self, extent: KnownBox, prefix: tuple[int | str, ...]) -> KnownBox:
        """Return what is known after entries were dropped; the table shrinks to the rest."""
        exact = all(isinstance(index, int) for index in prefix)
        all_ = frozenset(self._positions())
        dropped = {p for p in all_ if p[: len(prefix)] == prefix} if exact else all_
        written = frozenset(p for p in extent.written if exact and p[: len(prefix)] != prefix)
        unwritten = extent.unwritten | (dropped if exact else frozenset())
        least, most = list(self.base), list(extent.most)
        for axis in range(self.rank):
            least[axis] = max([self.base[axis], *(p[axis] + 1 for p in written)])
            if all_:
                most[axis] = max([self.base[axis], *(p[axis] + 1 for p in all_ - unwritten)])
        least[self.rank :] = extent.least[self.rank :]
        return KnownBox(tuple(least), tuple(most), written, frozenset(unwritten))

    # -- inside ----------------------------------------------------------------------------------

    def _put(self, scope: Scope, places: Sequence[int | str | range], value: str) -> None:
        """Write ``value`` to the state at these positions of the first axes."""
        count = math.prod(self.shape[: len(places)])
        rest = self.shape[len(places) :]
        flat = scope.reshape(scope.values[self.name], (count, *rest))
        place = scope.reshape(self._flat_place(scope, places), (1,))
        source = scope.reshape(value, (1, *rest))
        written = scope.emit("WRITE", [flat, place, source], name=f"{self.name}.write", axis=0)
        scope.values[self.name] = scope.reshape(written, self.shape)

    def _flat_place(self, scope: Scope, places: Sequence[int | str | range]) -> str:
        """Return the position among all entries, as int64, or one past the end if it is invalid."""
        fixed, moving, inside = 0, "", ""
        for axis, place in enumerate(places):
            stride = math.prod(self.shape[axis + 1 : len(places)])
            if isinstance(place, int):
                fixed += place * stride
                continue
            assert isinstance(place, str)
            place = scope.cast(place, "int64")
            for op, limit in (("GE", 0), ("LT", self.shape[axis])):
                test = scope.binary(op, place, limit)
                inside = scope.emit("LOGICAL_AND", [inside, test]) if inside else test
            part = scope.binary("MUL", place, stride) if stride != 1 else place
            moving = scope.emit("ADD", [moving, part]) if moving else part
        if not moving:
            return scope.constant(fixed, "int64", f"{self.name}.place")
        total = scope.binary("ADD", moving, fixed) if fixed else moving
        return scope.emit(
            "WHERE",
            [inside, total],
            name=f"{self.name}.place",
            scalar=math.prod(self.shape[: len(places)]),
            scalar_index=2,
        )

    def _checked(self, scope: Scope, axis: int, place: str) -> str:
        """Return a position along an axis, or one past the end if it is negative."""
        place = scope.cast(place, "int64")
        test = scope.binary("GE", place, 0)
        size = self.shape[axis]
        return scope.emit("WHERE", [test, place], scalar=size, scalar_index=2)

    def _resolve(self, extent: KnownBox, access: Sequence[Index]) -> tuple[KnownBox, Cut]:
        """Return what is known after an access, and the part of the box that it selects."""
        if len(access) > len(self.indices):
            raise CannotLower(
                f"{self.name}: expected at most {len(self.indices)} indices, got {len(access)}"
            )
        least, most = list(extent.least), list(extent.most)
        cut: list[int | str | range | None] = [None] * len(self.axes)
        slices: list[tuple[int, int | str | None, int | str | None]] = []
        for place, index in zip(self._places, access, strict=False):
            axis = self.axes[place]
            if isinstance(index, tuple):
                slices.append((place, *index))
                continue
            self._check_position(place, index)
            if axis.is_table:
                cut[place] = index
            elif isinstance(index, str):
                raise CannotLower(
                    f"{self.name}: expected a position of index {axis.name} that is known before "
                    "a run, because the shape depends on it"
                )
            if isinstance(index, int):
                size = index + 1 if axis.is_table else axis.base + index
                least[place], most[place] = max(least[place], size), max(most[place], size)
        for place, start, end in slices:
            begin, stop = self._bounds(place, start, end, least, most)
            least[place], most[place] = max(least[place], stop), max(most[place], stop)
            cut[place] = range(begin, stop)
        whole = [
            part if part is not None else range(self._size(axis, least, most))
            for axis, part in enumerate(cut)
        ]
        known = replace(extent, least=tuple(least), most=tuple(most))
        return known, Cut(tuple(whole))

    def _size(self, axis: int, least: Sequence[int], most: Sequence[int]) -> int:
        """Return the extent along an axis, or raise CannotLower if it is unknown."""
        if least[axis] == most[axis]:
            return least[axis]
        raise CannotLower(
            f"{self.name}: expected a fixed size along {self.axes[axis].name}, got one that "
            f"depends on earlier steps, from {least[axis]} to {most[axis]}; "
            f"@fixed({self.axes[axis].name}=N) gives a table a fixed size"
        )

    def _check_position(self, place: int, index: int | str) -> None:
        """Refuse a position that would fail in every run."""
        axis = self.axes[place]
        if isinstance(index, str):
            return
        if index < 0:
            raise CannotLower(
                f"{self.name}: index {axis.name}: expected a position from 0 on, got {index}"
            )
        if axis.limit is not None and index > axis.limit - axis.is_table:
            what = "positions below" if axis.is_table else "a count of at most"
            raise CannotLower(
                f"{self.name}: index {axis.name}: expected {what} {axis.limit}, which is its "
                f"limit in @fixed, got {index}"
            )

    def _bounds(
        self,
        place: int,
        start: int | str | None,
        end: int | str | None,
        least: Sequence[int],
        most: Sequence[int],
    ) -> tuple[int, int]:
        """Return the ends of a slice, or raise CannotLower if they are unknown."""
        index = self.axes[place].name
        if isinstance(start, str) or isinstance(end, str):
            raise CannotLower(
                f"{self.name}: expected fixed ends of the slice along {index}, got ends that "
                "depend on the run; read a whole table of @fixed size, and mask it"
            )
        if not self.axes[place].is_table and end is not None and end > least[place]:
            raise CannotLower(
                f"{self.name}: index {index}: expected a slice within the size, but {end} may "
                "exceed it"
            )
        begin = start or 0
        stop = end if end is not None and end >= 0 else self._size(place, least, most) + (end or 0)
        limit = self.shape[place]
        if not 0 <= begin <= stop or stop > limit:
            raise CannotLower(
                f"{self.name}: index {index}: expected a slice within 0..{limit}, "
                f"got {begin}..{stop}"
            )
        return begin, stop


def _paste(scope: Scope, box: str, value: str) -> str:
    """Return ``box`` with ``value`` written at the origin."""
    for axis in reversed(range(len(scope.type(box).shape))):
        size, shape = scope.type(box).shape[axis], scope.type(value).shape
        if shape[axis] == size:
            continue
        rest = box
        for other, extent in enumerate(shape):
            if other != axis:
                rest = scope.slice(rest, other, 0, extent)
        rest = scope.slice(rest, axis, shape[axis], size)
        value = scope.emit("CAT", [value, rest], axis=axis)
    return value
