"""Replace a file by another one, atomically."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from errno import EEXIST
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Bytes that are written together, at multiples of them in the file: a large page of x86-64. In
#: memory Linux keeps what is written so in large pages, if the file system has them.
BLOCK_BYTES = 2 << 20

_KINDS = {
    stat.S_ISDIR: "a directory",
    stat.S_ISCHR: "a character device",
    stat.S_ISBLK: "a block device",
    stat.S_ISFIFO: "a FIFO",
    stat.S_ISSOCK: "a socket",
}


def replace_file(path: str, parts: Iterable[bytes | memoryview]) -> None:
    """Write a file atomically: other processes see the old file or the new one.

    The file is written beside ``path`` as ``.taper-*.tmp`` and renamed when it is complete; only a
    killed process leaves the temporary file. The new file gets the permissions of an existing one.
    The target of a symbolic link is replaced, and the link stays.

    Raises
    ------
    FileExistsError
        If ``path`` is a directory, a device or anything else that is not a regular file.
    OSError
        If the file cannot be written. An existing file at ``path`` is then unchanged.
    """
    mode = _replaced_mode(path)
    path = os.path.realpath(path)
    # The file's own name with a suffix could be too long for the file system.
    temporary = os.path.join(os.path.dirname(path), f".taper-{os.urandom(8).hex()}.tmp")
    try:
        opener = partial(os.open, mode=0o666 if mode is None else 0o600)
        with open(temporary, "xb", buffering=0, opener=opener) as file:
            for block in in_blocks(parts):
                view = memoryview(block)
                while view:  # one call may write less
                    view = view[file.write(view) :]
            os.fsync(file.fileno())
        if mode is not None:
            os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def in_blocks(parts: Iterable[bytes | memoryview]) -> Iterator[bytearray | memoryview]:
    """Yield the bytes of ``parts`` in pieces of whole blocks, and a rest at the end."""
    rest = bytearray()
    for part in parts:
        view = memoryview(part)
        if rest:
            room = BLOCK_BYTES - len(rest)
            rest += view[:room]
            view = view[room:]
            if len(rest) < BLOCK_BYTES:
                continue
            yield rest
        whole = len(view) // BLOCK_BYTES * BLOCK_BYTES
        if whole:
            yield view[:whole]
        rest = bytearray(view[whole:])
    if rest:
        yield rest


def _replaced_mode(path: str) -> int | None:
    """Return the permissions of the file at ``path``, None if there is none.

    Raises
    ------
    FileExistsError
        If it is not a regular file: a rename would replace it.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        kind = next((name for test, name in _KINDS.items() if test(mode)), "something else")
        raise FileExistsError(
            EEXIST, f"expected a regular file or none to replace, got {kind}", path
        )
    return stat.S_IMODE(mode)
