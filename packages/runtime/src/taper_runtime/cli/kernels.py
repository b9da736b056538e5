"""Add the command ``taper kernels``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.base.errors import InputError
from taper_runtime.base.text import unknown
from taper_runtime.cli.command_line import Result
from taper_runtime.native import _kernels

if TYPE_CHECKING:
    import argparse

    from taper_runtime.native._kernels import Kernel
    from taper_runtime.native.variants import Variant


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.description = "list the kernels of an ISA level, and their variants"
    parser.add_argument("op", nargs="*", metavar="OP", help="ops to list (default: all)")
    parser.add_argument(
        "--isa", metavar="LEVEL", help="an ISA level (default: the one of sessions)"
    )
    parser.set_defaults(command=_list)


def _list(args: argparse.Namespace) -> Result:
    """List the kernels of all ops, or of the given ones."""
    isa = _kernels.active_isa(args.isa)
    kernels = _kernels.all_kernels(isa)
    ops = dict.fromkeys(kernel.op for kernel in kernels)
    for op in args.op:
        if op not in ops:
            raise InputError(unknown("op with kernels", op, ops))
    wanted = args.op or ops
    rows = [kernel for op in dict.fromkeys(wanted) for kernel in kernels if kernel.op == op]
    data = {"isa": isa, "kernels": [_record(kernel) for kernel in rows]}
    lines = []
    op = None
    for kernel in rows:
        if kernel.op != op:
            op = kernel.op
            lines.append(f"{op} ({isa})")
        lines += _lines(kernel)
    if any(variant.other_bits for kernel in rows for variant in kernel.variants):
        lines.append("* gives other bits than the variant that the kernel chooses")
    return Result(data, "\n".join(lines))


def _record(kernel: Kernel) -> dict[str, Any]:
    return {
        "op": kernel.op,
        "name": kernel.name,
        "types": kernel.types,
        "needs": kernel.needs,
        "here": kernel.is_here,
        "variants": [
            {"name": each.name, "other_bits": each.other_bits, "tile": each.tile}
            for each in kernel.variants
        ],
    }


def _lines(kernel: Kernel) -> list[str]:
    lines = [f"  {kernel.name}: {kernel.types}"]
    if kernel.needs:
        here = "" if kernel.is_here else ", which this CPU does not have"
        lines.append(f"    needs {', '.join(kernel.needs)}{here}")
    if kernel.variants:
        lines.append(f"    variants {', '.join(_variant_text(each) for each in kernel.variants)}")
    return lines


def _variant_text(variant: Variant) -> str:
    tile = f" {variant.tile[0]}x{variant.tile[1]}" if variant.tile else ""
    return f"{variant.name}{'*' if variant.other_bits else ''}{tile}"
