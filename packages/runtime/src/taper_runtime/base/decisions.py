"""Record decisions: each has its candidates, their numbers, and what was chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.base.errors import PlanFormatError
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The most candidates of a decision in a plan file: there are never so many.
_MOST_CANDIDATES = 1000


class Decision(NamedTuple):
    """One choice of the compiler or of a session; ``str`` returns its line of the log.

    Attributes
    ----------
    about : str
        What was chosen, such as "kernel", "form", "format", "tiles" or "threads".
    name : str
        The tensor or node that it is about; empty if it is about all of them.
    chosen : str
    among : mapping of str to int or None
        The candidates, each with its time in nanoseconds: estimated, unless ``reason`` says that it
        was measured. None if the time plays no role.
    reason : str
        Why it was chosen.
    """

    about: str
    name: str
    chosen: str
    among: Mapping[str, int | None] = {}
    reason: str = ""

    def __str__(self) -> str:
        """Return the line: the same in each process."""
        subject = f"{self.about} {self.name}" if self.name else self.about
        text = f"{subject}: {self.chosen}"
        if self.among:
            text += f", among {self.candidates()}"
        return printable(f"{text}; {self.reason}" if self.reason else text)

    def candidates(self) -> str:
        """Return the candidates with their times as text, sorted as in a plan file."""
        return ", ".join(
            name if ns is None else f"{name} ({ns} ns)" for name, ns in sorted(self.among.items())
        )

    def data(self) -> dict[str, Any]:
        """Return the decision as plain data for JSON."""
        return {**self._asdict(), "among": dict(self.among)}


def read_decisions(metadata: Mapping[str, Any]) -> list[Decision]:
    """Return the decisions that the metadata of a plan lists.

    Raises
    ------
    PlanFormatError
        If they are not what :meth:`Decision.data` returns: they may come from a hostile file.
    """
    rows = metadata.get("decisions", ())
    if not isinstance(rows, (list, tuple)):
        got = type(rows).__name__
        raise PlanFormatError("metadata", f"expected a list of decisions, got {got}")
    return [_checked(row) for row in rows]


def _checked(row: object) -> Decision:
    fields = row if isinstance(row, dict) else {}
    among = fields.get("among")
    texts = [fields.get(name) for name in ("about", "name", "chosen", "reason")]
    if (
        set(fields) != set(Decision._fields)
        or not all(isinstance(text, str) for text in texts)
        or not isinstance(among, dict)
        or len(among) > _MOST_CANDIDATES
        or not all(ns is None or type(ns) is int for ns in among.values())
    ):
        got = str(row)[:200]
        raise PlanFormatError("metadata", f"expected the fields of a decision, got {got!r}")
    return Decision(**fields)
