"""Define the errors of model files, programs and the simulator.

Files and programs may be hostile. So an error's text has one line per problem, no terminal control
characters, and a limited length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from taper_runtime.base.errors import FileError, InputError
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.text import counted, is_one_of, nearest, printable, with_end

if TYPE_CHECKING:
    from collections.abc import Iterable

_Kind = TypeVar("_Kind")

#: The most characters of a foreign text in a message, and the most problems in one text.
_MAX_SHOWN = 60
_MAX_PROBLEMS = 50


def shown(value: object) -> str:
    """Quote a foreign name or value: printable, and cut to a readable length."""
    if type(value) is int and value.bit_length() > 128:  # str() refuses more than 4,300 digits
        return f"an integer of {value.bit_length()} bits"
    text = value if isinstance(value, str) else repr(value)
    text = printable(text[: _MAX_SHOWN + 1])
    text = f"{text[:_MAX_SHOWN]}..." if len(text) > _MAX_SHOWN else text
    return f"'{text}'" if isinstance(value, str) else text


class TextPosition(NamedTuple):
    """A position in the text of a program. Line and column count from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.line}:{self.column}"


class Problem(NamedTuple):
    """One error in a program.

    Attributes
    ----------
    message : str
        The subject, the expected value, and the actual one.
    place : TextPosition or None
        None if the graph was not parsed from a text.
    variable : str or None
        The variable that the problem is about.
    """

    message: str
    place: TextPosition | None = None
    variable: str | None = None

    def __str__(self) -> str:
        message = self.message if self.place is None else f"{self.place}: {self.message}"
        return with_end(printable(message))


class OpenInferError(InputError):
    """Base class of the errors of this package; its text is safe to print on a terminal."""


def check_kind(what: str, value: object, kind: type[_Kind]) -> _Kind:
    """Return ``value``, an object of a class.

    Raises
    ------
    OpenInferError
        If it is of another class.
    """
    if not isinstance(value, kind):
        raise OpenInferError(f"{what}: expected {kind.__name__}, got {shown(value)}")
    return value


def check_texts(what: str, value: object) -> Sequence[str]:
    """Return ``value``, a list or another sequence of strings.

    Raises
    ------
    OpenInferError
        If it is something else, a single string included.
    """
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes, bytearray)):
        raise OpenInferError(f"{what}: expected a list of strings, got {shown(value)}")
    return [check_kind(what, item, str) for item in value]


def check_choice(what: str, value: object, choices: Iterable[str]) -> str:
    """Return ``value``, one of some strings.

    Raises
    ------
    OpenInferError
        If it is something else, with all choices.
    """
    choices = tuple(choices)
    if not is_one_of(value, choices):
        raise OpenInferError(f"{what}: expected one of {', '.join(choices)}, got {shown(value)}")
    return value


def similar(name: object, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: a known one that is like it, if any."""
    near = nearest(name, known) if isinstance(name, str) else None
    return f" (did you mean {near!r}?)" if near else ""


class OinfError(FileError, OpenInferError):
    """A model file is damaged, hostile or of an unknown version, or cannot be written."""


class ProgramError(OpenInferError):
    """A program cannot be read, linked or run: lists all problems that were found, in order.

    Parameters
    ----------
    problems : sequence of Problem
        At least one.
    name : str
        The program's name in messages, usually its file.
    """

    def __init__(self, problems: Sequence[Problem], name: str = "") -> None:
        super().__init__(tuple(problems), name)
        self.problems = tuple(problems)
        self.name = name

    def __str__(self) -> str:
        lines = [self._line(problem) for problem in self.problems[:_MAX_PROBLEMS]]
        left = len(self.problems) - len(lines)
        return "\n".join([*lines, *([f"and {counted(left, 'more problem')}"] if left else [])])

    def _line(self, problem: Problem) -> str:
        separator = ": " if problem.place is None else ":"
        return f"{printable(self.name)}{separator}{problem}" if self.name else str(problem)


class MissingCompilerError(ImportError, OpenInferError):
    """A program cannot be compiled, because taper-frontend is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "programs are compiled by taper-frontend, which is not installed; get it with "
            "`pip install 'taper-openinfer[compile]'`",
            name="taper_frontend",
        )


class StepError(OpenInferError):
    """A node of a running program failed.

    Parameters
    ----------
    message : str
        The expected and the actual value.
    node : str
        The description of the node, see :func:`taper_openinfer.language.graph.describe`.
    place : TextPosition, optional
        The position of the node in the program's text.
    variable, index, limit
        The access that a cache refused: the variable, the index, and the limit that it exceeds.
    """

    def __init__(
        self,
        message: str,
        node: str = "",
        place: TextPosition | None = None,
        *,
        variable: str | None = None,
        index: int | str | None = None,
        limit: int | None = None,
    ) -> None:
        super().__init__(message, node, place)
        self.message = message
        self.node = node
        self.place = place
        self.variable = variable
        self.index = index
        self.limit = limit

    def __str__(self) -> str:
        text = f"{self.node}: {self.message}" if self.node else self.message
        return str(Problem(text, self.place))


class NoKernelError(OpenInferError):
    """No kernel computes an op for these element types on this device.

    Parameters
    ----------
    op : str
    dtypes : sequence of str
        The element types of the inputs, then of the output.
    device : str
    known : iterable of str
        The combinations of element types that exist.
    suits_inputs : bool
        Whether the op accepts these inputs, and only its result differs from the declared type.
    """

    def __init__(
        self,
        op: str,
        dtypes: Sequence[str],
        device: str,
        known: Iterable[str],
        *,
        suits_inputs: bool = False,
    ) -> None:
        super().__init__(op, tuple(dtypes), device)
        self.suits_inputs = suits_inputs
        self.op = op
        self.dtypes = tuple(dtypes)
        self.device = device
        self.known = tuple(known)

    def __str__(self) -> str:
        types = f"({', '.join(self.dtypes[:-1])}) -> {self.dtypes[-1]}"
        known = ", ".join(self.known) or "none"
        hint = "filter and taper.CAST turn bools into numbers; " if self.is_cast_of_bools else ""
        return printable(
            f"no kernel computes {shown(self.op)} of {types} on {self.device}; {hint}"
            f"there are: {known}"
        )

    @property
    def is_cast_of_bools(self) -> bool:
        """Return whether the call casts bools with the op that makes bools of numbers."""
        return self.op == "cast" and self.dtypes[0] == "bool"
