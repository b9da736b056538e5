"""Exceptions: the user's (bad model, file or input) and ours (:class:`InternalError`).

Every message says what was wrong, what was expected and what was got, with a hint where one helps.
"""

from __future__ import annotations


class TaperError(Exception):
    """Base of every error Taper raises on purpose."""


class PlanFormatError(TaperError):
    """A plan file is damaged, hostile or of an unknown version.

    Parameters
    ----------
    field : str
        Where in the file, as a path: ``"header.length"``, ``"plan.nodes[3].attrs.axis"``.
    reason : str
        What was expected and what was got.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class InputError(TaperError, ValueError):
    """An array given to ``run`` does not fit the plan, or indexes outside a table."""


class OptionError(TaperError, AttributeError):
    """``SessionOptions`` or ``RunOptions`` have no attribute of this name, or refuse it."""


class UnsupportedOpError(TaperError):
    """A node has no implementation where one is required."""


class OpError(TaperError, ValueError):
    """A node's inputs or attrs break its op's definition. Loaders and exporters add the place."""


class InternalError(TaperError):
    """Taper broke one of its own rules: please report it with the plan file or model."""
