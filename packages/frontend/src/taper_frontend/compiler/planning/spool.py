"""Keep a plan's constants in a temporary file, which the system may drop from memory.

A plan has all its constants, perhaps gigabytes, while the model that it was made from still exists.
"""

from __future__ import annotations

import tempfile
from mmap import ACCESS_READ, mmap
from typing import TYPE_CHECKING

import numpy as np

from taper_frontend.errors import ExportError
from taper_runtime.base.checks import ALIGNMENT
from taper_runtime.base.dtypes import DTYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taper_frontend.compiler.graph.constants import Constant


def spool(constants: Mapping[str, Constant]) -> dict[str, np.ndarray]:
    """Evaluate constants, one at a time, into a temporary file.

    Parameters
    ----------
    constants : mapping of str to Constant

    Returns
    -------
    dict of str to numpy.ndarray
        Read-only views of the mapped file, each aligned to 64 bytes. The file has no name, or is
        deleted with the last view.

    Raises
    ------
    ExportError
        If a constant cannot be computed, or the file cannot be written. The temporary directory
        (``TMPDIR``) needs space for all constants.
    """
    nbytes = sum(-(-constant.nbytes // ALIGNMENT) * ALIGNMENT for constant in constants.values())
    if not nbytes:
        return {name: constant.value() for name, constant in constants.items()}
    places: dict[str, int] = {}
    try:
        with tempfile.TemporaryFile(prefix="taper-") as file:
            for name, constant in constants.items():
                places[name] = file.tell()
                file.write(constant.value().reshape(-1).view("u1").data)
                file.write(bytes(-constant.nbytes % ALIGNMENT))
            file.flush()
            mapped = mmap(file.fileno(), nbytes, access=ACCESS_READ)
    except OSError as error:
        raise ExportError(
            f"{tempfile.gettempdir()}: expected room for {nbytes:,} bytes of constants, got "
            f"{error}; set TMPDIR to use another directory"
        ) from error
    stored = {name: constant.type.storage for name, constant in constants.items()}
    return {
        name: np.ndarray(type_.shape, DTYPES[type_.dtype].storage, mapped, places[name])
        for name, type_ in stored.items()
    }


class ConstantValues:
    """Values of constants, each evaluated once for several plans."""

    def __init__(self) -> None:
        # by identity; with the constant, because an identity holds while its leaves exist
        self._known: dict[bytes, tuple[Constant, np.ndarray]] = {}

    def of(self, constants: Mapping[str, Constant]) -> dict[str, np.ndarray]:
        """Return the value of each constant, as :func:`spool` does.

        Raises
        ------
        ExportError
            See :func:`spool`.
        """
        identities = {name: constant.identity for name, constant in constants.items()}
        new = {n: each for n, each in constants.items() if identities[n] not in self._known}
        for name, array in spool(new).items():
            self._known[identities[name]] = new[name], array
        return {name: self._known[identity][1] for name, identity in identities.items()}
