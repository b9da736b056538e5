"""Add the command ``taper inspect``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.text import printable
from taper_runtime.cli.command_line import Result
from taper_runtime.cli.shared_options import add_plan, load_plan

if TYPE_CHECKING:
    import argparse


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = "show a plan: inputs, outputs, memory, export report, nodes"
    add_plan(parser)
    parser.add_argument(
        "--kernels",
        action="store_true",
        help="prepare this CPU's kernels, to count their scratch in the arena",
    )
    parser.add_argument(
        "--layout",
        action="store_true",
        help="show where each tensor lies in the arena, and which share memory; with --kernels "
        "also the scratch of each node",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="compare the plan's fingerprint with the one in the file; an error if they differ",
    )
    parser.add_argument(
        "--why",
        metavar="NODE",
        help="tell what was chosen about one node and its weights, among what, and why",
    )
    parser.set_defaults(command=_inspect)


def _inspect(args: argparse.Namespace) -> Result:
    """Describe a plan, or list the plans of a file."""
    from taper_runtime.executor.memory_use import memory_layout
    from taper_runtime.file.models import DEFAULT_MODEL
    from taper_runtime.file.reader import list_models
    from taper_runtime.plan.rows import batch_data, describe_batch
    from taper_runtime.reports.report import describe_plan, plan_data

    plan = load_plan(args, check_fingerprint=args.check)
    if args.why is not None:
        from taper_runtime.session.decision_log import decisions_about

        found = decisions_about(plan, args.why)
        return Result({"decisions": [each.data() for each in found]}, "\n".join(map(str, found)))
    models = list_models(args.plan)
    model = args.model or (models[0] if len(models) == 1 else DEFAULT_MODEL)
    lines = [f"model   {model}, of {', '.join(models)}"] if len(models) > 1 else []
    fingerprint = plan.fingerprint()
    same = ", as the file says" if args.check else ""
    lines += [f"fingerprint {fingerprint}{same}", *map(printable, describe_batch(plan)), ""]
    layout = memory_layout(plan, kernels=args.kernels) if args.layout else None
    data = {
        "fingerprint": fingerprint,
        "batch": batch_data(plan),
        "model": model,
        "models": models,
        "layout": None if layout is None else layout.data(),
        **plan_data(plan, kernels=args.kernels),
    }
    lines.append(describe_plan(plan, kernels=args.kernels))
    if layout is not None:
        lines += ["", *map(printable, layout.lines())]
    return Result(data, "\n".join(lines))
