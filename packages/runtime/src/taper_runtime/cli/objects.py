"""Import objects that a command line names as MODULE:NAME."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from taper_runtime.base.errors import InputError


def named_object(reference: str) -> Any:
    """Import the object ``MODULE:NAME``; the working directory is searched first.

    Raises
    ------
    InputError
        If the text does not have this form, or the module or the name does not exist.
    """
    module_name, separator, name = reference.partition(":")
    if not separator:
        raise InputError(f"{reference!r}: expected MODULE:NAME")
    sys.path.insert(0, "")  # like `python -m`: find modules in the working directory
    try:
        return getattr(import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:  # a module without a name
        raise InputError(f"{reference!r}: {error}") from None
