"""Add the command ``taper report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from taper_runtime.base.progress import progress
from taper_runtime.base.text import printable
from taper_runtime.cli.command_line import Result
from taper_runtime.cli.profile import add_measuring, measure
from taper_runtime.cli.shared_options import load_plan, make_feed

if TYPE_CHECKING:
    import argparse

    from taper_runtime.reports.memory_points import MemoryPoint


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = "write a page about a plan: graph, times, memory, weights"
    add_measuring(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.html", required=True)
    parser.add_argument(
        "--memory",
        action="store_true",
        help="also draw memory against time, in memory budgets; needs taper-frontend",
    )
    parser.set_defaults(command=_report)


def _report(args: argparse.Namespace) -> Result:
    """Profile a plan and write its page."""
    from taper_runtime.plan.spelling import size_text
    from taper_runtime.reports.pages.report_page import report_page

    points = _points(args) if args.memory else []
    profile, limits = measure(args)
    page = report_page(args.plan.name, profile, limits, points=points)
    args.output.write_text(page, encoding="utf-8")
    nbytes = args.output.stat().st_size
    data = {
        "output": str(args.output),
        "bytes": nbytes,
        "runs": args.runs,
        "sizes": profile.sizes,
        "memory": [each._asdict() for each in points],
    }
    return Result(data, printable(f"{args.output}: {size_text(nbytes)}"))


def _points(args: argparse.Namespace) -> list[MemoryPoint]:
    from taper_runtime.plan.replaceable import completed
    from taper_runtime.reports.memory_points import PERCENT, measure_points

    plan = completed(load_plan(args))
    feed = make_feed(plan, args.size)
    with progress("memory", len(PERCENT)) as advance:
        return measure_points(plan, feed, runs=args.runs, executor=args.executor, advance=advance)
