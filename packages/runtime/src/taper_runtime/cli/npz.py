"""Write arrays under untrusted names into a .npz file, and read them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote
from zipfile import BadZipFile, ZipFile

import numpy as np

from taper_runtime.base.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: The most bytes of a member's name in a zip archive (APPNOTE.TXT, 4.4.10).
_MAX_NAME = 2**16 - 1


def save_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write ``arrays`` to ``path`` like ``numpy.savez``, each under its quoted name.

    ``numpy.savez`` takes names as keywords, so some collide with its own parameters. It also writes
    them unchanged, so ``../x`` would be unpacked elsewhere. Here names are quoted as in a URL:
    names of letters, digits, ``_``, ``-``, ``~`` and single dots do not change, and all others
    become one plain word.

    Raises
    ------
    InputError
        If a name is too long for an archive; then nothing is written.
    OSError
        If the file cannot be written.
    """
    members = {_member(name): array for name, array in arrays.items()}
    for member in members:
        if len(member) > _MAX_NAME:
            raise InputError(
                f"--output: expected names of at most {_MAX_NAME} bytes, got {member[:40]}..."
            )
    with ZipFile(path, "w") as archive:
        for member, array in members.items():
            with archive.open(member, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def load_npz(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays that :func:`save_npz` or ``numpy.savez`` wrote, by name.

    Raises
    ------
    InputError
        If the file is not such an archive, or holds objects that numpy would have to unpickle.
    OSError
        If the file cannot be read.
    """
    with open(path, "rb") as file:
        try:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise ValueError("got a single array")
            return {unquote(name): archive[name] for name in archive.files}
        except (ValueError, EOFError, BadZipFile) as error:
            raise InputError(f"{path}: expected a .npz archive of arrays: {error}") from None


def _member(name: str) -> str:
    # some tools refuse to unpack names with two dots in a row
    return re.sub(r"\.(?=\.)", "%2E", f"{quote(name, safe='')}.npy")
