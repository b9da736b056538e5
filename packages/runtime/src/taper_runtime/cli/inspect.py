"""``taper inspect``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.cli.options import add_plan, load_plan
from taper_runtime.cli.parser import Result
from taper_runtime.text import printable

if TYPE_CHECKING:
    import argparse


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = "show a plan: inputs, outputs, memory, export report, nodes"
    add_plan(parser)
    parser.set_defaults(command=_inspect)


def _inspect(args: argparse.Namespace) -> Result:
    from taper_runtime.plan.rows import batch_data, describe_batch
    from taper_runtime.report import describe_plan, plan_data

    plan = load_plan(args)
    fingerprint = plan.fingerprint()
    lines = [f"fingerprint {fingerprint}", *map(printable, describe_batch(plan))]
    data = {"fingerprint": fingerprint, "batch": batch_data(plan), **plan_data(plan)}
    return Result(data, "\n".join([*lines, "", describe_plan(plan)]))
