"""Add ``taper compile``: a program of OpenInfer and its weights become a plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from taper_runtime.cli.command_line import Result


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = "compile a program of OpenInfer to a plan"
    parser.add_argument("program", type=Path, metavar="PROGRAM", help="the program's text or JSON")
    parser.add_argument(
        "model", type=Path, metavar="MODEL.oinf", help="the file with the values of its variables"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.taper")
    parser.add_argument(
        "--outputs",
        type=lambda text: text.split(","),
        metavar="NAME,...",
        help="variables that a run returns (default: those that are written and not read later)",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="refuse variables that begin as zeros and are read first",
    )
    parser.set_defaults(command=_compile)


def _compile(args: argparse.Namespace) -> Result:
    from taper_openinfer.compiler import compile_program  # imports the whole compiler

    plan = compile_program(args.program, args.model, outputs=args.outputs, strict=args.strict)

    # after the import that raises the clearer error if it is missing
    from taper_frontend.cli.export_commands import saved

    return saved(plan, args.output)
