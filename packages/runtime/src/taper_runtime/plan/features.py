"""Name what a plan makes use of, so that a reader can refuse what it does not know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.loading import watched

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from taper_runtime.plan.plan import Entry, Plan, PlanNode

#: All that plans of this version may make use of.
FEATURES = (
    "blocks",
    "complex",
    "delegates",
    "entries",
    "origins",
    "weights",
    "zero_states",
)


def features(plan: Plan) -> list[str]:
    """Return the features that a plan makes use of, in alphabetical order."""
    entries: list[Plan | Entry] = [plan, *plan.entries.values()]
    specs = [spec for entry in entries for spec in watched(entry.tensors.values())]
    states = {spec.name for spec in watched(plan.tensors.values()) if spec.role == "state"}
    used = {
        "blocks": any(node.blocks for entry in entries for node in watched(entry.nodes)),
        "complex": any(spec.is_complex for spec in watched(specs)),
        "delegates": any(has_delegates(entry.nodes) for entry in entries),
        "entries": bool(plan.entries),
        "origins": any(entry.origins for entry in entries),
        "weights": bool(plan.weights),
        "zero_states": not states <= plan.constants.keys(),
    }
    return [name for name in FEATURES if used[name]]


def has_delegates(nodes: Iterable[PlanNode]) -> bool:
    """Whether one of the nodes, or of those in their blocks, is a delegate's."""
    return any(node.op == "CALL_DELEGATE" for node in with_inner(watched(nodes)))


def with_inner(nodes: Iterable[PlanNode]) -> Iterator[PlanNode]:
    """Yield nodes, each before those of its blocks."""
    for node in nodes:
        yield node
        for block in node.blocks:
            yield from with_inner(block.nodes)
