"""Show a plan as a small table in notebooks; all text from the plan is escaped."""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import TYPE_CHECKING

from taper_runtime.base.text import printable
from taper_runtime.plan.spelling import range_text, type_text
from taper_runtime.reports.report import describe_memory

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taper_runtime.plan.plan import Plan

#: The most rows of one kind, and the most characters of a cell.
_ROWS, _CELL = 8, 200


def plan_html(plan: Plan) -> str:
    """Return HTML with inputs, outputs, sizes, nodes by op and memory, in the page's colours."""
    executed = Counter(node.op for node in plan.nodes if plan.is_executed(node))
    ops = ", ".join(f"{op} {count}" for op, count in executed.most_common(_ROWS))
    others = len(executed) - _ROWS
    rows = [
        *_limited("input", ((name, type_text(plan.tensors[name])) for name in plan.inputs)),
        *_limited("output", ((name, type_text(plan.tensors[name])) for name in plan.outputs)),
        *_limited("state", ((name, type_text(plan.tensors[name])) for name in plan.states)),
        *_limited("size", ((name, range_text(limits)) for name, limits in plan.sizes.items())),
        ("nodes", str(len(plan.nodes)), ops + (f" and {others} more ops" if others > 0 else "")),
        ("memory", "", describe_memory(plan)),
    ]
    body = "".join(
        f"<tr><th>{kind}</th>{_cell(name)}{_cell(text)}</tr>" for kind, name, text in rows
    )
    return f"<table><caption>Taper plan</caption><tbody>{body}</tbody></table>"


def _limited(kind: str, pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str, str]]:
    rows = [(kind, *pair) for pair in pairs]
    if len(rows) > _ROWS:
        rows[_ROWS - 1 :] = [(kind, "", f"and {len(rows) - _ROWS + 1} more")]
    return rows


def _cell(text: str) -> str:
    text = text if len(text) <= _CELL else f"{text[:_CELL]}..."
    return f"<td>{escape(printable(text))}</td>"
