"""Write arrays whose names a stranger chose into a .npz file, and read them."""

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

#: Bytes that a zip archive allows the name of a member (APPNOTE.TXT, 4.4.10).
_MAX_NAME = 2**16 - 1


def save_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write ``arrays`` to ``path`` as ``numpy.savez`` does, each under its quoted name.

    ``numpy.savez`` takes names as keywords, so that some collide with its own parameters, and puts
    them into the archive as they are, so that ``../x`` would be unpacked elsewhere. Quoted as in a
    URL, a name of letters, digits, ``_``, ``-``, ``~`` and single dots stands as it is, and every
    other is one plain word.

    Raises
    ------
    InputError
        If a name is too long for an archive; nothing is written then.
    OSError
        If the file cannot be written.
    """
    members = {_member(name): array for name, array in arrays.items()}
    for member in members:
        if len(member) > _MAX_NAME:
            raise InputError(f"--output: the name {member[:40]}... is too long for an archive")
    with ZipFile(path, "w") as archive:
        for member, array in members.items():
            with archive.open(member, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def load_npz(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays that :func:`save_npz` or ``numpy.savez`` wrote, by name.

    Raises
    ------
    InputError
        If the file is no such archive, or holds what numpy would have to unpickle.
    OSError
        If it cannot be read.
    """
    with open(path, "rb") as file:
        try:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise ValueError("got one array")
            return {unquote(name): archive[name] for name in archive.files}
        except (ValueError, EOFError, BadZipFile) as error:
            raise InputError(f"{path}: expected a .npz archive of arrays: {error}") from None


def _member(name: str) -> str:
    # two dots in a row are more than some tools will unpack
    return re.sub(r"\.(?=\.)", "%2E", f"{quote(name, safe='')}.npy")
