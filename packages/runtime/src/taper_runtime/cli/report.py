"""Add the command ``taper report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from taper_runtime.base.text import printable
from taper_runtime.cli.command_line import Result
from taper_runtime.cli.profile import add_measuring, measure

if TYPE_CHECKING:
    import argparse


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = "write a page about a plan: graph, times, memory, weights"
    add_measuring(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.html", required=True)
    parser.set_defaults(command=_report)


def _report(args: argparse.Namespace) -> Result:
    from taper_runtime.plan.spelling import size_text
    from taper_runtime.reports.pages.report_page import report_page

    profile, limits = measure(args)
    args.output.write_text(report_page(args.plan.name, profile, limits), encoding="utf-8")
    nbytes = args.output.stat().st_size
    data = {"output": str(args.output), "bytes": nbytes, "runs": args.runs, "sizes": profile.sizes}
    return Result(data, printable(f"{args.output}: {size_text(nbytes)}"))
