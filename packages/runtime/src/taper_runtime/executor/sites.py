"""Tell which nodes a run computes, those in blocks among them, and how often."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.loading import watched
from taper_runtime.base.records import NamedTuple
from taper_runtime.executor.dispatching import runs_blocks
from taper_runtime.extend.providers import CPU_ALONE, Dispatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_runtime.plan.plan import Plan, PlanNode


class Site(NamedTuple):
    """A node that a run computes, and where it stands.

    Attributes
    ----------
    plan : Plan
        The plan, or the block as one, that the node stands in.
    node : PlanNode
    step : int
        Which of the program's: those of a node's blocks come behind all of the plan or block that
        the node is in.
    depth : int
        In how many blocks it lies.
    inside : int
        How many of the sites that follow lie in its blocks.
    trips : int
        How often it runs as far as sizes tell: a loop once, a branch as if it were taken.
    """

    plan: Plan
    node: PlanNode
    step: int
    depth: int
    inside: int
    trips: int

    @property
    def runs_blocks(self) -> bool:
        """Return whether what it does is what is done inside of it."""
        if not self.node.blocks:
            return False
        from taper_runtime.ops.control import CONTROL  # which most plans do not need

        return self.inside > 0 or self.node.op in CONTROL


def executed_nodes(plan: Plan) -> list[PlanNode]:
    """Return the nodes that a run computes, in order, without those of blocks."""
    return [node for node in watched(plan.nodes) if plan.is_executed(node)]


def sites(
    plan: Plan,
    dispatch: Dispatch = CPU_ALONE,
    *,
    first: int = 0,
    depth: int = 0,
    trips: int = 1,
) -> list[Site]:
    """Return the nodes that a run computes in order, those of blocks behind the node that has them.

    ``dispatch`` decides which blocks are run; ``first``, ``depth`` and ``trips`` are those of a
    block's.
    """
    nodes = executed_nodes(plan)
    found: list[Site] = []
    behind = first + len(nodes)
    for index, node in enumerate(nodes, first):
        inside: list[Site] = []
        for block in node.blocks if runs_blocks(plan, node, dispatch) else ():
            times = trips * _iterations(plan, node)
            body = plan.body(block)
            within = sites(body, dispatch, first=behind, depth=depth + 1, trips=times)
            behind += len(within)
            inside += within
        found += [Site(plan, node, index, depth, len(inside), trips), *inside]
    return found


def summed(found: Sequence[Site], values: Sequence[float]) -> list[float]:
    """Return ``values`` of sites, with the sum of what is inside for nodes that run blocks."""
    sums = list(values)
    for at in reversed(range(len(found))):
        if found[at].runs_blocks:
            inside = range(at + 1, at + 1 + found[at].inside)
            depth = found[at].depth + 1
            sums[at] = sum(sums[i] for i in inside if found[i].depth == depth)
    return sums


def _iterations(plan: Plan, node: PlanNode) -> int:
    if node.op != "SCAN":
        return 1
    return plan.tensors[node.reads[node.attrs.get("carries", 0)]].shape[0]
