"""Add options that several commands share, and read them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import InputError
from taper_runtime.base.option_values import PACKING
from taper_runtime.base.size_values import size_at
from taper_runtime.cli.command_line import did_you_mean
from taper_runtime.executor.executor_kinds import DEFAULT_KIND, EXECUTORS
from taper_runtime.plan.binding import bind_sizes
from taper_runtime.plan.plan import is_converted
from taper_runtime.session.inference_session import InferenceSession
from taper_runtime.session.options import SessionOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taper_runtime.plan.plan import Plan


def positive(text: str) -> int:
    """Parse a number of at least 1."""
    if not (is_number(text) and 0 < int(text) < 2**31):
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, got {text!r}")
    return int(text)


def is_number(text: str) -> bool:
    """Return whether ``text`` is a decimal number that is not too long for Python to parse."""
    return text.isascii() and text.isdigit() and len(text) < 20


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Add the path of a plan, ``--model`` and ``--entry``."""
    parser.add_argument("plan", type=Path, metavar="FILE.taper")
    add_entry(parser)


def add_entry(parser: argparse.ArgumentParser) -> None:
    """Add ``--model`` and ``--entry``."""
    parser.add_argument(
        "--model", metavar="NAME", help="the plan to take from a file with several (default: model)"
    )
    parser.add_argument(
        "--entry", metavar="NAME", help="the entry of the plan to use (default: the default one)"
    )


def load_plan(args: argparse.Namespace, *, check_fingerprint: bool = False) -> Plan:
    """Load the plan that the options of :func:`add_plan` name; see :func:`taper_runtime.load`."""
    from taper_runtime.file.reader import load

    plan = load(args.plan, args.model, check_fingerprint=check_fingerprint)
    return plan if args.entry is None else plan.entry(args.entry)


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Add ``--threads``."""
    parser.add_argument(
        "--threads",
        type=positive,
        default=0,
        metavar="N",
        help="threads of a run (default: TAPER_NUM_THREADS, else the number of CPUs)",
    )


def add_runs(parser: argparse.ArgumentParser, default: int) -> None:
    """Add ``--runs``."""
    parser.add_argument(
        "--runs",
        type=positive,
        default=default,
        metavar="N",
        help=f"timed runs (default {default})",
    )


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Add ``--size``."""
    parser.add_argument(
        "--size",
        action="append",
        default=[],
        metavar="NAME=N",
        help="a size that varies; others have the values of the export",
    )


def add_executor(parser: argparse.ArgumentParser) -> None:
    """Add ``--executor``."""
    parser.add_argument(
        "--executor",
        default=DEFAULT_KIND,
        choices=[name for name in EXECUTORS if name != "delegate"],  # commands have no delegates
        help="interpreted and checked are for debugging; checked compares each node with its op",
    )


def add_session_options(parser: argparse.ArgumentParser) -> None:
    """Add the options with which a session is opened; those of a run belong to the commands."""
    add_threads(parser)
    parser.add_argument("--strict-native", action="store_true", help="refuse numpy fallbacks")
    add_executor(parser)
    parser.add_argument(
        "--kernel",
        action="append",
        default=[],
        metavar="OP=NAME",
        help="the kernel or variant that computes an op's nodes, as `taper kernels` lists them",
    )
    parser.add_argument(
        "--packing",
        choices=PACKING,
        default=PACKING[0],
        help="at_open packs plain weights in the formats that are fastest on this CPU",
    )
    parser.add_argument(
        "--seed",
        type=int,
        help="seed of the random numbers that the plan draws (default: from the system)",
    )


def open_session(args: argparse.Namespace) -> InferenceSession:
    """Open the plan with the options of :func:`add_session_options`."""
    return InferenceSession(load_plan(args), session_options(args))


def session_options(args: argparse.Namespace) -> SessionOptions:
    """Return the options of :func:`add_session_options`."""
    options = SessionOptions()
    options.intra_op_num_threads = args.threads
    options.strict_native = args.strict_native
    options.executor = args.executor
    options.seed = args.seed
    options.kernels = _kernels(args.kernel)
    options.packing = args.packing
    return options


def _kernels(assignments: Sequence[str]) -> dict[str, str]:
    """Return the names in the options ``--kernel OP=NAME``, by op."""
    names: dict[str, str] = {}
    for assignment in assignments:
        op, separator, name = assignment.partition("=")
        if not (op and separator and name):
            raise InputError(f"--kernel {assignment!r}: expected OP=NAME, such as MATMUL=dot")
        if names.setdefault(op, name) != name:
            raise InputError(
                f"--kernel: expected one kernel for {op}, got {names[op]!r} and {name!r}"
            )
    return names


def make_feed(
    plan: Plan, assignments: Sequence[str] = (), given: Mapping[str, np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """Return an array for every input of a plan.

    Arrays in ``given`` have the form of the plan (:mod:`taper_runtime.session.ends`). The others
    are the inputs of the export, or zeros if the plan has none, repeated or cut to the sizes. Sizes
    are those in ``assignments`` (``NAME=N``), else those of the given arrays, else those of the
    export.
    """
    given = dict(given or {})
    for name, array in given.items():
        if name not in plan.inputs:
            hint = did_you_mean(name, plan.inputs)
            raise InputError(f"--input: unknown input {name!r}{hint}; expected {list(plan.inputs)}")
        if is_converted(plan.tensors[name]):
            from taper_runtime.session.ends import to_plan

            given[name] = to_plan(plan.tensors[name], array, f"--input {name}")
    sizes = {name: max(low, 1) for name, (low, _) in plan.sizes.items()}
    sizes |= bind_sizes(plan, {name: array.shape for name, array in plan.samples.items()})
    sizes |= bind_sizes(plan, {name: array.shape for name, array in given.items()})
    for assignment in assignments:
        name, _, number = assignment.partition("=")
        if not sizes:
            raise InputError(f"--size {assignment!r}: no size of this plan varies")
        if name not in sizes or not is_number(number):
            raise InputError(
                f"--size {assignment!r}: expected NAME=NUMBER with a name of {[*sizes]}"
            )
        sizes[name] = int(number)
    return {
        name: given[name] if name in given else _sample(plan, name, sizes) for name in plan.inputs
    }


def _sample(plan: Plan, name: str, sizes: Mapping[str, int]) -> np.ndarray:
    spec = plan.tensors[name]
    shape = tuple(size_at(size, sizes) for size in spec.shape)
    sample = plan.samples.get(name)
    if sample is None or not sample.size:
        return np.zeros(shape, DTYPES[spec.dtype].storage)
    return np.resize(sample, shape)


def feed_sizes(plan: Plan, feed: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Return the value of every size variable for these inputs."""
    return bind_sizes(plan, {name: array.shape for name, array in feed.items()})
