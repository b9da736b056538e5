"""Find the format features that a plan's nodes and tensors use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.loading import watched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from taper_runtime.plan.plan import Entry, Plan, PlanNode


def _has_blocks(plan: Plan) -> bool:
    return any(node.blocks for entry in _entries(plan) for node in watched(entry.nodes))


def _has_complex(plan: Plan) -> bool:
    return any(spec.is_complex for e in _entries(plan) for spec in watched(e.tensors.values()))


def _has_zero_states(plan: Plan) -> bool:
    states = {spec.name for spec in watched(plan.tensors.values()) if spec.role == "state"}
    return not states <= plan.constants.keys()


def _has_read_states(plan: Plan) -> bool:
    return any(name == after for e in _entries(plan) for name, after in e.states.items())


def _entries(plan: Plan) -> list[Plan | Entry]:
    return [plan, *plan.entries.values()]


#: Features that depend on nodes, tensors and entries, each with a predicate of plans. Features of
#: fields are in :mod:`taper_runtime.file.fields`.
SHOWN: Mapping[str, Callable[[Plan], bool]] = {
    "blocks": _has_blocks,
    "complex": _has_complex,
    "delegates": lambda plan: any(has_delegates(entry.nodes) for entry in _entries(plan)),
    "entries": lambda plan: bool(plan.entries),
    "read_states": _has_read_states,
    "zero_states": _has_zero_states,
}


def has_delegates(nodes: Iterable[PlanNode]) -> bool:
    """Return whether a node, or a node in an inner block, belongs to a delegate."""
    return any(node.op == "CALL_DELEGATE" for node in with_inner(watched(nodes)))


def undefined_calls(plan: Plan) -> list[str]:
    """Return the targets of the calls that only users' kernels can compute."""
    nodes = (node for entry in _entries(plan) for node in with_inner(entry.nodes))
    found = [node.targets for node in nodes if is_undefined(node)]
    return list(dict.fromkeys(target for targets in found for target in targets))


def is_undefined(node: PlanNode) -> bool:
    """Return whether a node is a call whose block only has the types of its results."""
    return node.op == "CALL" and not node.attrs.get("defined", True)


def with_inner(nodes: Iterable[PlanNode]) -> Iterator[PlanNode]:
    """Yield nodes; each comes before the nodes of its blocks."""
    for node in nodes:
        yield node
        for block in node.blocks:
            yield from with_inner(block.nodes)
