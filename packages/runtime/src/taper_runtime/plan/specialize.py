"""Make plans for one set of sizes of those for many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.errors import InputError, PlanFormatError
from taper_runtime.ops.opdef import contiguous_strides, plain_strides
from taper_runtime.plan.checks import MAX_TENSOR_BYTES, counted_bytes
from taper_runtime.plan.plan import Placement, Plan
from taper_runtime.plan.validate import validate
from taper_runtime.sizes import Size, size_at

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from taper_runtime.plan.plan import Block, PlanNode, TensorSpec


def substitute(value: Any, number: Callable[[int], int]) -> Any:
    """Return ``value``, a size, an attr or a tuple of them, with numbers for size expressions.

    ``number`` gives the number that an expression is.
    """
    if type(value) is tuple:
        return tuple([substitute(item, number) for item in value])
    return number(value) if type(value) is Size else value


def specialize(plan: Plan, values: Mapping[str, int]) -> Plan:
    """Return the plan for one set of sizes: every size an int, no size variables.

    Samples that have other sizes are left out. Where a size is 0 the plan is checked: what holds
    for all sizes is proven of those from 1 on.

    Raises
    ------
    InputError
        If a size does not fit 64 bits, or a tensor would be larger than a plan may have, or the
        plan is not valid with a size of 0.
    """
    made = _substitute_all(plan, values)
    if 0 not in values.values():
        return made
    try:
        validate(made)
    except PlanFormatError as error:
        empty = " and ".join(name for name, value in values.items() if value == 0)
        raise InputError(f"the inputs' sizes: the plan cannot run with {empty} = 0: {error}") from (
            error
        )
    return made


def _substitute_all(plan: Plan, values: Mapping[str, int]) -> Plan:
    if not plan.sizes:
        return plan

    def number(size: int) -> int:
        return size_at(size, values)

    tensors = _tensors(plan.tensors, number)
    placements = _placements(plan.placements, tensors, number)
    nodes = tuple(_node(node, number) for node in plan.nodes)
    samples = {
        name: array for name, array in plan.samples.items() if array.shape == tensors[name].shape
    }
    return plan._replace(
        nodes=nodes,
        tensors=tensors,
        placements=placements,
        samples=samples,
        sizes={},
    )


def _tensors(
    tensors: Mapping[str, TensorSpec], number: Callable[[int], int]
) -> dict[str, TensorSpec]:
    known = {
        name: spec._replace(shape=substitute(spec.shape, number)) for name, spec in tensors.items()
    }
    for name, spec in known.items():
        if counted_bytes(spec.type) > MAX_TENSOR_BYTES:
            raise InputError(f"the inputs' sizes: tensor {name!r} would be too large")
    return known


def _placements(
    placements: Mapping[str, Placement],
    tensors: Mapping[str, TensorSpec],
    number: Callable[[int], int],
) -> dict[str, Placement]:
    known = {}
    for name, placement in placements.items():
        offset = substitute(placement.offset, number)
        shape = tensors[name].storage.shape
        strides = plain_strides(shape, substitute(placement.strides, number))
        if 0 in shape:  # nothing lies nowhere: the place that it has for other sizes may not exist
            offset, strides = 0, contiguous_strides(shape)
        known[name] = Placement(placement.root, offset, strides)
    return known


def _node(node: PlanNode, number: Callable[[int], int]) -> PlanNode:
    return node._replace(
        attrs={key: substitute(value, number) for key, value in node.attrs.items()},
        blocks=tuple([_block(block, number) for block in node.blocks]),
    )


def _block(block: Block, number: Callable[[int], int]) -> Block:
    tensors = _tensors(block.tensors, number)
    return block._replace(
        nodes=tuple([_node(node, number) for node in block.nodes]),
        tensors=tensors,
        placements=_placements(block.placements, tensors, number),
    )
