"""List the dims of a plan's inputs that vary, for display."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.records import NamedTuple
from taper_runtime.base.sizes import UNBOUNDED, bounds, is_static, linear

if TYPE_CHECKING:
    from taper_runtime.plan.plan import Plan


class VaryingDim(NamedTuple):
    """One dim of an input that the caller chooses.

    Attributes
    ----------
    input : str
    axis : int
    size : size
        An expression in the plan's size variables.
    least : int
        The smallest size.
    most : int or None
        The largest size; None if the range was not limited.
    step : int
        The size may be ``least``, ``least + step`` and so on. The step is 1 also if the expression
        is not a multiple of one variable; then not all of these sizes occur.
    """

    input: str
    axis: int
    size: int
    least: int
    most: int | None
    step: int


def varying_dims(plan: Plan) -> list[VaryingDim]:
    """Return the dims that vary, in the order of the inputs and their axes."""
    return [
        _varying(plan, name, axis, size)
        for name in plan.inputs
        for axis, size in enumerate(plan.tensors[name].shape)
        if not is_static(size)
    ]


def _varying(plan: Plan, name: str, axis: int, size: int) -> VaryingDim:
    if (known := linear(size)) is None:
        return VaryingDim(name, axis, size, *bounds(size), 1)
    variable, factor, addend = known
    low, high = plan.sizes[variable]
    high = bounds(high)[1]
    most = None if high >= UNBOUNDED else factor * high + addend
    return VaryingDim(name, axis, size, factor * low + addend, most, factor)
