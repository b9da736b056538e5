"""List the kind of kernel that computes each node of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taper_runtime.executor.executor import PlanExecutor
    from taper_runtime.plan.plan import Plan

#: Taper's kernels, a user's kernel, numpy, a delegate, and nothing: the node is a view of an input.
KINDS = ("native", "user", "numpy", "delegate", "view")


def kernel_kinds(plan: Plan, executor: PlanExecutor) -> dict[str, tuple[str, ...]]:
    """Return the nodes, by their first outputs, of each of :data:`KINDS`."""
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for node, kind in executor.served:
        found[kind].append(node.output)
    found["view"] += [node.output for node in plan.nodes if not plan.is_executed(node)]
    return {kind: tuple(names) for kind, names in found.items()}
