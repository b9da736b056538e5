"""Run the ``taper`` command: one module per command, imported when it is called.

Other packages add commands through entry points; the frontend adds ``export``. Exit codes: 0
success; 1 an error in the model, the plan, the input or the system; 2 an error in the command line;
130 interrupted from the keyboard; 141 the reader of the output has gone.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

from taper_runtime.base.errors import TaperError
from taper_runtime.base.text import printable
from taper_runtime.cli.command_line import (
    command_names,
    command_parser,
    did_you_mean,
    is_command,
    main_parser,
)
from taper_runtime.cli.text_lines import write_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    try:
        try:
            return _run(_parse(argv))
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 141
    except (TaperError, OSError) as error:
        text = str(error) if isinstance(error, TaperError) else printable(str(error))
        print(f"taper: {text}", file=sys.stderr)
        return 1
    except MemoryError as error:
        print(f"taper: not enough memory: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = main_parser()
    args = parser.parse_args(argv)
    if args.name is None:
        parser.error(f"expected a command, one of {', '.join(command_names())}")
    if not is_command(args.name):
        hint = did_you_mean(args.name, command_names())
        known = ", ".join(command_names())
        parser.error(f"unknown command {args.name!r}{hint}; expected one of {known}")
    return command_parser(args.name).parse_args(args.arguments)


def _run(args: argparse.Namespace) -> int:
    """Run one command and print its result."""
    with warnings.catch_warnings():
        warnings.showwarning = _warn
        if args.json:
            with redirect_stdout(sys.stderr):  # a model's own code may print
                result = args.command(args)
        else:
            result = args.command(args)
    if args.json:
        print(json.dumps(result.data, allow_nan=False))
    else:
        write_text(f"{result.text}\n")
    if result.failure:
        print(f"taper: {result.failure}", file=sys.stderr)
    return 1 if result.failure else 0


def _warn(message: Warning | str, *place: object, **more: object) -> None:
    """Replace ``warnings.showwarning``: print one line, without a place in Taper's code."""
    print(f"taper: warning: {printable(str(message))}", file=sys.stderr)
