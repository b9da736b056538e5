"""Add the command ``taper bench``."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

from taper_runtime.base.errors import InputError
from taper_runtime.base.progress import progress
from taper_runtime.cli.command_line import Result
from taper_runtime.cli.shared_options import (
    add_entry,
    add_runs,
    add_session_options,
    add_sizes,
    feed_sizes,
    make_feed,
    open_session,
)
from taper_runtime.session.opening import thread_count

if TYPE_CHECKING:
    import argparse


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = "time a plan on its sample inputs, or the machine"
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("plan", type=Path, nargs="?", metavar="FILE.taper")
    what.add_argument(
        "--machine",
        action="store_true",
        help="measure arithmetic and memory at every ISA level and number of threads",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE.json", help="write the machine's limits to this file"
    )
    add_entry(parser)
    add_runs(parser, 100)
    add_sizes(parser)
    add_session_options(parser)
    parser.set_defaults(command=_bench)


def _bench(args: argparse.Namespace) -> Result:
    if args.machine:
        return _bench_machine(args)
    if args.output:
        raise InputError(
            "--output: expected --machine too, because the file holds the machine's limits"
        )
    return _bench_plan(args)


def _bench_machine(args: argparse.Namespace) -> Result:
    """Measure the limits of this machine, and save them if asked to."""
    from taper_runtime.machine.measure import (
        describe_limits,
        limits_data,
        measure_limits,
        save_limits,
    )
    from taper_runtime.native import _kernels

    levels, threads = _kernels.available_isas(), range(1, thread_count(args.threads) + 1)
    with progress("machine", len(levels) * len(threads)) as advance:
        limits = measure_limits(levels, threads, advance)
    if args.output:
        save_limits(limits, args.output)
    return Result({"limits": [limits_data(item) for item in limits]}, describe_limits(limits))


def _bench_plan(args: argparse.Namespace) -> Result:
    """Measure the latency of a plan's runs."""
    begin = time.perf_counter()
    session = open_session(args)
    opened = time.perf_counter() - begin
    feed = make_feed(session.plan, args.size)
    times = []
    with progress("bench", args.runs) as advance:
        for _ in range(args.runs):
            begin = time.perf_counter()
            session.run(None, feed)
            times.append(time.perf_counter() - begin)
            advance()
    data = {
        "threads": thread_count(args.threads),
        "sizes": feed_sizes(session.plan, feed),
        "runs": args.runs,
        "open_ms": 1e3 * opened,
        "first_ms": 1e3 * times[0],
        "min_ms": 1e3 * min(times),
        "median_ms": 1e3 * statistics.median(times),
    }
    text = (
        f"open {data['open_ms']:.2f} ms, first run {data['first_ms']:.3f} ms, then "
        f"min {data['min_ms']:.3f} ms, median {data['median_ms']:.3f} ms over {args.runs} runs"
    )
    return Result(data, text)
