"""Open files safely: map or copy a regular file, and check that a path can name one."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from taper_runtime.base.checks import fail
from taper_runtime.base.errors import InputError, PlanFormatError
from taper_runtime.base.file_limits import refuse_beyond
from taper_runtime.base.loading import PIECE_BYTES, look
from taper_runtime.file.replacing import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taper_runtime.base.loading import FilePath


@contextmanager
def mapped(path: FilePath, copied_bytes: int | None = None) -> Iterator[bytes | mmap.mmap]:
    """Yield the bytes of a regular file, mapped; add its path to errors raised about them.

    The mapping lives as long as an array in it. With ``copied_bytes`` the file is copied to memory,
    so later changes of the file have no effect.

    Parameters
    ----------
    path : path
    copied_bytes : int, optional
        The largest size of a file to copy. None maps the file.

    Raises
    ------
    OSError
        If the file cannot be opened, or is not a regular file but a folder, a device or a named
        pipe.
    PlanFormatError
        If the file is too large to be copied, or is truncated meanwhile.
    """
    with named(path):
        descriptor = open_regular(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        try:
            nbytes = os.fstat(descriptor).st_size
            if nbytes == 0:
                buffer: bytes | mmap.mmap = b""  # no system maps an empty file
            elif copied_bytes is None:
                buffer = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
                _ask_for_large_pages(buffer)
            else:
                refuse_beyond("header", "copied_bytes", nbytes, copied_bytes)
                buffer = _copy(descriptor, nbytes)
        finally:
            os.close(descriptor)
        yield buffer


def _ask_for_large_pages(mapping: mmap.mmap) -> None:
    """Let the system read a file into large pages, and map them, where its file system has them.

    What it already has in small pages stays there.
    """
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None and len(mapping) >= BLOCK_BYTES:
        with suppress(OSError):  # a system without them
            mapping.madvise(advice)


def _copy(descriptor: int, nbytes: int) -> mmap.mmap:
    """Read an open file into new memory, aligned to a page."""
    memory = mmap.mmap(-1, nbytes)
    with (
        open(descriptor, "rb", buffering=0, closefd=False) as file,
        memoryview(memory) as view,
    ):
        done = 0
        while done < nbytes:
            look()
            with view[done : done + PIECE_BYTES] as rest:
                count = file.readinto(rest)
            if not count:
                fail("data", f"expected {nbytes} bytes (was the file truncated?)", done)
            done += count
    return memory


@contextmanager
def named(path: FilePath) -> Iterator[None]:
    """Add the file's path to errors raised in the context; an empty path is not added."""
    try:
        yield
    except PlanFormatError as error:
        error.path = os.fsdecode(path)
        raise


def check_path(path: object) -> None:
    """Check that ``path`` can name a file.

    Raises
    ------
    InputError
        If it is not a path, or has characters that file names cannot have.
    """
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise InputError(f"path: expected a path, got {type(path).__name__}")
    try:
        is_name = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        is_name = False
    if not is_name:
        raise InputError(f"path: expected characters that file names can have, got {path!r}")


def open_regular(path: FilePath, flags: int) -> int:
    """Open a regular file. Without O_NONBLOCK, opening a named pipe would wait for a writer."""
    check_path(path)
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "Expected a regular file, got a pipe, socket or device", path)
