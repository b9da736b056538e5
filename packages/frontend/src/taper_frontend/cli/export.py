"""Add the command ``taper export``."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taper_frontend.cli.export_commands import public, saved
from taper_frontend.errors import ExportError
from taper_runtime.base.text import printable_lines
from taper_runtime.cli.command_line import Result
from taper_runtime.cli.objects import named_object
from taper_runtime.cli.shared_options import is_number

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from taper_frontend.explainer import Explanation

_DYNAMIC = "NAME=AXIS[:SIZE],... | JSON | MODULE:FUNCTION"


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options; the runtime's command calls this through its entry point."""
    parser.description = "export a PyTorch model to a plan"
    parser.add_argument(
        "model",
        metavar="MODULE:FACTORY | FILE.pt2",
        help="a function that returns the model, or (model, args) or (model, args, kwargs)",
    )
    parser.add_argument(
        "--args",
        metavar="MODULE:FUNCTION",
        help="a function that returns the tuple of example arguments",
    )
    parser.add_argument(
        "--model",
        dest="program",
        metavar="NAME",
        help="the program to take of a .pt2 file with several",
    )
    goal = parser.add_mutually_exclusive_group(required=True)
    goal.add_argument("-o", "--output", type=Path, metavar="FILE.taper")
    goal.add_argument(
        "--explain",
        action="store_true",
        help="write nothing: list what cannot be exported and why, and what numpy would compute",
    )
    parser.add_argument(
        "--dynamic",
        action="append",
        default=[],
        metavar=_DYNAMIC,
        help="dimensions that vary: axes of an input, with names or without; an object of such "
        "inputs; or a function returning what torch.export takes as dynamic_shapes",
    )
    for which in ("input", "output"):
        parser.add_argument(
            f"--{which}-names",
            type=lambda text: text.split(","),
            metavar="NAME,...",
            help=f"names of the {which}s, in order",
        )
    parser.add_argument(
        "--dtype",
        choices=("float16", "bfloat16", "float32", "float64"),
        help="cast the module and its floating-point arguments first",
    )
    parser.add_argument(
        "--weights",
        choices=("fixed", "replaceable"),
        help="whether a session can load other weights (default: fixed)",
    )
    parser.add_argument(
        "--packing",
        choices=("stored", "at_open"),
        help="whether the file has packed weights, or plain ones that sessions pack "
        "(default: stored)",
    )
    parser.add_argument(
        "--quantize",
        metavar="SCHEME",
        help="store weights in fewer bits: int8, int4, int4.64.zeros, float16, bfloat16, ...",
    )
    parser.add_argument(
        "--memory-budget",
        type=int,
        metavar="BYTES",
        help="what the arena of a run may take: order and split nodes, and compute some again, so "
        "that it fits",
    )
    parser.add_argument(
        "--tuned",
        type=Path,
        metavar="FILE",
        help="a database of `taper tune`: split chains and choose formats by its measured times",
    )
    parser.add_argument(
        "--require-tuned",
        action="store_true",
        default=None,
        help="refuse a model of which the database lacks times",
    )
    parser.add_argument(
        "--other-bits",
        action="store_true",
        default=None,
        help="take what wins in the database also where it gives other bits",
    )
    parser.add_argument(
        "--cache",
        metavar="FOLDER",
        help="take the plan of an equal export from this folder, or store it there (default: "
        "TAPER_CACHE_DIR, if it is set)",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE.html | FILE.json",
        help="write what the compiler did: a page, or the same as JSON",
    )
    parser.add_argument(
        "--quiet", action="store_true", help="do not show on the terminal which step runs"
    )
    verification = parser.add_mutually_exclusive_group()
    verification.add_argument(
        "--verify",
        choices=("outputs", "deep"),
        default=True,
        help="compare only the outputs with the module's, or the values inside on random inputs "
        "too (default: those inside on the example)",
    )
    verification.add_argument(
        "--no-verify",
        action="store_const",
        const=False,
        dest="verify",
        help="skip the run beside the module",
    )
    parser.set_defaults(command=_export)


