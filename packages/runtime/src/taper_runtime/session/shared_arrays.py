"""Keep values of states in memory that other states map instead of copying."""

from __future__ import annotations

import mmap
import os
import weakref
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.base.buffers import address_of
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NONE: Mapping[str, Any] = MappingProxyType({})


class _Pages(NamedTuple):
    start: int
    shape: tuple[int, ...]
    dtype: np.dtype


class SharedArrays(dict[str, np.ndarray]):
    """Read-only copies of parts of arrays, by name, in one file of memory.

    Parameters
    ----------
    arrays : mapping of str to numpy.ndarray
        C-contiguous.
    parts : mapping of str to slice or tuple of slice
        The parts that are copied, by default all of each.

    Raises
    ------
    OSError
        If the system has no such files, or too little memory.
    """

    # The file has the layout of the arrays, so that a mapping of it is all of them. Where no part
    # was copied it has zeros, which take no memory.

    def __init__(self, arrays: Mapping[str, np.ndarray], parts: Mapping[str, Any] = _NONE) -> None:
        if not hasattr(os, "memfd_create"):
            raise OSError("this system has no files of memory")
        self._places, self._size = _lay_out(arrays)
        self._file = os.memfd_create("taper states")
        weakref.finalize(self, os.close, self._file)
        os.ftruncate(self._file, self._size)
        for name, array in arrays.items():
            start = self._places[name].start - address_of(array)
            for piece in _pieces(array[parts.get(name, ...)]):
                _write(self._file, piece, start + address_of(piece))
        whole = self._mapped(mmap.PROT_READ)
        super().__init__({name: array[parts.get(name, ...)] for name, array in whole.items()})

    def map(self) -> dict[str, np.ndarray]:
        """Return whole arrays with zeros beside the parts; who writes to them changes no others.

        The system copies a page when it is written for the first time.

        Raises
        ------
        OSError
            If they cannot be mapped.
        """
        return self._mapped(mmap.PROT_READ | mmap.PROT_WRITE)

    def _mapped(self, access: int) -> dict[str, np.ndarray]:
        memory = mmap.mmap(self._file, self._size, mmap.MAP_PRIVATE, access)
        return {
            name: np.ndarray(shape, dtype, memory, start)
            for name, (start, shape, dtype) in self._places.items()
        }


def _lay_out(arrays: Mapping[str, np.ndarray]) -> tuple[dict[str, _Pages], int]:
    """Return the place of each array, which begins at a page, and the bytes of all."""
    places, size = {}, 0
    for name, array in arrays.items():
        places[name] = _Pages(size, array.shape, array.dtype)
        size += -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    return places, size


def _pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the contiguous pieces of an array, as large as its axes allow."""
    if array.flags.c_contiguous:
        yield array
    else:
        for row in array:
            yield from _pieces(row)


def _write(file: int, array: np.ndarray, offset: int) -> None:
    """Write all of a contiguous array at an offset in a file."""
    bytes_: Any = array.reshape(-1).view(np.uint8)  # numpy's type hints declare no buffer
    data = memoryview(bytes_)
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written
