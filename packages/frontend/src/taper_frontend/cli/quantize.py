"""Add the command ``taper quantize``, which needs no torch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taper_frontend.errors import ExportError
from taper_runtime.base.text import counted, printable_lines
from taper_runtime.cli.command_line import Result
from taper_runtime.cli.profile import add_profiling, profile_all
from taper_runtime.cli.shared_options import add_plan, load_plan, positive
from taper_runtime.plan.spelling import size_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options; the runtime's command calls this through its entry point."""
    parser.description = "store the float weights of a plan in fewer bits"
    add_plan(parser)
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.taper", required=True)
    parser.add_argument(
        "--scheme",
        default="int8",
        help="int8, int4, int2, int4.GROUP.zeros.SCALES, int4.offsets, float16 or bfloat16; "
        "int8_grouped or int4_grouped, with activations of 8 bits; bfloat16_rounded, with "
        "activations of 16 bits (default: int8)",
    )
    parser.add_argument(
        "--layer",
        action="append",
        default=[],
        metavar="PATTERN=SCHEME",
        help="another scheme for the weights whose names match; float32 leaves them as they are",
    )
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument(
        "--max-bytes",
        type=positive,
        metavar="N",
        help="choose schemes so that all weights take at most N bytes",
    )
    limit.add_argument(
        "--max-error",
        type=_fraction,
        metavar="E",
        help="choose for each weight the narrowest scheme of at most this relative error",
    )
    parser.add_argument(
        "--choices",
        type=lambda text: tuple(text.split(",")),
        metavar="SCHEME,...",
        help="the schemes for --max-bytes and --max-error (default: int4,int8,float32)",
    )
    parser.add_argument(
        "--no-search",
        action="store_true",
        help="take the scales that the largest magnitudes need, without a search",
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FILE.html",
        help="write a page about the plan: the error of each weight, sizes and times, before and "
        "after; the options that follow are for its times",
    )
    add_profiling(parser)
    parser.set_defaults(command=_quantize)


def _fraction(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}") from None


def _quantize(args: argparse.Namespace) -> Result:
    """Quantize a plan with the options of the command line, and save it."""
    from taper_frontend.compiler.quantization.schemes import read_quantization
    from taper_frontend.quantized_plan import quantize_plan

    options = read_quantization(args.scheme)._replace(
        layers=dict(map(_pair, args.layer)),
        search=not args.no_search,
        max_bytes=args.max_bytes,
        max_error=args.max_error,
    )
    if args.choices is not None:
        options = options._replace(choices=args.choices)
    before = load_plan(args)
    plan = quantize_plan(before, options)
    plan.save(args.output)
    if args.report is not None:
        from taper_runtime.reports.pages.report_page import report_page

        (was, now), limits = profile_all(args, [before, plan])
        page = report_page(args.output.name, now, limits, was)
        args.report.write_text(page, encoding="utf-8")
    report = plan.metadata["quantized"]
    size = args.output.stat().st_size
    data = {"output": str(args.output), "bytes": size, "quantized": report}
    lines = [*describe_quantized(report), "", f"{args.output}: {size_text(size)}"]
    return Result(data, printable_lines("\n".join(lines)))


def _pair(text: str) -> tuple[str, str]:
    pattern, equals, scheme = text.rpartition("=")
    if not equals or not pattern:
        raise ExportError(f"--layer: expected PATTERN=SCHEME, got {text!r}")
    return pattern, scheme


def describe_quantized(report: Mapping[str, Any]) -> Iterator[str]:
    """Describe what became of each weight, a line for each, and how far the results are."""
    layers = report["layers"]
    rows = [("weight", "op", "scheme", "bytes", "error", "computed in")]
    rows += [
        (
            layer["name"],
            layer["op"],
            layer["scheme"],
            f"{layer['before']:,} -> {layer['after']:,}",
            f"{layer['error']:.2g}",
            ": ".join(text for text in (layer["arithmetic"], layer["reason"]) if text),
        )
        for layer in layers
    ]
    yield from _table(rows)
    before, after = (sum(layer[key] for layer in layers) for key in ("before", "after"))
    yield ""
    yield f"{counted(len(layers), 'weight')}: {size_text(before)} -> {size_text(after)}"
    for name, apart in report.get("distance", {}).items():
        yield (
            f"output {name}: relative error {apart['relative_error']:.3g}, "
            f"cosine {apart['cosine']:.6f}"
        )


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Align the columns of a table."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
