"""Determine the arithmetic in which a plan computes with quantized weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.records import NamedTuple
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.convert import NARROW
from taper_runtime.plan.features import with_inner
from taper_runtime.plan.recipes import parameter_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taper_runtime.plan.plan import Plan, PlanNode

#: How products compute with weights of few bits.
WIDENED = "float32, weights widened in registers"
#: The same with activations that are rounded; ``{}`` is the size of a group.
ROUNDED = "integers x activations rounded to int8 in groups of {}, float32 sums of the groups"
HALVED = "bfloat16 x activations rounded to bfloat16, float32 sums"
DECODED = "float32, weights decoded when a session opens"


class QuantizedNode(NamedTuple):
    """A node that multiplies by a weight of few bits.

    Attributes
    ----------
    node, op : str
    weight : str
        The parameters that the weight is made of, or the constant's name.
    stored : str
        The dtype or the format of the weight in the file.
    arithmetic : str
    """

    node: str
    op: str
    weight: str
    stored: str
    arithmetic: str


def quantized_nodes(plan: Plan) -> list[QuantizedNode]:
    """Return the nodes of the default entry that multiply by weights of few bits, in order."""
    return list(_found(plan))


def _found(plan: Plan) -> Iterator[QuantizedNode]:
    for node in with_inner(plan.nodes):
        definition = REGISTRY[node.op]
        places = definition.weights if "code" in definition.attrs else ()
        for weight in (node.inputs[place] for place in places if place < len(node.inputs)):
            how = _arithmetic(plan, node, weight)
            if weight is not None and how is not None:
                stored, arithmetic = how
                names = parameter_names(plan.recipes.get(weight, ()))
                called = " + ".join(names) or weight
                yield QuantizedNode(node.output, node.op, called, stored, arithmetic)


def _arithmetic(plan: Plan, node: PlanNode, weight: str | None) -> tuple[str, str] | None:
    """Return how a weight is stored and used; None if it is of floats."""
    if weight is None or weight not in plan.tensors or plan.tensors[weight].role != "constant":
        return None
    spec = plan.tensors[weight]
    accumulate = node.attrs.get("accumulate")
    if accumulate:
        activations = plan.tensors.get(str(node.inputs[0]))  # None within control flow
        dtype = "bytes" if activations is None else activations.dtype
        return spec.dtype, f"{dtype} x {spec.dtype}, sums in {accumulate}"
    if spec.format.startswith("blocks."):
        group = node.attrs.get("activation_group")
        if group:
            return spec.format, ROUNDED.format(group)
        return spec.format, WIDENED
    if node.attrs.get("activation_dtype"):
        return spec.dtype, HALVED
    if spec.dtype in NARROW:
        return spec.dtype, WIDENED
    if weight in plan.derived:
        leaves = [
            plan.weights[step.attrs["name"]].dtype
            for step in plan.derived[weight]
            if "name" in step.attrs and not step.inputs
        ]
        if leaves and leaves[0] in (*NARROW, "uint8"):
            return leaves[0], DECODED
    return None
