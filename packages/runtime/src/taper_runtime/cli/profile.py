"""Add the command ``taper profile``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from taper_runtime.base.progress import progress
from taper_runtime.cli.command_line import Result
from taper_runtime.cli.shared_options import (
    add_executor,
    add_plan,
    add_runs,
    add_sizes,
    add_threads,
    load_plan,
    make_feed,
)
from taper_runtime.session.opening import thread_count

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from taper_runtime.machine.limits import MachineLimits
    from taper_runtime.plan.plan import Plan
    from taper_runtime.reports.profile import Profile


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = "time every node beside the machine's limit"
    add_measuring(parser)
    parser.add_argument(
        "--trace", type=Path, metavar="FILE.json", help="write a trace for Chrome or Perfetto"
    )
    parser.set_defaults(command=_profile)


def add_measuring(parser: argparse.ArgumentParser) -> None:
    """Add the options that :func:`measure` reads."""
    add_plan(parser)
    add_profiling(parser)


def add_profiling(parser: argparse.ArgumentParser) -> None:
    """Add the options that :func:`profile_all` reads."""
    add_runs(parser, 20)
    add_sizes(parser)
    add_threads(parser)
    add_executor(parser)
    parser.add_argument(
        "--machine",
        type=Path,
        metavar="FILE.json",
        help="limits that `bench --machine --output` wrote (default: measure them, for a second)",
    )


def measure(args: argparse.Namespace) -> tuple[Profile, MachineLimits]:
    """Profile a plan; return the profile, and the limits of this machine."""
    (profile,), limits = profile_all(args, [load_plan(args)])
    return profile, limits


def profile_all(
    args: argparse.Namespace, plans: Sequence[Plan]
) -> tuple[list[Profile], MachineLimits]:
    """Profile plans, one after the other; return the profiles, and the limits of this machine."""
    from taper_runtime.machine.measure import load_limits, measure_limits
    from taper_runtime.native import _kernels
    from taper_runtime.plan.replaceable import completed
    from taper_runtime.reports.profile import profile_plan

    isa, threads = _kernels.active_isa(), thread_count(args.threads)
    if args.machine:
        limits = load_limits(args.machine, isa, threads)
    else:
        with progress("machine", 1) as advance:
            limits = measure_limits([isa], [threads], advance)[0]
    profiles = []
    for plan in map(completed, plans):
        feed = make_feed(plan, args.size)
        with progress("profile", args.runs) as advance:
            profiles.append(
                profile_plan(
                    plan,
                    feed,
                    runs=args.runs,
                    threads=threads,
                    executor=args.executor,
                    advance=advance,
                )
            )
    return profiles, limits


def _profile(args: argparse.Namespace) -> Result:
    from taper_runtime.reports.profile import describe_profile, profile_data, save_trace

    profile, limits = measure(args)
    if args.trace:
        save_trace(profile, args.trace)
    data = {"runs": args.runs, "sizes": profile.sizes, **profile_data(profile, limits)}
    return Result(data, describe_profile(profile, limits))
