"""What a user of files, programs and the simulator may do wrong."""

from __future__ import annotations

from taper_runtime.errors import InputError
from taper_runtime.text import printable


class OpenInferError(InputError):
    """Base of the errors of this package; its text is safe to print on a terminal."""


class OinfError(OpenInferError):
    """A model file is damaged, hostile or of an unknown version, or cannot be written.

    Parameters
    ----------
    field : str
        Where in the file, as a path: ``"header.magic"``, ``"tensors['w'].dtype"``.
    reason : str
        What was expected and what was got.

    Attributes
    ----------
    path : str
        The file, empty where the model comes from none.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason
        self.path = ""

    def __str__(self) -> str:
        message = f"{self.field}: {self.reason}"
        if len(message) > _MAX_MESSAGE:
            message = f"{message[:_MAX_MESSAGE]}..."
        return printable(f"{self.path}: {message}" if self.path else message)


_MAX_MESSAGE = 500  # characters: names in a file may be of any length
