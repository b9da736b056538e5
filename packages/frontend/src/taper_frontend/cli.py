"""``taper export``: what the frontend adds to the runtime's command."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taper_runtime.report import describe_plan

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable


def add_export(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand; the runtime's command finds this by its entry point."""
    parser = commands.add_parser("export", help="export a PyTorch model to a plan")
    parser.add_argument(
        "model",
        metavar="MODULE:FACTORY | FILE.pt2",
        help="a function returning the model, or (model, args) or (model, args, kwargs)",
    )
    parser.add_argument(
        "--args",
        metavar="MODULE:FUNCTION",
        help="a function returning the tuple of example arguments",
    )
    goal = parser.add_mutually_exclusive_group(required=True)
    goal.add_argument("-o", "--output", type=Path, metavar="FILE.taper")
    goal.add_argument(
        "--explain",
        action="store_true",
        help="write nothing: say what cannot be exported and why, and what numpy would compute",
    )
    parser.add_argument("--no-verify", action="store_true", help="skip the run beside the module")
    parser.set_defaults(command=_export)


def _export(args: argparse.Namespace) -> None:
    # torch is imported here, so that `taper inspect` stays quick where it is installed.
    from taper_frontend.errors import ExportError
    from taper_frontend.explain import explain
    from taper_frontend.export import export

    model, inputs, kwargs = _load(args.model, args.args)
    if args.explain:
        explanation = explain(model, inputs, kwargs)
        print(explanation)
        if explanation.breaks:
            raise ExportError("the model cannot be exported")
        return
    plan = export(model, inputs, kwargs, verify=not args.no_verify, progress=True)
    plan.save(args.output)
    print(describe_plan(plan, nodes=False))
    print(f"\n{args.output}: {args.output.stat().st_size / 1e6:.1f} MB")


def _load(model: str, args: str | None) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The model and its example arguments, from what stands on the command line."""
    from taper_frontend.errors import ExportError

    if model.endswith(".pt2"):
        return Path(model), (), {}
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
    """Call the function ``MODULE:NAME`` names."""
    from taper_frontend.errors import ExportError

    module_name, separator, name = reference.partition(":")
    if not separator:
        raise ExportError(f"{reference!r}: expected MODULE:NAME")
    sys.path.insert(0, "")  # as `python -m` has it: modules of the working directory
    try:
        factory: Callable[[], Any] = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ExportError(f"{reference!r}: {error}") from None
    return factory()
