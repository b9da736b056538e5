"""Size variables get their values: from the shapes of the inputs, for a run or for a whole plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.errors import InputError
from taper_runtime.ops.opdef import contiguous_strides, plain_strides
from taper_runtime.plan.checks import MAX_TENSOR_BYTES, aligned, counted_bytes
from taper_runtime.plan.plan import Placement, Plan
from taper_runtime.sizes import UNBOUNDED, Size, affine, evaluate, variables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taper_runtime.ops.opdef import Shape


def bind_sizes(plan: Plan, shapes: Mapping[str, Shape]) -> dict[str, int]:
    """Return the values of the size variables that these input shapes give.

    A variable's value is read off dims that are it, or a number times it plus a number; every other
    dim is then checked. Variables of inputs that are not in ``shapes`` are left out.

    Raises
    ------
    InputError
        If a shape is not the input's for any sizes, or two inputs disagree, or a size is out of its
        variable's range.
    """
    values: dict[str, int] = {}
    origins: dict[str, str] = {}
    checks: list[tuple[str, int, int, int]] = []
    for name, shape in shapes.items():
        spec = plan.tensors[name]
        if len(shape) != len(spec.shape):
            raise InputError(f"input {name!r}: expected shape {show(spec.shape)}, got {shape}")
        for axis, (size, got) in enumerate(zip(spec.shape, shape, strict=True)):
            if (solution := affine(size)) is None:
                checks.append((name, axis, size, got))
                continue
            variable, factor, addend = solution
            value, rest = divmod(got - addend, factor)
            place = f"input {name!r}: dimension {axis} ({size})"
            low, high = plan.sizes[variable]
            if rest or not low <= value <= high:
                hidden = high >= UNBOUNDED and value <= high
                limits = f"at least {low}" if hidden else f"{low} to {high}"
                if str(size) != variable:
                    first, second = (factor * v + addend for v in (low, low + 1))
                    limits = f"{first}, {second} and so on, with {variable} {limits}"
                raise InputError(f"{place}: expected {limits}, got {got}")
            if values.setdefault(variable, value) != value:
                raise InputError(
                    f"{place}: expected {evaluate(size, values)}, as {origins[variable]} says "
                    f"{variable} is {values[variable]}; got {got}"
                )
            origins.setdefault(variable, f"dimension {axis} of input {name!r}")
    for name, axis, size, got in checks:
        if all(atom.text in values for atom in variables(size)):
            wanted = evaluate(size, values)
            if wanted != got:
                shape = plan.tensors[name].shape
                which = f"{wanted} ({size})" if isinstance(size, Size) else f"{wanted}"
                raise InputError(
                    f"input {name!r}: expected shape {show(shape)}; dimension {axis} must be "
                    f"{which}, got {got}"
                )
    return values


def instantiate(plan: Plan, values: Mapping[str, int]) -> Plan:
    """Return the plan for one set of sizes: every size an int, no size variables.

    Its arena gives every root a place of its own, so it is larger than an executor's. Samples that
    have other sizes are left out.

    Raises
    ------
    InputError
        If a size does not fit 64 bits, or a tensor would be larger than a plan may have.
    """
    if not plan.sizes:
        return plan

    def known(value: Any) -> Any:
        if isinstance(value, Size):
            return evaluate(value, values)
        return tuple(map(known, value)) if type(value) is tuple else value

    tensors = {name: spec._replace(shape=known(spec.shape)) for name, spec in plan.tensors.items()}
    for spec in tensors.values():
        if counted_bytes(spec.type) > MAX_TENSOR_BYTES:
            raise InputError(f"the inputs' sizes {dict(values)}: a tensor would be too large")
    placements = {}
    end = 0
    for name, placement in plan.placements.items():
        offset = known(placement.offset)
        if placement.root == name and tensors[name].role == "intermediate":
            offset = end
            end += aligned(tensors[name].nbytes)
        shape = tensors[name].storage.shape
        strides = plain_strides(shape, known(placement.strides))
        if 0 in shape:  # nothing lies nowhere: the place that it has for other sizes may not exist
            offset, strides = 0, contiguous_strides(shape)
        placements[name] = Placement(placement.root, offset, strides)
    nodes = tuple(
        node._replace(attrs={key: known(value) for key, value in node.attrs.items()})
        for node in plan.nodes
    )
    samples = {
        name: array for name, array in plan.samples.items() if array.shape == tensors[name].shape
    }
    return plan._replace(
        nodes=nodes,
        tensors=tensors,
        placements=placements,
        arena_bytes=end,
        samples=samples,
        sizes={},
    )


def show(shape: Shape) -> str:
    """Return a shape as messages show it: variables by name."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
