"""Make arrays that kernels can read: aligned, and read-only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.base.checks import ALIGNMENT

if TYPE_CHECKING:
    from mmap import mmap


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
    start = -_address(room) % ALIGNMENT
    return room[start : start + nbytes]


def is_aligned(array: np.ndarray, boundary: int = ALIGNMENT) -> bool:
    """Return whether an array's address is a multiple of ``boundary``."""
    return _address(array) % boundary == 0


def address(buffer: bytes | mmap) -> int:
    """Return the address of a buffer's bytes."""
    return _address(np.frombuffer(buffer, np.uint8))


def _address(array: np.ndarray) -> int:
    start: int = array.__array_interface__["data"][0]
    return start