def _export(args: argparse.Namespace) -> Result:
    """Export a model with the options of the command line, and save the plan."""
    model, inputs, kwargs = _load(args.model, args.args)
    if args.dtype:
        model, inputs, kwargs = _cast(model, inputs, kwargs, args.dtype)
    shapes = _dynamic(args.dynamic)
    if args.explain:
        explain = public("explain")
        if args.trace:
            raise ExportError("--trace: expected an export, and --explain writes nothing")
        return _explained(explain(model, inputs, kwargs, model=args.program, **shapes))
    names = (
        *("input_names", "output_names", "trace", "weights", "packing", "quantize", "cache"),
        *("memory_budget", "tuned", "require_tuned", "other_bits"),
    )
    given = {name: getattr(args, name) for name in names}
    options = {key: value for key, value in given.items() if value is not None} | shapes
    with warnings.catch_warnings():
        # warnings of the export itself are in the report
        warnings.filterwarnings("ignore", module=r"taper_frontend\.cli")
        shown: dict[str, Any] = {"progress": not args.quiet}
        if args.verify is not True:
            shown["verify"] = args.verify
        plan = public("export")(model, inputs, kwargs, model=args.program, **shown, **options)
    return saved(plan, args.output)


def _explained(explanation: Explanation) -> Result:
    data = {
        "nodes": explanation.nodes,
        "supported": explanation.supported,
        "breaks": [each._asdict() for each in explanation.breaks],
        "fallbacks": [each._asdict() for each in explanation.fallbacks],
        "warnings": explanation.warnings,
    }
    failure = "the model cannot be exported" if explanation.breaks else ""
    return Result(data, printable_lines(str(explanation)), failure)


def _dynamic(values: Sequence[str]) -> dict[str, Any]:
    """Convert ``--dynamic`` to arguments of ``export``."""
    if len(values) == 1 and "=" not in values[0] and not values[0].startswith("{"):
        return {"dynamic_shapes": _call(values[0])}
    axes: dict[str, Any] = {}
    for value in values:
        axes |= _parse_json(value) if value.startswith("{") else _parse_axes(value)
    return {"dynamic_axes": axes} if axes else {}


def _parse_axes(text: str) -> dict[str, dict[int, Any]]:
    """Parse ``NAME=AXIS[:SIZE],...``; torch names sizes without a name."""
    from torch.export import Dim

    name, _, places = text.partition("=")
    axes: dict[int, Any] = {}
    for place in places.split(","):
        axis, colon, size = place.partition(":")
        if not name or not is_number(axis) or (colon and not size):
            raise ExportError(f"--dynamic {text!r}: expected NAME=AXIS[:SIZE],... got {place!r}")
        axes[int(axis)] = size or Dim.AUTO
    return {name: axes}


def _parse_json(text: str) -> dict[str, Any]:
    """Parse an object of inputs, each an object from axis to size or an array of axes."""
    try:
        given = json.loads(text)
        return {
            name: {int(axis): size for axis, size in axes.items()}
            if isinstance(axes, dict)
            else [int(axis) for axis in axes]
            for name, axes in given.items()
        }
    except (ValueError, TypeError) as error:
        raise ExportError(
            f'--dynamic {text!r}: expected JSON as in {{"x": {{"0": "batch"}}, "y": [0]}}: {error}'
        ) from None


def _cast(
    model: Any, inputs: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Convert a module, and its float arguments, to another dtype."""
    import torch
    from torch.utils._pytree import tree_map_only

    dtype: torch.dtype = getattr(torch, name)
    if not isinstance(model, torch.nn.Module):
        raise ExportError("--dtype: expected a module, got a .pt2 file")
    inputs, kwargs = tree_map_only(
        torch.Tensor, lambda x: x.to(dtype) if x.is_floating_point() else x, (inputs, kwargs)
    )
    return model.to(dtype), inputs, kwargs


def _load(model: str, args: str | None) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the model and its example arguments from the command line."""
    file = Path(model)
    if file.suffix == ".pt2" or (file.suffix != ".py" and file.is_file()):
        return file, (), {}  # an export says what is wrong with a file
    made = _call(model)
    inputs: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(made, tuple):
        made, inputs, *rest = made
        kwargs = rest[0] if rest else {}
    if args is not None:
        inputs = _call(args)
    if not isinstance(inputs, tuple):
        raise ExportError(f"example arguments: expected a tuple, got {type(inputs).__name__}")
    return made, inputs, kwargs


def _call(reference: str) -> Any:
    """Call the function that ``MODULE:NAME`` names."""
    return named_object(reference)()
