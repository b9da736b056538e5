"""Implement persistent variables with indices: tables, growing tensors, and tables of these.

Such a variable lies in one array, the *box*. Its first axes are those of the table, one for each
index that selects entries; the rest are those of an entry. Each axis has an extent, which the
program sees, and a capacity, which doubles when the extent exceeds it. Cells that were never
written hold the initial value. An access is checked completely first, so that a failing access
changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taper_openinfer.errors import StepError
from taper_openinfer.simulator.access import filled_box, show_access, wrong_shape
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taper_openinfer.simulator.access import Index, Keep


class BoxAxis(NamedTuple):
    """One axis of a cache's box.

    Attributes
    ----------
    name : str
        The name of the index that selects along the axis; empty if none does.
    base : int
        The extent before anything is written; an entry's axis never has less.
    limit : int or None
        The limit of the table's size, or of the count of an axis that grows.
    is_table : bool
        Whether the axis selects entries.
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
) -> tuple[BoxAxis, ...]:
    """Return the axes of a declaration; ``A(l, i): f32[D] @table @auto_dim(i)`` has two, l and i.

    Parameters
    ----------
    shape : sequence of int
        The shape of an entry, as declared.
    indices : sequence of str
        All indices, in the order of the declaration.
    auto_dim : sequence of str
        The indices along which an entry grows: one for each dim of ``shape``, or none.
    fixed : mapping of str to int
        The limits of indices and counts.
    """
    fixed = fixed or {}
    table = [name for name in indices if name not in auto_dim]
    grown = list(auto_dim) or [""] * len(shape)
    return (
        *(BoxAxis(name, fixed.get(name, 0), fixed.get(name), is_table=True) for name in table),
        *(BoxAxis(name, dim, fixed.get(name)) for name, dim in zip(grown, shape, strict=True)),
    )


