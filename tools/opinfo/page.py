"""Write the page of the report."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import torch

from taper_frontend.lowering import HANDLERS
from tools.opinfo.judge import EXPORT, OUTSIDE, REFUSED, RIGHT, RUN, WRONG, why_left_out

if TYPE_CHECKING:
    from tools.opinfo.judge import Verdict


def page(
    results: dict[str, dict[str, list[Verdict]]], summary: list[list[str]], most: int | None
) -> str:
    """Return the page as Markdown."""
    taken = "all samples" if most is None else f"at most {most} samples per op and dtype"
    made = (
        "This page is made by `nox -s opinfo`, which exports, saves and loads PyTorch's own "
        "samples (OpInfo) of every op of its database, runs them in the torch-free executor and "
        "compares them with torch (`torch.testing.assert_close`, in the dtype's default "
        "tolerances or the OpInfo's own). "
        f"It has {taken}, of torch {torch.__version__.split('+')[0]}."
    )
    served = (
        "A sample is *served* unless torch itself cannot run or export it, or it needs what Taper "
        "leaves out: see below."
    )
    refused = (
        "Sparse tensors, torch's quantized dtypes, custom ops without a handler and decisions of "
        "Python by values are refused by name. OpInfos not served, and why:"
    )
    counts = "dtype, samples, refused by torch, not served, served, exported, run, right, share"
    lines = [
        "# Op coverage",
        "",
        made,
        "",
        served,
        "",
        *_table(counts.split(", "), summary),
        "",
        "## What fails",
        "",
        *_causes(results, (WRONG, RUN, EXPORT)),
        "",
        "## Other than torch, and right",
        "",
        *_causes(results, (RIGHT,)),
        "",
        "## What is left out",
        "",
        "Core ATen without a handler:",
        "",
        *_table(["op", "reason"], _core_left_out()),
        "",
        refused,
        "",
        *_causes(results, (OUTSIDE,)),
        "",
        "## What torch refuses",
        "",
        *_causes(results, (REFUSED,)),
        "",
        "## Per op",
        "",
        "Right of served; blank where no sample is served.",
        "",
        *_per_op(results, [row[0] for row in summary]),
    ]
    return "\n".join(lines) + "\n"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    cells = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(row)} |" for row in cells]


def _causes(results: dict[str, dict[str, list[Verdict]]], kinds: tuple[str, ...]) -> list[str]:
    where: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for op, by_dtype in results.items():
        for verdicts in by_dtype.values():
            for verdict, cause in verdicts:
                if verdict in kinds and (verdict != RIGHT or cause):
                    where[verdict, cause[:120].replace("|", "/").replace("<", "")][op] += 1
    if not where:
        return ["Nothing."]
    rows = []
    for (verdict, cause), ops in sorted(where.items(), key=lambda item: -item[1].total()):
        names = ", ".join(f"`{op}`" for op in list(ops)[:6])
        more = f" and {len(ops) - 6} more" if len(ops) > 6 else ""
        rows.append([str(ops.total()), verdict, cause, names + more])
    return _table(["samples", "what", "cause", "OpInfo"], rows)


def _core_left_out() -> list[list[str]]:
    rows = []
    for packet in sorted(dir(torch.ops.aten)):
        overloads = getattr(torch.ops.aten, packet)
        for overload in getattr(overloads, "overloads", list)():
            op = getattr(overloads, overload)
            if torch.Tag.core in op.tags and str(op) not in HANDLERS:
                rows.append([f"`{op}`", _why_no_handler(op)])
    return rows


def _why_no_handler(op: torch._ops.OpOverload[..., Any]) -> str:
    """Return why a Core ATen op that no handler lowers needs none."""
    if why := why_left_out(op):
        return why
    if "aten.sym_" in str(op):
        return "a size, which capture resolves"
    if op._schema.is_mutable:
        return "writes to its argument; captured as a function that does not"
    if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd"):
        return "captured as what it is made of"
    return "not done yet"


def _per_op(results: dict[str, dict[str, list[Verdict]]], dtypes: list[str]) -> list[str]:
    rows = []
    for op, by_dtype in results.items():
        cells = []
        for dtype in dtypes:
            count = Counter(v.verdict for v in by_dtype.get(dtype, ()))
            served = sum(count[v] for v in (RIGHT, WRONG, RUN, EXPORT))
            cells.append(f"{count[RIGHT]} / {served}" if served else "")
        if any(cells):
            rows.append([f"`{op}`", *cells])
    return _table(["op", *dtypes], rows)
