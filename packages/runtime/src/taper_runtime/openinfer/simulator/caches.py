"""Persistent variables: scalars and tensors, tables of entries, tensors that grow, tables of these.

What has indices lies in one array, the *box*, whose axes are those of the table (one for each index
that selects entries) and then those of an entry. Each axis has an extent, what a program sees, and
a capacity, which doubles as the extent grows. Cells that nobody has written hold the initial value.
An access is checked whole before anything changes, so that one that fails has changed nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from taper_runtime.openinfer.errors import StepError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: One index of an access: a position, or the start and the end of a slice, None where left out.
Index = int | tuple[int | None, int | None]


class Axis(NamedTuple):
    """One axis of a cache's box.

    Attributes
    ----------
    name : str
        Of the index that selects along it; empty where none does.
    base : int
        Its extent before anything is written; an entry's axis never has less.
    limit : int or None
        The most that its index may reach: the size of a table, the count of an axis that grows.
    is_table : bool
        Whether it selects entries.
    """

    name: str
    base: int
    limit: int | None = None
    is_table: bool = False


def make_axes(
    shape: Sequence[int],
    indices: Sequence[str] = (),
    auto_dim: Sequence[str] = (),
    fixed: Mapping[str, int] | None = None,
) -> tuple[Axis, ...]:
    """Return the axes of a declaration: of ``A(l, i): f32[D] @table @auto_dim(i)``, those of l, i.

    Parameters
    ----------
    shape : sequence of int
        Of an entry, as declared.
    indices : sequence of str
        All that the declaration names, in its order.
    auto_dim : sequence of str
        Those along which an entry grows: one for each dim of ``shape``, or none at all.
    fixed : mapping of str to int
        Limits.
    """
    fixed = fixed or {}
    table = [name for name in indices if name not in auto_dim]
    grown = list(auto_dim) or [""] * len(shape)
    return (
        *(Axis(name, fixed.get(name, 0), fixed.get(name), is_table=True) for name in table),
        *(Axis(name, dim, fixed.get(name)) for name, dim in zip(grown, shape, strict=True)),
    )


#: Is given the cells that are about to change, so that what has views of them copies these.
Keep = Callable[[np.ndarray], None]


class Cache(Protocol):
    """One persistent variable of one executor.

    Attributes
    ----------
    name : str
        For messages.
    indices : tuple of str
        What an access may give, in order.
    """

    name: str
    indices: tuple[str, ...]

    @property
    def is_loaded(self) -> bool:
        """Whether an access has needed its memory."""

    def read(self, access: Sequence[Index] = ()) -> np.ndarray:
        """Return what an access selects, growing what it makes grow.

        Returns
        -------
        numpy.ndarray
            C-contiguous and read-only. It may be a view of this cache, which a later write or reset
            changes: :meth:`holds` tells.
        """

    def write(self, access: Sequence[Index], value: np.ndarray, keep: Keep | None = None) -> None:
        """Write one entry, or the whole of what is no table; every index is a position."""

    def reset(self, access: Sequence[Index] = (), keep: Keep | None = None) -> None:
        """Go back to the initial state, or drop the entries whose first indices are these."""

    def holds(self, array: np.ndarray) -> bool:
        """Whether ``array`` is a view of memory that this cache writes to."""

    def count(self, index: str) -> int:
        """Return how much the axis of an index of ``@auto_dim`` has grown."""


def make_cache(
    name: str,
    shape: Sequence[int],
    fill: np.ndarray,
    indices: Sequence[str] = (),
    auto_dim: Sequence[str] = (),
    fixed: Mapping[str, int] | None = None,
) -> Cache:
    """Return an empty cache, as its declaration has it.

    Parameters
    ----------
    name : str
    shape : sequence of int
        Of an entry, as declared.
    fill : numpy.ndarray
        The initial value of every element: an array without dims, of the variable's storage dtype.
    indices, auto_dim, fixed
        See :func:`make_axes`.
    """
    if not indices:
        return Whole(name, tuple(shape), fill)
    return Box(name, make_axes(shape, indices, auto_dim, fixed), indices, fill)


class Whole:
    """A scalar or a tensor, which is read and written whole: an array that takes another's place.

    Parameters
    ----------
    name : str
    shape : tuple of int
    fill : numpy.ndarray
    """

    indices: tuple[str, ...] = ()

    def __init__(self, name: str, shape: tuple[int, ...], fill: np.ndarray) -> None:
        self.name = name
        self._shape, self._fill = shape, fill
        self._value: np.ndarray | None = None

    @property
    def is_loaded(self) -> bool:
        """See :class:`Cache`."""
        return self._value is not None

    def read(self, access: Sequence[Index] = ()) -> np.ndarray:
        """See :class:`Cache`."""
        if access:
            raise self._no_indices(access)
        if self._value is None:
            self._value = _filled(self.name, self._shape, self._fill)
        return self._value

    def write(self, access: Sequence[Index], value: np.ndarray, keep: Keep | None = None) -> None:
        """See :class:`Cache`."""
        if access:
            raise self._no_indices(access)
        if value.shape != self._shape:
            raise _wrong_shape(self.name, self._shape, value)
        self._value = value if value.base is None else value.copy()  # of a cache's memory

    def reset(self, access: Sequence[Index] = (), keep: Keep | None = None) -> None:
        """See :class:`Cache`."""
        if access:
            raise self._no_indices(access)
        self._value = None

    def holds(self, array: np.ndarray) -> bool:
        """See :class:`Cache`."""
        return False

    def count(self, index: str) -> int:
        """See :class:`Cache`."""
        raise KeyError(index)

    def _no_indices(self, access: Sequence[Index]) -> StepError:
        return StepError(f"{self.name}: expected no indices, got {show_access(access)}")


class Box:
    """A table, a tensor that grows, or both.

    Parameters
    ----------
    name : str
    axes : sequence of Axis
        Those of the table first.
    indices : sequence of str
    fill : numpy.ndarray
    """

    def __init__(
        self, name: str, axes: Sequence[Axis], indices: Sequence[str], fill: np.ndarray
    ) -> None:
        self.name = name
        self.indices = tuple(indices)
        self._axes = tuple(axes)
        self._fill = fill
        self._table_rank = sum(axis.is_table for axis in axes)
        places = {axis.name: place for place, axis in enumerate(axes)}
        self._places = tuple(places[index] for index in indices)
        self._extents = tuple(axis.base for axis in axes)
        self._box: np.ndarray | None = None
        self._written: np.ndarray | None = None  # which entries of a table were

    # -- what a program sees ---------------------------------------------------------------------

    @property
    def is_loaded(self) -> bool:
        """See :class:`Cache`."""
        return self._box is not None

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many entries a table has along each of its indices."""
        return self._extents[: self._table_rank]

    @property
    def entry_shape(self) -> tuple[int, ...]:
        """The shape of an entry: as declared, plus the counts."""
        return self._extents[self._table_rank :]

    def count(self, index: str) -> int:
        """See :class:`Cache`."""
        place = self._place(index)
        return self._extents[place] - self._axes[place].base

    def read(self, access: Sequence[Index] = ()) -> np.ndarray:
        """See :class:`Cache`."""
        extents, cut = self._resolve(access)
        self._grow(extents)
        assert self._box is not None
        array = self._box[(*cut, ...)]  # an array, of a scalar too
        if not array.flags.c_contiguous:
            array = array.copy()
        array.flags.writeable = False
        return array

    def write(self, access: Sequence[Index], value: np.ndarray, keep: Keep | None = None) -> None:
        """See :class:`Cache`."""
        if len(access) != len(self.indices) or any(type(index) is not int for index in access):
            raise StepError(
                f"{self.name}: a write takes one position for each of its indices "
                f"({', '.join(self.indices)}), got {show_access(access)}"
            )
        extents, cut = self._resolve(access)
        shape = extents[self._table_rank :]
        if value.shape != shape:
            raise _wrong_shape(self.name, shape, value)
        self._grow(extents)
        assert self._box is not None
        cells = self._box[(*cut, ...)]
        if keep is not None:
            keep(cells)
        cells[...] = value
        if self._written is not None:
            self._written[cut[: self._table_rank]] = True

    def reset(self, access: Sequence[Index] = (), keep: Keep | None = None) -> None:
        """See :class:`Cache`."""
        if not access:
            self._box = self._written = None
            self._extents = tuple(axis.base for axis in self._axes)
            return
        if len(access) > len(self.indices):
            raise StepError(f"{self.name}: {self._too_many(access)}")
        prefix: list[int | slice] = [slice(None)] * self._table_rank
        for index, place in zip(access, self._places, strict=False):
            if type(index) is not int:
                raise StepError(f"{self.name}: a reset takes positions, got {show_access(access)}")
            if place >= self._table_rank:
                raise StepError(
                    f"{self.name}: a reset takes no index of @auto_dim, got one for "
                    f"{self._axes[place].name}"
                )
            self._check_position(place, index)
            prefix[place] = index
        self._drop(tuple(prefix), keep)

    def holds(self, array: np.ndarray) -> bool:
        """See :class:`Cache`."""
        return self._box is not None and array.base is self._box

    # -- selecting --------------------------------------------------------------------------------

    def _resolve(self, access: Sequence[Index]) -> tuple[tuple[int, ...], tuple[int | slice, ...]]:
        """Return the extents that an access asks for and what it cuts out of a box of those."""
        if len(access) > len(self.indices):
            raise StepError(f"{self.name}: {self._too_many(access)}")
        extents = list(self._extents)
        slices: list[tuple[int, int | None, int | None]] = []
        cut: list[int | slice] = [slice(None)] * len(extents)
        for place, index in zip(self._places, access, strict=False):
            axis = self._axes[place]
            if isinstance(index, tuple):
                slices.append((place, *index))
                continue
            self._check_position(place, index)
            if axis.is_table:
                cut[place] = index
                extents[place] = max(extents[place], index + 1)
            else:
                extents[place] = max(extents[place], axis.base + index)
        for place, extent in enumerate(extents):
            if type(cut[place]) is slice:
                cut[place] = slice(0, extent)
        for place, start, end in slices:
            begin, stop = self._bounds(place, start, end, extents[place])
            extents[place] = max(extents[place], stop)
            cut[place] = slice(begin, stop)
        return tuple(extents), tuple(cut)

    def _check_position(self, place: int, index: int) -> None:
        """Refuse an index that is negative, or beyond what @fixed allows."""
        axis = self._axes[place]
        if index < 0:
            raise StepError(
                f"{self.name}: index {axis.name}: expected a position from 0 on, got {index}"
            )
        if axis.limit is not None and index > axis.limit - axis.is_table:
            what = "positions below" if axis.is_table else "a count of at most"
            raise self._beyond(axis, index, f"{what} {axis.limit}")

    def _bounds(
        self, place: int, start: int | None, end: int | None, extent: int
    ) -> tuple[int, int]:
        """Return the ends of a slice along an axis of some extent."""
        axis = self._axes[place]
        begin = 0 if start is None else start
        stop = extent if end is None else end if end >= 0 else extent + end
        shown = show_access([(start, end)])
        if begin < 0:
            raise StepError(f"{self.name}: index {axis.name}: {shown} has a negative start")
        if stop < begin:
            raise StepError(
                f"{self.name}: index {axis.name}: {shown} of {extent} ends at {stop}, before its "
                f"start {begin}"
            )
        if stop > extent and not axis.is_table:
            raise StepError(
                f"{self.name}: index {axis.name}: {shown} ends beyond the size {extent}; slices "
                f"of @auto_dim do not grow"
            )
        if axis.limit is not None and axis.is_table and stop > axis.limit:
            raise self._beyond(axis, stop, f"an end of at most {axis.limit}")
        return begin, stop

    def _beyond(self, axis: Axis, index: int, expected: str) -> StepError:
        message = (
            f"{self.name}: index {axis.name}: expected {expected}, which is its limit in @fixed, "
            f"got {index}"
        )
        return StepError(message, variable=self.name, index=axis.name, limit=axis.limit)

    def _place(self, index: str) -> int:
        return next(place for place, axis in enumerate(self._axes) if axis.name == index)

    def _too_many(self, access: Sequence[Index]) -> str:
        return f"expected at most {len(self.indices)} indices, got {show_access(access)}"

    # -- memory -----------------------------------------------------------------------------------

    def _grow(self, extents: tuple[int, ...]) -> None:
        """Have a box of at least these extents, with what was in it, and take them on."""
        box = self._box
        if box is None or any(map(int.__gt__, extents, box.shape)):
            grown = self._allocate(extents)
            if box is not None:
                inside = tuple(map(slice, self._extents))
                grown[inside] = box[inside]
            written = None
            if self._table_rank:
                written = np.zeros(grown.shape[: self._table_rank], bool)
                if self._written is not None:
                    inside = tuple(map(slice, self.sizes))
                    written[inside] = self._written[inside]
            self._written = written  # before the box, which says that there is room in both
            self._box = grown
        self._extents = extents

    def _allocate(self, extents: tuple[int, ...]) -> np.ndarray:
        held = self._box.shape if self._box is not None else (0,) * len(extents)
        shape = tuple(map(self._capacity, self._axes, held, extents))
        return _filled(self.name, shape, self._fill)

    @staticmethod
    def _capacity(axis: Axis, held: int, extent: int) -> int:
        """Return how long an axis is made for an extent: twice what is held, where that helps."""
        if extent <= held:
            return held
        if extent == axis.base:
            return extent
        most = extent * 2
        if axis.limit is not None:
            most = axis.limit if axis.is_table else axis.base + axis.limit
        return max(extent, min(held * 2, most))

    def _drop(self, prefix: tuple[int | slice, ...], keep: Keep | None) -> None:
        """Set entries back, and the table's sizes to what is left of it."""
        if self._box is None or self._written is None:
            return
        inside = all(
            isinstance(index, slice) or index < extent
            for index, extent in zip(prefix, self._box.shape, strict=False)
        )
        if inside:
            cells = self._box[(*prefix, ...)]
            if keep is not None:
                keep(cells)
            cells[...] = self._fill
            self._written[prefix] = False
        left = np.nonzero(self._written)
        sizes = (
            max(axis.base, int(places.max(initial=-1)) + 1)
            for axis, places in zip(self._axes, left, strict=False)
        )
        self._extents = (*sizes, *self.entry_shape)


def _filled(name: str, shape: tuple[int, ...], fill: np.ndarray) -> np.ndarray:
    """Return an array of one value; memory of zeros costs nothing until it is written."""
    size = math.prod(shape) * fill.dtype.itemsize
    try:
        if size > np.iinfo(np.intp).max:
            raise MemoryError
        is_zero = not fill.tobytes().strip(b"\0")
        return np.zeros(shape, fill.dtype) if is_zero else np.full(shape, fill)
    except MemoryError:
        raise StepError(
            f"{name}: {size} bytes for a shape of {shape} are more than there is memory"
        ) from None


def _wrong_shape(name: str, expected: tuple[int, ...], value: np.ndarray) -> StepError:
    return StepError(f"{name}: expected a value of shape {expected}, got {value.shape}")


def show_access(access: Sequence[Index]) -> str:
    """Return indices as a program spells them: ``[1, 2..]``."""
    words = [
        "..".join("" if end is None else str(end) for end in index)
        if isinstance(index, tuple)
        else str(index)
        for index in access
    ]
    return f"[{', '.join(words)}]"
