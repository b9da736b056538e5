"""Add ``taper oinf``: check, write and convert model files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from taper_runtime.base.errors import InputError
from taper_runtime.base.text import counted, printable
from taper_runtime.cli.command_line import Result

if TYPE_CHECKING:
    import argparse

    from taper_openinfer.oinf.exchange import PlanTensors


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = "check, write or convert an .oinf file"
    parser.add_argument("action", choices=sorted(_ACTIONS))
    parser.add_argument("source", metavar="FILE|MODULE:NAME")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="the file to write; its ending gives the format",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FILE.json",
        help="keyword arguments of the function that write calls",
    )
    parser.add_argument(
        "--format-version",
        type=int,
        choices=(1, 2),
        help="version of the .oinf file (default: 1, unless something needs 2)",
    )
    parser.add_argument("--model", metavar="NAME", help="the plan to take from a file with several")
    parser.set_defaults(command=_oinf)


def _oinf(args: argparse.Namespace) -> Result:
    if (args.output is None) != (args.action == "verify"):
        expected = "none" if args.action == "verify" else "a file"
        raise InputError(f"--output: expected {expected} with {args.action}")
    return _ACTIONS[args.action](args)


def _verify(args: argparse.Namespace) -> Result:
    from taper_openinfer.oinf.reader import open_model
    from taper_openinfer.oinf.summary import describe_model

    with open_model(args.source) as model:
        data, text = describe_model(model)
    return Result(data, text)


def _write(args: argparse.Namespace) -> Result:
    from taper_runtime.cli.objects import named_object

    arguments = _arguments(args.data) if args.data else {}
    made = named_object(args.source)(**arguments)
    return _written(args, made, {})


def _arguments(path: Path) -> dict[str, Any]:
    from taper_runtime.file.container import parse_json

    arguments = parse_json(path.read_text(encoding="utf-8"), str(path))
    if type(arguments) is not dict:
        raise InputError(f"{path}: expected an object of keyword arguments")
    return arguments


def _convert(args: argparse.Namespace) -> Result:
    """Convert between model files, plans and safetensors files, as the two suffixes say."""
    from taper_openinfer.oinf.layout import MAGIC

    path = Path(args.source)
    with path.open("rb") as file:
        is_model = file.read(len(MAGIC)) == MAGIC
    ending = args.output.suffix
    if ending not in (".oinf", ".safetensors"):
        raise InputError(f"--output: expected .oinf or .safetensors, got {args.output.name!r}")
    if ending == ".safetensors":
        if not is_model:
            raise InputError(f"{path}: expected a .oinf file, to write safetensors from")
        return _to_safetensors(path, args.output)
    if is_model:
        from taper_openinfer.oinf.reader import open_model

        with open_model(path) as model:
            return _written(args, model, {})
    if path.suffix == ".taper":
        return _from_plan(args)
    from taper_openinfer.oinf.exchange import safetensors_source

    source = safetensors_source(path)
    return _written(args, source.tensors, {"widened": [*source.widened]})


def _from_plan(args: argparse.Namespace) -> Result:
    from taper_openinfer.oinf.exchange import plan_tensors
    from taper_runtime.file.reader import load

    found: PlanTensors = plan_tensors(load(args.source, args.model))
    return _written(
        args, found.tensors, {"parameters": [*found.parameters], "computed": [*found.computed]}
    )


def _written(args: argparse.Namespace, source: object, lists: dict[str, list[str]]) -> Result:
    """Write a model file; return a report with these lists of names."""
    from taper_openinfer.oinf.reader import open_model
    from taper_openinfer.oinf.writer import write_model

    write_model(args.output, source, args.format_version)
    with open_model(args.output) as model:
        data = {"version": model.version, "tensors": len(model.tensors)}
    return _result(args.output, data, lists)


def _to_safetensors(path: Path, output: Path) -> Result:
    from taper_openinfer.oinf.exchange import write_safetensors
    from taper_openinfer.oinf.reader import open_model

    with open_model(path) as model:
        written = write_safetensors(output, model)
    lists = {"widened": [*written.widened], "left_out": [*written.left_out]}
    return _result(output, {"version": None, "tensors": len(written.tensors)}, lists)


def _result(output: Path, data: dict[str, Any], lists: dict[str, list[str]]) -> Result:
    nbytes = output.stat().st_size
    names = ("parameters", "computed", "widened", "left_out")
    lists = {name: lists.get(name, []) for name in names}
    text = [f"{output}: {counted(data['tensors'], 'tensor')}, {nbytes} bytes"]
    text += [f"{name.replace('_', ' ')}: {', '.join(lists[name])}" for name in names if lists[name]]
    return Result(
        {"output": str(output), "bytes": nbytes, **data, **lists}, "\n".join(map(printable, text))
    )


_ACTIONS = {"convert": _convert, "verify": _verify, "write": _write}
