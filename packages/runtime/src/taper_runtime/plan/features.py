"""Name what a plan makes use of, so that a reader can refuse what it does not know."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from taper_runtime.plan.plan import Plan, PlanNode

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
    nodes = [*plan.nodes, *(node for entry in plan.entries.values() for node in entry.nodes)]
    states = {name for name, spec in plan.tensors.items() if spec.role == "state"}
    tensors = [plan.tensors, *(entry.tensors for entry in plan.entries.values())]
    used = {
        "blocks": any(node.blocks for node in nodes),
        "complex": any(spec.is_complex for each in tensors for spec in each.values()),
        "delegates": any(node.op == "CALL_DELEGATE" for node in with_inner(nodes)),
        "entries": bool(plan.entries),
        "origins": bool(plan.origins) or any(e.origins for e in plan.entries.values()),
        "weights": bool(plan.weights),
        "zero_states": not states <= plan.constants.keys(),
    }
    return [name for name in FEATURES if used[name]]


def with_inner(nodes: Iterable[PlanNode]) -> Iterator[PlanNode]:
    """Yield nodes, each before those of its blocks."""
    for node in nodes:
        yield node
        for block in node.blocks:
            yield from with_inner(block.nodes)
