"""Add the command ``taper run``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.base.errors import InputError
from taper_runtime.base.text import printable
from taper_runtime.cli.command_line import Result
from taper_runtime.cli.shared_options import (
    add_plan,
    add_session_options,
    add_sizes,
    make_feed,
    open_session,
)
from taper_runtime.file.plain_data import to_json

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from taper_runtime.plan.plan import Plan


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = "run a plan on .npy inputs"
    add_plan(parser)
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=FILE.npy",
        help="an input; for other inputs the plan's samples are used",
    )
    parser.add_argument(
        "--args",
        type=Path,
        metavar="FILE.npz",
        help="an archive of all inputs, each under its name as --output spells it",
    )
    parser.add_argument(
        "--sample",
        action="store_true",
        help="run on the plan's sample inputs; an error if it has none",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE.npz",
        help="write the outputs to an archive, each under its name as a URL would spell it",
    )
    add_sizes(parser)
    add_session_options(parser)
    parser.set_defaults(command=_run)


def _run(args: argparse.Namespace) -> Result:
    """Run a plan once; print the outputs, or save them."""
    session = open_session(args)
    plan = session.plan
    arrays = session.run(None, _feed(plan, args))
    outputs = dict(zip(plan.outputs, arrays, strict=True))
    if args.output:
        from taper_runtime.cli.npz import save_npz

        save_npz(args.output, outputs)
    data: dict[str, Any] = {}
    lines = []
    for name, array in outputs.items():
        dtype = plan.tensors[name].seen.dtype
        lines.append(printable(f"{name}: {dtype}{list(array.shape)}"))
        lines.append(np.array2string(array, threshold=20, edgeitems=3))
        data[name] = {"dtype": dtype, "shape": list(array.shape)}
        if not args.output:
            # JSON has no complex numbers, so their two parts are written
            if array.dtype.kind == "c":
                array = np.stack([array.real, array.imag], -1)
            data[name]["values"] = to_json(array.tolist(), "values")
    return Result({"outputs": data}, "\n".join(lines))


def _feed(plan: Plan, args: argparse.Namespace) -> dict[str, np.ndarray]:
    """Return the inputs that the options specify."""
    ways = [bool(args.input or args.size), bool(args.args), args.sample]
    if sum(ways) > 1:
        raise InputError("expected --input and --size, or --args, or --sample, not several of them")
    if args.args:
        from taper_runtime.cli.npz import load_npz

        return load_npz(args.args)
    if args.sample:
        missing = [name for name in plan.inputs if name not in plan.samples]
        if missing:
            raise InputError(
                f"--sample: expected samples of all inputs, got none of {', '.join(missing)}"
            )
        return dict(plan.samples)
    return make_feed(plan, args.size, read_inputs(args.input))


def read_inputs(assignments: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the arrays of the options ``NAME=FILE.npy``."""
    arrays = {}
    for assignment in assignments:
        name, separator, path = assignment.partition("=")
        if not separator:
            raise InputError(f"--input {assignment!r}: expected NAME=FILE.npy")
        try:
            array = np.load(path, allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise InputError(f"--input {name}: {path} is not a .npy array: {error}") from None
        if not isinstance(array, np.ndarray):
            array.close()
            raise InputError(f"--input {name}: {path}: expected a .npy array, got an archive")
        arrays[name] = array
    return arrays
