"""Make arrays that kernels can read: aligned, and read-only."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.base.checks import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from mmap import mmap

#: Bytes of the system's pages, mostly; and from which on zeros are mapped.
_PAGE, _LAZY = 4096, 1 << 17


def aligned_array(array: np.ndarray, boundary: int = ALIGNMENT) -> np.ndarray:
    """Return a contiguous array itself if it is aligned, else a read-only aligned copy."""
    return array if is_aligned(array, boundary) else aligned_copy(array)


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """Return a C-contiguous, read-only copy, aligned to :data:`ALIGNMENT` bytes."""
    copy = aligned_bytes(array.nbytes).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return read_only(copy)


def read_only(array: np.ndarray) -> np.ndarray:
    """Return a view of a C-contiguous array that cannot be made writable again.

    numpy allows setting the flag ``writeable`` of a view to True if its base is writable.
    """
    bytes_ = read_only_bytes(array.reshape(-1).view(np.uint8))
    return bytes_.view(array.dtype).reshape(array.shape)


def read_only_bytes(buffer: np.ndarray | bytes | mmap) -> np.ndarray:
    """Return the bytes of a buffer as an array that cannot be made writable."""
    memory: Any = buffer  # numpy's type hints declare no buffer for arrays of every shape
    return np.asarray(memoryview(memory).toreadonly())


def aligned_bytes(nbytes: int) -> np.ndarray:
    """Return new memory of this many bytes, aligned to :data:`ALIGNMENT` bytes."""
    room = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -address_of(room) % ALIGNMENT
    return room[start : start + nbytes]


def lazy_zeros(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Return zeros to which the system gives memory page by page, as they are written.

    Large pages, which numpy asks for, would each be given whole for a single number.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < _LAZY:
        return np.zeros(shape, dtype)
    import mmap

    # not shared: after a fork each process writes to its own
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if os.name == "posix" else {}
    memory = mmap.mmap(-1, nbytes, **private)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with suppress(OSError):  # of a system without large pages
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.ndarray(shape, dtype, memory)  # itself the base of its rows, as zeros of numpy are


def copy_written(to: np.ndarray, source: np.ndarray) -> None:
    """Copy an array to zeros of :func:`lazy_zeros`, and write no page of zeros.

    Parameters
    ----------
    to, source : numpy.ndarray
        C-contiguous, of one shape and dtype.
    """
    target, found = (array.reshape(-1).view(np.uint8) for array in (to, source))
    whole = len(found) // _PAGE * _PAGE
    pages = found[:whole].reshape(-1, _PAGE)
    edges = np.diff(pages.max(1) != 0, prepend=False, append=False)
    for begin, end in np.flatnonzero(edges).reshape(-1, 2) * _PAGE:
        target[begin:end] = found[begin:end]
    target[whole:] = found[whole:]


def is_aligned(array: np.ndarray, boundary: int = ALIGNMENT) -> bool:
    """Return whether an array's address is a multiple of ``boundary``."""
    return address_of(array) % boundary == 0


def address(buffer: bytes | mmap) -> int:
    """Return the address of a buffer's bytes."""
    return address_of(np.frombuffer(buffer, np.uint8))


def address_of(array: np.ndarray) -> int:
    """Return the address of an array's first element."""
    start: int = array.__array_interface__["data"][0]
    return start
