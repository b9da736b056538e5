"""Write the page of the report."""

from __future__ import annotations

from collections import Counter
from importlib.metadata import version
from typing import TYPE_CHECKING

from tools.zoo import ALL_GROUPS
from tools.zoo.judge import EXPORT, REFUSED, RIGHT, RUN, TOLERANCE, WRONG

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tools.zoo.judge import Verdict

#: Group -> name of an architecture -> what became of it.
Verdicts = dict[str, dict[str, "Verdict"]]

HEAD = ("group", "architectures", "refused", "exported", "run", "right", "share", "all native")


def page(verdicts: Verdicts) -> str:
    """Return the page as Markdown."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    made = (
        "This page is made by `nox -s models`, which exports and saves every architecture of "
        "`tools/zoo/`, small and with seeded weights, runs it compiled in a process that cannot "
        "import torch, and compares it with torch. An error is the largest relative L2 difference "
        f"of an output; up to {TOLERANCE:g} is right. Versions: {versions.replace('+cpu', '')}."
    )
    share = (
        "*Refused* counts models that `torch.export` itself does not take; the share is that of "
        "the others which are right. *All native* counts those without a node that numpy computes."
    )
    missing = [
        name
        for group in ALL_GROUPS
        for name in ALL_GROUPS[group]
        if name not in verdicts.get(group, ())
    ]
    lines = ["# Models", "", made, "", share, ""]
    if missing:
        lines += ["Not judged in this run: " + ", ".join(f"`{m}`" for m in missing) + ".", ""]
    lines += table(HEAD, counts(verdicts)[1:])
    lines += ["", "## What fails", "", *_causes(verdicts, (WRONG, RUN, EXPORT))]
    lines += ["", "## What torch.export refuses", "", *_causes(verdicts, (REFUSED,))]
    for group, by_name in verdicts.items():
        rows = [row(name, verdict) for name, verdict in by_name.items() if verdict.nodes]
        lines += ["", f"## {group.capitalize()}", ""]
        lines += table(("model", "nodes", "computed by numpy", "error"), rows)
    return "\n".join(lines) + "\n"


def counts(verdicts: Verdicts) -> list[list[str]]:
    """Return the head, a row of counts for each group, and one for all of them."""
    rows = [list(HEAD)]
    every = [verdict for by_name in verdicts.values() for verdict in by_name.values()]
    groups = {group: list(by_name.values()) for group, by_name in verdicts.items()}
    for group, members in {**groups, "all": every}.items():
        count = Counter(member.verdict for member in members)
        taken = len(members) - count[REFUSED]
        exported = taken - count[EXPORT]
        native = sum(m.verdict == RIGHT and not m.fallbacks for m in members)
        share = f"{count[RIGHT] / taken:.1%}" if taken else ""
        numbers = (len(members), count[REFUSED], exported, exported - count[RUN], count[RIGHT])
        rows.append([group, *map(str, numbers), share, str(native)])
    return rows


def row(name: str, verdict: Verdict) -> list[str]:
    """Return the cells of an architecture that was exported."""
    ops = Counter(verdict.fallbacks)
    numpy = ", ".join(f"{count} {op}" for op, count in sorted(ops.items()))
    error = "does not run" if verdict.verdict == RUN else f"{verdict.error:.1e}"
    return [f"`{name}`", str(verdict.nodes), numpy, error]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    cells = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(row)} |" for row in cells]


def _causes(verdicts: Mapping[str, Mapping[str, Verdict]], kinds: Sequence[str]) -> list[str]:
    rows = [
        [f"`{name}`", verdict.verdict, verdict.cause[:300].replace("|", "/").replace("<", "")]
        for by_name in verdicts.values()
        for name, verdict in by_name.items()
        if verdict.verdict in kinds
    ]
    return table(("model", "what", "cause"), rows) if rows else ["Nothing."]
