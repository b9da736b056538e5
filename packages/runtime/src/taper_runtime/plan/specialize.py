"""Make plans for one set of sizes of those for many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.errors import InputError
from taper_runtime.ops.opdef import contiguous_strides, plain_strides
from taper_runtime.plan.checks import MAX_TENSOR_BYTES, counted_bytes
from taper_runtime.plan.plan import Placement, Plan
from taper_runtime.sizes import Size, ranged, size_at, variable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


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

    tensors = {
        name: spec._replace(shape=substitute(spec.shape, number))
        for name, spec in plan.tensors.items()
    }
    for spec in tensors.values():
        if counted_bytes(spec.type) > MAX_TENSOR_BYTES:
            raise InputError(f"the inputs' sizes {dict(values)}: a tensor would be too large")
    placements = {}
    for name, placement in plan.placements.items():
        offset = substitute(placement.offset, number)
        shape = tensors[name].storage.shape
        strides = plain_strides(shape, substitute(placement.strides, number))
        if 0 in shape:  # nothing lies nowhere: the place that it has for other sizes may not exist
            offset, strides = 0, contiguous_strides(shape)
        placements[name] = Placement(placement.root, offset, strides)
    nodes = tuple(
        node._replace(attrs={key: substitute(value, number) for key, value in node.attrs.items()})
        for node in plan.nodes
    )
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

    return plan._replace(
        tensors={
            name: spec._replace(shape=substitute(spec.shape, size))
            for name, spec in plan.tensors.items()
        },
        placements={
            name: Placement(root, substitute(offset, size), substitute(strides, size))
            for name, (root, offset, strides) in plan.placements.items()
        },
        nodes=tuple(
            node._replace(attrs={key: substitute(value, size) for key, value in node.attrs.items()})
            for node in plan.nodes
        ),
        sizes=dict(ranges),
    )
