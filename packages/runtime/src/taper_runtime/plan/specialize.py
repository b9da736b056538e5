"""Specialize a plan with varying sizes to one set of sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.base.checks import MAX_TENSOR_BYTES
from taper_runtime.base.errors import InputError
from taper_runtime.base.size_values import ranged, size_at, unchanged
from taper_runtime.base.sizes import Size, variable
from taper_runtime.formats import counted_bytes
from taper_runtime.ops.opdef import contiguous_strides, plain_strides
from taper_runtime.plan.plan import Placement, Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from taper_runtime.plan.plan import PlanBlock, TensorSpec


def substitute(value: Any, number: Callable[[int], int]) -> Any:
    """Return ``value``, a size, an attr or a tuple of them, with numbers in place of expressions.

    ``number`` returns the value of an expression.
    """
    if number is unchanged:
        return value
    if type(value) is tuple:
        return tuple([substitute(item, number) for item in value])
    return number(value) if type(value) is Size else value


def specialize(plan: Plan, values: Mapping[str, int]) -> Plan:
    """Return the plan for one set of sizes: every size is an int.

    Samples with other sizes are left out.

    Raises
    ------
    InputError
        If a size does not fit 64 bits, or a tensor would be larger than plans allow.
    """
    if not plan.sizes:
        return plan

    def number(size: int) -> int:
        return size_at(size, values)

    def place(spec: TensorSpec, placement: Placement) -> Placement:
        if counted_bytes(spec.type) > MAX_TENSOR_BYTES:
            raise InputError(
                f"the inputs' sizes {dict(values)}: expected tensors of at most {MAX_TENSOR_BYTES} "
                "bytes, got a larger one"
            )
        shape = spec.storage.shape
        if 0 in shape:  # an empty tensor needs no place: that for other sizes may not exist
            return Placement(placement.root, 0, contiguous_strides(shape))
        return placement._replace(strides=plain_strides(shape, placement.strides))

    known = _with_sizes(plan.as_block(), number, place)
    samples = {
        name: array
        for name, array in plan.samples.items()
        if array.shape == known.tensors[name].shape
    }
    firsts = {
        name: np.repeat(plan.constants[name], known.tensors[name].shape[axis], axis)
        for name in plan.states
        if name in plan.constants
        for axis, size in enumerate(plan.tensors[name].shape)
        if type(size) is Size
    }
    constants = {**plan.constants, **firsts} if firsts else plan.constants
    return plan._replace(
        **known._asdict(), constants=constants, samples=samples, sizes={}, origins={}
    )


def with_ranges(plan: Plan, ranges: Mapping[str, tuple[int, int]]) -> Plan:
    """Return the plan with other ranges of its size variables.

    Raises
    ------
    OpError
        If an expression is undefined in the ranges: its divisor may be 0.
    """
    known: dict[str, int] = {}
    sizes = {}
    for name, (low, high) in ranges.items():
        sizes[name] = low, ranged(high, known)
        known[name] = variable(name, *sizes[name])

    def size(value: int) -> int:
        return ranged(value, known)

    changed = _with_sizes(plan.as_block(), size, lambda spec, placement: placement)
    return plan._replace(**changed._asdict(), sizes=sizes)


def _with_sizes(
    block: PlanBlock,
    size: Callable[[int], int],
    place: Callable[[TensorSpec, Placement], Placement],
) -> PlanBlock:
    """Return a block, including inner blocks, with ``size`` applied to each expression.

    ``place`` returns the final placement for a tensor and its substituted placement.
    """
    tensors = {
        name: spec._replace(shape=substitute(spec.shape, size))
        for name, spec in block.tensors.items()
    }
    placements = {
        name: place(
            tensors[name], Placement(root, substitute(offset, size), substitute(strides, size))
        )
        for name, (root, offset, strides) in block.placements.items()
    }
    nodes = tuple(
        [
            node._replace(
                attrs={key: substitute(value, size) for key, value in node.attrs.items()},
                blocks=tuple([_with_sizes(inner, size, place) for inner in node.blocks]),
            )
            for node in block.nodes
        ]
    )
    return block._replace(nodes=nodes, tensors=tensors, placements=placements)
