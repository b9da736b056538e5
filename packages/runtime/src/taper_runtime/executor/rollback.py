"""Save the parts of states that a run overwrites, so that a failed run can restore them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.records import NamedTuple
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import contiguous_strides
from taper_runtime.plan.plan import Placement, PlanNode, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_runtime.plan.plan import Plan


class Restore(NamedTuple):
    """A node that restores the part of a state that another node overwrites.

    Attributes
    ----------
    saved_by : int
        Number of the executed node that saves the part: the one before the node that overwrites it.
    node : PlanNode
        It runs if the run fails after that; it writes to the memory of the overwriting node's
        output.
    """

    saved_by: int
    node: PlanNode


def with_saves(plan: Plan) -> Plan:
    """Return the plan with a saving node before each node that overwrites a state.

    A plan that already has such nodes is returned as it is.
    """
    if not plan.states:
        return plan
    nodes: list[PlanNode] = []
    tensors, placements = dict(plan.tensors), dict(plan.placements)
    for node in plan.nodes:
        if _overwrites_state(plan, node) and _saved(node) not in tensors:
            save = _save_node(node)
            op = REGISTRY[save.op]
            types = [plan.tensors[name].type for name in save.reads]
            dtype, shape, _ = op.infer_type(types, save.attrs)
            tensors[save.output] = TensorSpec(save.output, dtype, shape, "intermediate")
            placements[save.output] = Placement(save.output, 0, contiguous_strides(shape))
            nodes.append(save)
        nodes.append(node)
    if len(nodes) == len(plan.nodes):
        return plan
    return plan._replace(nodes=tuple(nodes), tensors=tensors, placements=placements)


def find_restores(plan: Plan, nodes: Sequence[PlanNode]) -> list[Restore]:
    """Return the nodes that restore states, for the executed ``nodes`` of :func:`with_saves`."""
    restores = []
    for index, node in enumerate(nodes if plan.states else ()):
        if _overwrites_state(plan, node):
            rule = REGISTRY[node.op].save
            assert rule is not None  # else the plan is not valid
            save = rule(REGISTRY[node.op].fill(node.attrs))
            inputs = (node.output, *node.reads[1:-1], _saved(node))
            restore = PlanNode(save.restore_op, inputs, node.outputs, save.restore_attrs)
            restores.append(Restore(index - 1, restore))
    return restores


def _overwrites_state(plan: Plan, node: PlanNode) -> bool:
    root = plan.placements[node.output].root
    return plan.tensors[root].role == "state" and plan.is_executed(node)


def _saved(node: PlanNode) -> str:
    """Return the name of the saved value of what a node overwrites."""
    return f"{node.output}.overwritten"


def _save_node(node: PlanNode) -> PlanNode:
    rule = REGISTRY[node.op].save
    assert rule is not None  # else the plan is not valid
    save = rule(REGISTRY[node.op].fill(node.attrs))
    return PlanNode(save.op, node.inputs[:-1], (_saved(node),), save.attrs, source=node.source)
