"""Make plans for one set of sizes of those for many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.errors import InputError
from taper_runtime.ops.opdef import contiguous_strides, plain_strides
from taper_runtime.plan.checks import MAX_TENSOR_BYTES, counted_bytes
from taper_runtime.plan.plan import Placement, Plan
from taper_runtime.sizes import Size, ranged, size_at, variable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

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

    Samples that have other sizes are left out.

    Raises
    ------
    InputError
        If a size does not fit 64 bits, or a tensor would be larger than a plan may have.
    """
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


def with_ranges(plan: Plan, ranges: Mapping[str, tuple[int, int]]) -> Plan:
    """Return the plan with other ranges of its size variables.

    Raises
    ------
    OpError
        If an expression has no meaning there: it divides by what may be 0, say.
    """
    known: dict[str, int] = {}
    for name, limits in ranges.items():
        known[name] = variable(name, *limits)

    def size(value: int) -> int:
        return ranged(value, known)

    def nodes(those: Iterable[PlanNode]) -> tuple[PlanNode, ...]:
        return tuple(
            node._replace(
                attrs={key: substitute(value, size) for key, value in node.attrs.items()},
                blocks=tuple([block_of(block) for block in node.blocks]),
            )
            for node in those
        )

    def tensors(those: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
        return {
            name: spec._replace(shape=substitute(spec.shape, size)) for name, spec in those.items()
        }

    def placements(those: Mapping[str, Placement]) -> dict[str, Placement]:
        return {
            name: Placement(root, substitute(offset, size), substitute(strides, size))
            for name, (root, offset, strides) in those.items()
        }

    def block_of(block: Block) -> Block:
        return block._replace(
            nodes=nodes(block.nodes),
            tensors=tensors(block.tensors),
            placements=placements(block.placements),
        )

    return plan._replace(
        tensors=tensors(plan.tensors),
        placements=placements(plan.placements),
        nodes=nodes(plan.nodes),
        sizes=dict(ranges),
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
