"""``taper inspect``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.cli.options import add_plan, load_plan
from taper_runtime.cli.parser import Result

if TYPE_CHECKING:
    import argparse


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = "show a plan: inputs, outputs, memory, export report, nodes"
    add_plan(parser)
    parser.set_defaults(command=_inspect)


def _inspect(args: argparse.Namespace) -> Result:
    from taper_runtime.report import describe_plan, plan_data

    plan = load_plan(args)
    return Result(plan_data(plan), describe_plan(plan))