class Box:
    """The memory of a table, of a growing tensor, or of a table of growing tensors.

    Parameters
    ----------
    name : str
    axes : sequence of BoxAxis
        The axes; those of the table come first.
    indices : sequence of str
    fill : numpy.ndarray
    """

    def __init__(
        self, name: str, axes: Sequence[BoxAxis], indices: Sequence[str], fill: np.ndarray
    ) -> None:
        """Make an empty box: no memory is allocated before the first write."""
        self.name = name
        self.indices = tuple(indices)
        self._axes = tuple(axes)
        self._fill = fill
        self._table_rank = sum(axis.is_table for axis in axes)
        places = {axis.name: place for place, axis in enumerate(axes)}
        self._places = tuple(places[index] for index in indices)
        self._extents = tuple(axis.base for axis in axes)
        self._box: np.ndarray | None = None
        self._written: np.ndarray | None = None  # the written entries of a table
        # whether it is a table whose entries do not grow
        self._is_table = self._table_rank == len(self.indices)
        self._entry = self.entry_shape  # the empty entry of such a table
        # The view of the last read, and the access and the extents it was made for.
        self._view: tuple[Sequence[Index], tuple[int, ...], np.ndarray] | None = None

    # -- what a program sees ---------------------------------------------------------------------

    @property
    def is_loaded(self) -> bool:
        """See :class:`Cache`."""
        return self._box is not None

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the number of entries along each index of the table."""
        return self._extents[: self._table_rank]

    @property
    def entry_shape(self) -> tuple[int, ...]:
        """Return the shape of an entry: as declared, plus the counts."""
        return self._extents[self._table_rank :]

    def count(self, index: str) -> int:
        """See :class:`Cache`."""
        place = self._place(index)
        return self._extents[place] - self._axes[place].base

    def read(self, access: Sequence[Index] = ()) -> np.ndarray:
        """See :class:`Cache`."""
        view = self._view
        if view is not None and view[0] == access and view[1] is self._extents:
            return view[2]
        box = self._box
        plain = self._plain_cut(access) if box is not None and self._is_table else None
        if plain is None:
            extents, cut = self._resolve(access)
            self._grow(extents)
            box, plain = self._box, (*cut, ...)
        assert box is not None
        array: np.ndarray = box[plain]
        is_view = array.flags.c_contiguous
        if not is_view:
            array = array.copy()
        array.flags.writeable = False
        self._view = (access, self._extents, array) if is_view else None
        return array

    def write(self, access: Sequence[Index], value: np.ndarray, keep: Keep | None = None) -> None:
        """See :class:`Cache`."""
        box, written = self._box, self._written
        cell: tuple[Any, ...] = tuple(access)
        is_inside = self._is_inside(cell, self._extents)
        if box is None or written is None or not (is_inside or self._is_inside(cell, box.shape)):
            self._write_anew(access, value, keep)
            return
        if value.shape != self._entry:
            raise wrong_shape(self.name, self._entry, value)
        if keep is not None:
            keep(box[(*cell, ...)])
        box[cell] = value
        written[cell] = True
        if not is_inside:
            sizes = [max(size, index + 1) for size, index in zip(self._extents, cell, strict=False)]
            self._extents = (*sizes, *self._extents[self._table_rank :])

    def _write_anew(self, access: Sequence[Index], value: np.ndarray, keep: Keep | None) -> None:
        """Write an entry that may not exist yet, or lie outside the capacity."""
        if len(access) != len(self.indices) or any(type(index) is not int for index in access):
            raise StepError(
                f"{self.name}: expected one position for each of the indices "
                f"({', '.join(self.indices)}) in a write, got {show_access(access)}"
            )
        extents, cut = self._resolve(access)
        shape = extents[self._table_rank :]
        if value.shape != shape:
            raise wrong_shape(self.name, shape, value)
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
            self._box = self._written = self._view = None
            self._extents = tuple(axis.base for axis in self._axes)
            return
        if len(access) > len(self.indices):
            raise StepError(f"{self.name}: {self._too_many(access)}")
        prefix: list[int | slice] = [slice(None)] * self._table_rank
        for index, place in zip(access, self._places, strict=False):
            if type(index) is not int:
                raise StepError(
                    f"{self.name}: expected positions in a reset, got {show_access(access)}"
                )
            if place >= self._table_rank:
                raise StepError(
                    f"{self.name}: expected no index of @auto_dim in a reset, got one for "
                    f"{self._axes[place].name}"
                )
            self._check_position(place, index)
            prefix[place] = index
        self._drop(tuple(prefix), keep)

    def holds(self, array: np.ndarray) -> bool:
        """See :class:`Cache`."""
        return self._box is not None and array.base is self._box

    def _is_inside(self, cell: tuple[Index, ...], extents: tuple[int, ...]) -> bool:
        """Return whether ``cell`` is a position within ``extents`` along each table index."""
        if len(cell) != self._table_rank or not self._is_table:
            return False
        for index, extent in zip(cell, extents, strict=False):
            if type(index) is not int or not 0 <= index < extent:
                return False
        return True

    def _plain_cut(self, access: Sequence[Index]) -> tuple[Any, ...] | None:
        """Return the numpy index of an access to a table, or None if it must be resolved.

        It must be resolved if it may be invalid, makes the table grow, or counts from the end.
        """
        sizes = self._extents
        if len(access) > self._table_rank:
            return None
        cut: list[int | slice] = []
        for index, size in zip(access, sizes, strict=False):
            if isinstance(index, tuple):
                start, end = index
                begin, stop = start or 0, size if end is None else end
                if not 0 <= begin <= stop <= size:
                    return None
                cut.append(slice(begin, stop))
            elif 0 <= index < size:
                cut.append(index)
            else:
                return None
        cut += [slice(0, size) for size in sizes[len(cut) : self._table_rank]]
        return (*cut, ...)

    # -- selecting --------------------------------------------------------------------------------

    def _resolve(self, access: Sequence[Index]) -> tuple[tuple[int, ...], tuple[int | slice, ...]]:
        """Return the extents that an access needs, and its numpy index into a box of them."""
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
        """Raise StepError for an index that is negative, or above the limit of @fixed."""
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
        """Return the ends of a slice along an axis of this extent."""
        axis = self._axes[place]
        begin = 0 if start is None else start
        stop = extent if end is None else end if end >= 0 else extent + end
        shown = show_access([(start, end)])
        if begin < 0:
            raise StepError(
                f"{self.name}: index {axis.name}: expected a start of at least 0, got {shown}"
            )
        if stop < begin:
            raise StepError(
                f"{self.name}: index {axis.name}: expected an end of at least {begin}, the start, "
                f"got {shown} of {extent}, which ends at {stop}"
            )
        if stop > extent and not axis.is_table:
            raise StepError(
                f"{self.name}: index {axis.name}: expected an end of at most {extent}, because "
                f"slices of @auto_dim do not grow, got {shown}"
            )
        if axis.limit is not None and axis.is_table and stop > axis.limit:
            raise self._beyond(axis, stop, f"an end of at most {axis.limit}")
        return begin, stop

    def _beyond(self, axis: BoxAxis, index: int, expected: str) -> StepError:
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
        """Grow the box to at least these extents and keep its contents."""
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
            # grown before the box, whose shape says that there is room in both
            self._written = written
            self._box = grown
        self._extents = extents

    def _allocate(self, extents: tuple[int, ...]) -> np.ndarray:
        held = self._box.shape if self._box is not None else (0,) * len(extents)
        shape = tuple(map(self._capacity, self._axes, held, extents))
        return filled_box(self.name, shape, self._fill)

    @staticmethod
    def _capacity(axis: BoxAxis, held: int, extent: int) -> int:
        """Return the capacity of an axis: twice the present one, if that is enough and allowed."""
        if extent <= held:
            return held
        if extent == axis.base:
            return extent
        most = extent * 2
        if axis.limit is not None:
            most = axis.limit if axis.is_table else axis.base + axis.limit
        return max(extent, min(held * 2, most))

    def _drop(self, prefix: tuple[int | slice, ...], keep: Keep | None) -> None:
        """Reset entries, and shrink the table's sizes to the entries that are left."""
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
