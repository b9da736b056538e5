"""Summarize how many nodes of a plan have native kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Compilability(NamedTuple):
    """Share of a plan that has native kernels; a node that numpy computes is a break.

    Attributes
    ----------
    score : float
        The share of the nodes that are no breaks, 0 to 1; 0 if there are no nodes.
    breaks : int
    first_break : str or None
        The first break's node, by its first output.
    classes : mapping of str to int
        How many breaks there are, by op.
    """

    score: float
    breaks: int
    first_break: str | None
    classes: Mapping[str, int]


def compilability(nodes: int, breaks: Sequence[tuple[str, str]]) -> Compilability:
    """Return the summary of a plan; ``breaks`` are names and ops, in order."""
    classes: dict[str, int] = {}
    for _, op in breaks:
        classes[op] = classes.get(op, 0) + 1
    score = (nodes - len(breaks)) / nodes if nodes else 0.0
    first = breaks[0][0] if breaks else None
    return Compilability(score, len(breaks), first, dict(sorted(classes.items())))
