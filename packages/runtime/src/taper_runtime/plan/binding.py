"""Find the values of the size variables from the shapes of the inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.errors import InputError
from taper_runtime.base.size_values import size_at
from taper_runtime.base.sizes import UNBOUNDED, Size, bounds, linear, variables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taper_runtime.ops.opdef import Shape
    from taper_runtime.plan.plan import Plan


def bind_sizes(plan: Plan, shapes: Mapping[str, Shape]) -> dict[str, int]:
    """Return the values of the size variables for these input shapes.

    A variable's value is found from dims that equal it, or a number times it plus a number. All
    other dims are then checked. Variables of inputs that are not in ``shapes`` are left out.

    Raises
    ------
    InputError
        If a shape fits the input for no sizes, two inputs disagree, or a size is outside its
        variable's range.
    """
    values: dict[str, int] = {}
    origins: dict[str, str] = {}
    checks: list[tuple[str, int, int, int]] = []
    for name, shape in shapes.items():
        spec = plan.tensors[name]
        if shape == spec.shape:  # no dim varies
            continue
        if len(shape) != len(spec.shape):
            raise InputError(f"input {name!r}: expected shape {_show(spec.shape)}, got {shape}")
        for axis, (size, got) in enumerate(zip(spec.shape, shape, strict=True)):
            if (solution := linear(size)) is None:
                checks.append((name, axis, size, got))
                continue
            variable, factor, addend = solution
            value, rest = divmod(got - addend, factor)
            place = f"input {name!r}: dimension {axis} ({size})"
            low, most = plan.sizes[variable]
            high = bounds(most)[1]
            if rest or not low <= value <= high:
                hidden = high >= UNBOUNDED and value <= high
                limits = f"at least {low}" if hidden else f"{low} to {high}"
                if str(size) != variable:
                    first, second = (factor * v + addend for v in (low, low + 1))
                    limits = f"{first}, {second} and so on, with {variable} {limits}"
                raise InputError(f"{place}: expected {limits}, got {got}")
            if values.setdefault(variable, value) != value:
                raise InputError(
                    f"{place}: expected {size_at(size, values)}, because {origins[variable]} gives "
                    f"{variable} = {values[variable]}; got {got}"
                )
            origins.setdefault(variable, f"dimension {axis} of input {name!r}")
    for variable, value in values.items():
        most = plan.sizes[variable][1]
        known = isinstance(most, Size) and all(atom.text in values for atom in variables(most))
        if known and value > (limit := size_at(most, values)):
            raise InputError(
                f"{origins[variable]}: expected {variable} of at most {limit} ({most}), got {value}"
            )
    for name, axis, size, got in checks:
        if all(atom.text in values for atom in variables(size)):
            wanted = size_at(size, values)
            if wanted != got:
                shape = plan.tensors[name].shape
                which = f"{wanted} ({size})" if isinstance(size, Size) else f"{wanted}"
                raise InputError(
                    f"input {name!r}: expected shape {_show(shape)}; dimension {axis} must be "
                    f"{which}, got {got}"
                )
    return values


def _show(shape: Shape) -> str:
    """Return a shape for messages, with the names of its variables."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
