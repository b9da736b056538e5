"""Define exceptions: the user's (bad model, file or input) and ours (:class:`InternalError`).

Every message says what was wrong, what was expected and what was got, with a hint if one helps.
"""

from __future__ import annotations

from typing import Self

from taper_runtime.base.text import printable, printable_lines, with_end


class TaperError(Exception):
    """Base class of all errors that Taper raises on purpose; safe to print on a terminal."""

    def __str__(self) -> str:
        return printable_lines(super().__str__())


class FileError(TaperError):
    """An untrusted file is damaged, hostile or of an unknown version.

    Parameters
    ----------
    field : str
        The place in the file, as a path: ``"header.length"``, ``"plan.nodes[3].attrs.axis"``.
    reason : str
        The expected and the actual value.

    Attributes
    ----------
    path : str
        The path of the file; empty if the data do not come from a file.
    shows_field : bool
        Whether the message names the field: not if the file is of another kind.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason
        self.path = ""
        self.shows_field = True

    def within(self, field: str) -> Self:
        """Return the error with ``field`` as prefix: a part was read as a plan of its own."""
        return type(self)(field + self.field.removeprefix("plan"), self.reason)

    def __str__(self) -> str:
        message = with_end(f"{self.field}: {self.reason}" if self.shows_field else self.reason)
        return printable(f"{self.path}: {message}" if self.path else message)


class PlanFormatError(FileError):
    """A plan file, or an archive of weights, is damaged, hostile or of an unknown version."""


class InputError(TaperError, ValueError):
    """An array given to ``run`` does not match the plan, or holds an index outside a table."""


class NodeInputError(InputError):
    """A node received values that it does not accept, such as an index outside a table.

    Attributes
    ----------
    node : str
        The node's output and op.
    reason : str
        The expected and the actual value.
    """

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(node, reason)
        self.node, self.reason = node, reason

    def __str__(self) -> str:
        return f"node {self.node}: {self.reason}"


class StoppedError(TaperError):
    """A run or a load was stopped early, for example by :attr:`RunOptions.terminate`.

    For loads see :meth:`SessionOptions.set_load_cancellation_flag`.
    """


class RunTimeoutError(StoppedError, TimeoutError):
    """A run did not start or finish within :attr:`RunOptions.timeout_s`."""


class LoadTimeoutError(StoppedError, TimeoutError):
    """A session did not open within :attr:`SessionOptions.load_timeout_s`."""


class OptionError(TaperError, AttributeError):
    """``SessionOptions`` or ``RunOptions`` has no attribute of this name, or refuses it."""


class UnsupportedOpError(TaperError):
    """A node has no implementation, and one is required."""


class KernelError(TaperError):
    """A user's kernel or delegate raised an exception or broke its contract."""


class OpError(TaperError, ValueError):
    """A node's inputs or attrs violate its op's definition. Loaders and exporters add the place."""


class InternalError(TaperError):
    """Taper broke one of its own rules: please report it with the plan file or model."""
