"""List the nodes that a run computes, with those in blocks, and how often each runs."""

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
    """Place of a node that a run computes.

    Attributes
    ----------
    plan : Plan
        The plan, or the block as a plan, that contains the node.
    node : PlanNode
    step : int
        Number of the step in the program: steps of a node's blocks follow all steps of the plan or
        block that contains the node.
    depth : int
        How many blocks are around it: 0 outside of all.
    inside : int
        How many of the following sites are in its blocks.
    trips : int
        How often it runs, as far as the sizes tell: a loop counts as one iteration, a branch as
        taken.
    runs_blocks : bool
        Whether it is run by running the nodes in its blocks.
    """

    plan: Plan
    node: PlanNode
    step: int
    depth: int
    inside: int
    trips: int
    runs_blocks: bool


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
    """Return the nodes that a run computes, in order; those of blocks follow the node around them.

    ``dispatch`` decides which blocks are run; ``first``, ``depth`` and ``trips`` are for a block:
    its first step, depth and number of runs.
    """
    nodes = executed_nodes(plan)
    found: list[Site] = []
    next_step = first + len(nodes)
    for index, node in enumerate(nodes, first):
        inside: list[Site] = []
        in_blocks = runs_blocks(plan, node, dispatch)
        for block in node.blocks if in_blocks else ():
            times = trips * _iterations(plan, node)
            body = plan.body(block)
            within = sites(body, dispatch, first=next_step, depth=depth + 1, trips=times)
            next_step += len(within)
            inside += within
        found += [Site(plan, node, index, depth, len(inside), trips, in_blocks), *inside]
    return found


def summed(found: Sequence[Site], values: Sequence[float]) -> list[float]:
    """Return the sites' ``values``; for a node that runs blocks, with the sum of those inside."""
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
