"""Replace a file by another at once."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from errno import EEXIST
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_KINDS = {
    stat.S_ISDIR: "a directory",
    stat.S_ISCHR: "a character device",
    stat.S_ISBLK: "a block device",
    stat.S_ISFIFO: "a FIFO",
    stat.S_ISSOCK: "a socket",
}


def replace_file(path: str, parts: Iterable[bytes | memoryview]) -> None:
    """Write a file atomically: another process sees the old file or the new one.

    The file is written beside ``path`` as ``.taper-*.tmp`` and is renamed when it is complete; only
    a process that is killed leaves that behind. A file that exists gives its permissions to the new
    one. A symbolic link stays: its target is replaced.

    Raises
    ------
    FileExistsError
        If ``path`` is a directory, a device or anything else that is no regular file.
    OSError
        If the file cannot be written. A file at ``path`` is then as it was.
    """
    mode = _replaced_mode(path)
    path = os.path.realpath(path)
    # Not the file's own name and more: that may be too long for the file system.
    temporary = os.path.join(os.path.dirname(path), f".taper-{os.urandom(8).hex()}.tmp")
    try:
        opener = partial(os.open, mode=0o666 if mode is None else 0o600)
        with open(temporary, "xb", opener=opener) as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _replaced_mode(path: str) -> int | None:
    """Return the permissions of the file at ``path``, None if there is none.

    Raises
    ------
    FileExistsError
        If what stands there is no regular file: a rename would put a file in its place.
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
