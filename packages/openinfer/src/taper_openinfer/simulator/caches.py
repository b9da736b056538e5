"""Hold the persistent variables of one executor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from taper_openinfer.errors import StepError
from taper_openinfer.simulator.access import filled_box, show_access, wrong_shape
from taper_openinfer.simulator.boxes import Box, make_axes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from taper_openinfer.simulator.access import Index, Keep


class Cache(Protocol):
    """The interface of one persistent variable of an executor.

    Attributes
    ----------
    name : str
        The name for messages.
    indices : tuple of str
        The indices that an access may have, in order.
    """

    name: str
    indices: tuple[str, ...]

    @property
    def is_loaded(self) -> bool:
        """Return whether an access has allocated the variable's memory."""

    def read(self, access: Sequence[Index] = ()) -> np.ndarray:
        """Return the selected entries; the variable grows if the access says so.

        Returns
        -------
        numpy.ndarray
            C-contiguous and read-only; it may be the same array as that of the read before. It may
            be a view of this cache, which a later write or reset changes: see :meth:`holds`.
        """

    def write(self, access: Sequence[Index], value: np.ndarray, keep: Keep | None = None) -> None:
        """Write one entry, or the whole variable if it is no table; every index is a position."""

    def reset(self, access: Sequence[Index] = (), keep: Keep | None = None) -> None:
        """Restore the initial state, or drop the entries whose first indices are these."""

    def holds(self, array: np.ndarray) -> bool:
        """Return whether ``array`` is a view of memory that this cache may write to."""

    def count(self, index: str) -> int:
        """Return how much the axis of an ``@auto_dim`` index has grown."""


def make_cache(
    name: str,
    shape: Sequence[int],
    fill: np.ndarray,
    indices: Sequence[str] = (),
    auto_dim: Sequence[str] = (),
    fixed: Mapping[str, int] | None = None,
) -> Cache:
    """Return an empty cache for a declaration.

    Parameters
    ----------
    name : str
    shape : sequence of int
        The shape of an entry, as declared.
    fill : numpy.ndarray
        The initial value of every element: an array without dims, of the variable's storage dtype.
    indices, auto_dim, fixed
        See :func:`make_axes`.
    """
    if not indices:
        return Whole(name, tuple(shape), fill)
    return Box(name, make_axes(shape, indices, auto_dim, fixed), indices, fill)


class Whole:
    """A scalar or a tensor that is read and written whole; a write replaces the array.

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
            self._value = filled_box(self.name, self._shape, self._fill)
        return self._value

    def write(self, access: Sequence[Index], value: np.ndarray, keep: Keep | None = None) -> None:
        """See :class:`Cache`."""
        if access:
            raise self._no_indices(access)
        if value.shape != self._shape:
            raise wrong_shape(self.name, self._shape, value)
        self._value = value if value.base is None else value.copy()  # a view of a cache's memory

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
