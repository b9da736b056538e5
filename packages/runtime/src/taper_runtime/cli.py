"""The ``taper`` command. The frontend adds ``export`` through an entry point where installed.

Exit codes: 0 done; 1 the model, plan or input is at fault; 2 the command line is.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.dtypes import DTYPES
from taper_runtime.errors import InputError, TaperError
from taper_runtime.executor import _native
from taper_runtime.options import SessionOptions
from taper_runtime.plan.binding import bind_sizes
from taper_runtime.report import describe_plan
from taper_runtime.session import InferenceSession, thread_count
from taper_runtime.sizes import evaluate, nonempty

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_runtime.plan.plan import Plan


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="taper", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for point in entry_points(group="taper.commands"):
        point.load()(commands)
    _add_inspect(commands)
    _add_run(commands)
    _add_bench(commands)
    _add_profile(commands)
    args = parser.parse_args(argv)
    try:
        args.command(args)
    except (TaperError, OSError) as error:
        print(f"taper: {error}", file=sys.stderr)
        return 1
    return 0


Commands = argparse._SubParsersAction  # the only name argparse has for it


def _add_inspect(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("inspect", help="show a plan: nodes, shapes, memory, report")
    parser.add_argument("plan", type=Path)
    parser.set_defaults(command=_inspect)


def _inspect(args: argparse.Namespace) -> None:
    from taper_runtime.format.reader import load

    print(describe_plan(load(args.plan)))


def _add_run(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("run", help="run a plan on .npy inputs")
    parser.add_argument("plan", type=Path)
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=FILE.npy",
        help="an input; those left out take the plan's sample",
    )
    parser.add_argument("--output", type=Path, metavar="FILE.npz", help="where outputs go")
    _add_session_options(parser)
    parser.set_defaults(command=_run)


def _run(args: argparse.Namespace) -> None:
    session = _session(args)
    feed = _sample_feed(session.plan)
    for assignment in args.input:
        name, separator, path = assignment.partition("=")
        if not separator:
            raise InputError(f"--input {assignment!r}: expected NAME=FILE.npy")
        try:
            feed[name] = np.load(path, allow_pickle=False)
        except ValueError as error:
            raise InputError(f"--input {name}: {path} is no .npy array: {error}") from None
    outputs = dict(zip(session.plan.outputs, session.run(None, feed), strict=True))
    if args.output:
        np.savez(args.output, allow_pickle=False, **outputs)
    for name, array in outputs.items():
        print(f"{name}: {array.dtype}{list(array.shape)}")
        print(np.array2string(array, threshold=20, edgeitems=3))


def _add_bench(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("bench", help="time a plan on its sample inputs, or the machine")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("plan", type=Path, nargs="?")
    what.add_argument(
        "--machine",
        action="store_true",
        help="measure arithmetic and memory at every ISA level and number of threads",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE.json", help="where the machine's limits go"
    )
    parser.add_argument("--runs", type=int, default=100, help="timed runs (default 100)")
    _add_sizes(parser)
    _add_session_options(parser)
    parser.set_defaults(command=_bench)


def _bench(args: argparse.Namespace) -> None:
    if args.machine:
        _bench_machine(args.output)
    elif args.output:
        raise InputError("--output: expected --machine beside it; it is where its limits go")
    else:
        _bench_plan(args)


def _bench_machine(output: Path | None) -> None:
    from taper_runtime.machine import describe_limits, measure_limits, save_limits

    limits = measure_limits(_native.available_isas(), range(1, thread_count() + 1))
    print(describe_limits(limits))
    if output:
        save_limits(limits, output)


def _bench_plan(args: argparse.Namespace) -> None:
    begin = time.perf_counter()
    session = _session(args)
    opened = time.perf_counter() - begin
    feed = _sample_feed(session.plan, args.size)
    times = []
    for _ in range(max(args.runs, 1)):
        begin = time.perf_counter()
        session.run(None, feed)
        times.append(time.perf_counter() - begin)
    print(
        f"open {1e3 * opened:.2f} ms, first run {1e3 * times[0]:.3f} ms, then "
        f"min {1e3 * min(times):.3f} ms, median {1e3 * statistics.median(times):.3f} ms "
        f"over {len(times)} runs"
    )


def _add_profile(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("profile", help="time every node beside the machine's limit")
    parser.add_argument("plan", type=Path)
    parser.add_argument("--runs", type=int, default=20, help="timed runs (default 20)")
    _add_sizes(parser)
    parser.add_argument(
        "--machine",
        type=Path,
        metavar="FILE.json",
        help="limits that `bench --machine --output` wrote; else they are measured, for a second",
    )
    parser.add_argument(
        "--trace", type=Path, metavar="FILE.json", help="write a trace for Chrome or Perfetto"
    )
    parser.set_defaults(command=_profile)


def _profile(args: argparse.Namespace) -> None:
    from taper_runtime.format.reader import load
    from taper_runtime.machine import load_limits, measure_limits
    from taper_runtime.profile import describe_profile, profile_plan, save_trace

    plan, isa, threads = load(args.plan), _native.active_isa(), thread_count()
    if args.machine:
        limits = load_limits(args.machine, isa, threads)
    else:
        limits = measure_limits([isa], [threads])[0]
    profile = profile_plan(
        plan, _sample_feed(plan, args.size), runs=max(args.runs, 1), threads=threads
    )
    print(describe_profile(profile, limits))
    if args.trace:
        save_trace(profile, args.trace)


def _add_session_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--strict-native", action="store_true", help="refuse numpy fallbacks")
    parser.add_argument("--executor", default="compiled", choices=("compiled", "interpreted"))


def _session(args: argparse.Namespace) -> InferenceSession:
    options = SessionOptions()
    options.strict_native = args.strict_native
    options.executor = args.executor
    return InferenceSession(args.plan, options)


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--size",
        action="append",
        default=[],
        metavar="NAME=N",
        help="a size that varies; those left out are as exported",
    )


def _sample_feed(plan: Plan, assignments: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """The inputs the plan was exported with, repeated or cut to these sizes; zeros without any."""
    sizes = bind_sizes(plan, {name: array.shape for name, array in plan.samples.items()})
    sizes = {name: sizes.get(name, nonempty(*limits)[0]) for name, limits in plan.sizes.items()}
    for assignment in assignments:
        name, _, number = assignment.partition("=")
        if name not in sizes or not number.isdecimal():
            raise InputError(f"--size {assignment!r}: expected one of {[*sizes]}, = and a number")
        sizes[name] = int(number)
    feed = {}
    for name in plan.inputs:
        spec = plan.tensors[name]
        shape = tuple(evaluate(size, sizes) for size in spec.shape)
        sample = plan.samples.get(name)
        if sample is None or not sample.size:
            feed[name] = np.zeros(shape, DTYPES[spec.dtype].storage)
        else:
            feed[name] = np.resize(sample, shape)
    return feed


if __name__ == "__main__":
    sys.exit(main())
