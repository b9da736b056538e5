"""Open files safely: map or copy a regular file, and check that a path can name one."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from typing import TYPE_CHECKING

from taper_runtime.base.checks import fail
from taper_runtime.base.errors import InputError, PlanFormatError
from taper_runtime.base.file_limits import refuse_beyond
from taper_runtime.base.loading import PIECE_BYTES, look

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taper_runtime.file.writer import FilePath


@contextmanager
def mapped(path: FilePath, copied_bytes: int | None = None) -> Iterator[bytes | mmap]:
    """Give the bytes of a regular file, mapped; name the file in what is raised about them.

    The mapping lives as long as an array in it. With ``copied_bytes`` it is one of memory that the
    file was copied to: what becomes of the file later has no effect.

    Parameters
    ----------
    path : path
    copied_bytes : int, optional
        What the file has at most, for it to be copied.

    Raises
    ------
    OSError
        If the file cannot be opened, or is no regular file: a folder, a device, a named pipe.
    PlanFormatError
        If it is to be copied and too large, or is truncated meanwhile.
    """
    with named(path):
        descriptor = open_regular(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        try:
            nbytes = os.fstat(descriptor).st_size
            if nbytes == 0:
                buffer: bytes | mmap = b""  # which no system maps
            elif copied_bytes is None:
                buffer = mmap(descriptor, 0, access=ACCESS_READ)
            else:
                refuse_beyond("header", "copied_bytes", nbytes, copied_bytes)
                buffer = _copy(descriptor, nbytes)
        finally:
            os.close(descriptor)
        yield buffer


def _copy(descriptor: int, nbytes: int) -> mmap:
    """Read an open file into memory of this process, which begins on a page."""
    memory = mmap(-1, nbytes)
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
    """Give what is raised about a file its path; an empty one is none."""
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
        If it is no path, or has characters that no name of a file has.
    """
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise InputError(f"path: expected a path, got {type(path).__name__}")
    try:
        is_name = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        is_name = False
    if not is_name:
        raise InputError(f"path: expected what can name a file, got {path!r}")


def open_regular(path: FilePath, flags: int) -> int:
    """Open a regular file. Without O_NONBLOCK the open of a named pipe waits for its writer."""
    check_path(path)
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "Expected a regular file, got a pipe, socket or device", path)
