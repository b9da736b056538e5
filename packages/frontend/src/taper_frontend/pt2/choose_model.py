"""Open PT2 archives, and choose one of the programs in them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from taper_frontend.errors import ExportError
from taper_runtime import pt2
from taper_runtime.base.errors import PlanFormatError
from taper_runtime.base.file_limits import UNLIMITED

if TYPE_CHECKING:
    from taper_runtime.pt2 import Archive


def open_archive(path: str | os.PathLike[str]) -> Archive:
    """Open an archive that its user trusts not to be too large.

    Raises
    ------
    ExportError
        If it cannot be read.
    """
    try:
        return pt2.open(path, UNLIMITED)
    except (OSError, PlanFormatError) as error:
        raise ExportError(str(error)) from error  # it has the path


def chosen_model(archive: Archive, path: str | os.PathLike[str], model: str | None) -> str:
    """Return the name of a program, by default of the only one.

    Raises
    ------
    ExportError
        If there is none of this name, or there are several and none was named.
    """
    names = archive.model_names
    if model is None and len(names) == 1:
        return names[0]
    if model not in names or model is None:
        asked = "no model named" if model is None else f"unknown model {model!r}"
        listed = ", ".join(names) or "no program"
        raise ExportError(f"{os.fspath(path)!r}: {asked}; expected one of {listed}")
    return model
