"""Declare the commands and their options, without running any.

Each command has a function that gets an empty parser and adds the description, the options, and the
default ``command``: a function from the parsed arguments to a :class:`Result`.
"""

from __future__ import annotations

import argparse
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from taper_runtime import __version__
from taper_runtime.base.errors import TaperError
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.text import nearest, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from importlib.metadata import EntryPoint

#: The runtime's own commands: modules of this package, each with a function ``add``.
OWN = (
    "bench",
    "chat",
    "completion",
    "embed",
    "generate",
    "inspect",
    "kernels",
    "profile",
    "rank",
    "report",
    "run",
    "serve",
    "transcribe",
    "tune",
)


class Result(NamedTuple):
    """The result of a command.

    Attributes
    ----------
    data : dict
        The data that are printed as one JSON object with ``--json``.
    text : str
        The text that is printed otherwise; safe for a terminal.
    failure : str
        Why the exit code is 1; empty if it is 0.
    """

    data: dict[str, Any]
    text: str
    failure: str = ""


class Parser(argparse.ArgumentParser):
    """A parser whose errors contain no terminal control characters."""

    def error(self, message: str) -> NoReturn:
        """Print the message and the usage; exit with 2."""
        super().error(printable(message))


def is_command(name: str) -> bool:
    """Return whether there is a command of this name."""
    return name in OWN or name in command_names()


def command_names() -> list[str]:
    """Return the names of the commands, including those of other packages."""
    return sorted({*OWN, *_others()})


@cache
def _others() -> dict[str, EntryPoint]:
    """Load the commands that other packages register."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group="taper.commands")}


def command_parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of one command; only this command's module is imported."""
    parser = Parser(prog=f"taper {name}")
    _adder(name)(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    return parser


def _adder(name: str) -> Callable[[argparse.ArgumentParser], None]:
    module = import_module(f"taper_runtime.cli.{name}") if name in OWN else None
    add: Callable[[argparse.ArgumentParser], None]
    add = module.add if module else _loaded(_others()[name])
    return add


def _loaded(point: EntryPoint) -> Callable[[argparse.ArgumentParser], None]:
    """Load a command of another package.

    Raises
    ------
    TaperError
        If the package is damaged, or of another version than what it needs.
    """
    try:
        add: Callable[[argparse.ArgumentParser], None] = point.load()
    except (ImportError, AttributeError) as error:
        package = point.dist.name if point.dist else point.value
        raise TaperError(
            f"the command {point.name} of the package {printable(package)} cannot be loaded: "
            f"{printable(str(error))}; install the package again"
        ) from error
    return add


def main_parser() -> argparse.ArgumentParser:
    """Return the parser of ``taper`` itself, which does not parse a command's arguments."""
    parser = Parser(
        prog="taper",
        description="Run exported PyTorch models on CPUs.",
        usage="taper [--help] [--version] COMMAND ...",
        epilog="`taper COMMAND --help` shows the options of a command.",
        formatter_class=_MainHelp,
    )
    parser.add_argument("--version", action="version", version=f"taper {__version__}")
    parser.add_argument("name", nargs="?", metavar="COMMAND", help="one of:")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


class _MainHelp(argparse.HelpFormatter):
    """Lists the commands below ``COMMAND``; only this imports all their modules."""

    def _format_action(self, action: argparse.Action) -> str:
        text = super()._format_action(action)
        if action.dest == "name":
            names = command_names()
            width = max(map(len, names))
            for name in names:
                try:
                    description = command_parser(name).description
                except TaperError as error:
                    description = str(error)
                text += f"    {name:<{width}}  {description}\n"
        return text


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a question that suggests the known word similar to ``word``, or an empty text."""
    near = nearest(word, known)
    return f" (did you mean {near!r}?)" if near else ""
