"""The recipes of constants as a plan's metadata has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_frontend.compiler.graph.constants import Constant, Derived, Parameter, steps
from taper_runtime.plan.recipes import KEY, LITERAL, PARAMETER

if TYPE_CHECKING:
    from collections.abc import Mapping

_FEW = 8  # elements of a literal whose values are written


def written_recipes(constants: Mapping[str, Constant]) -> dict[str, dict[str, list[Any]]]:
    """Return metadata that tells how those constants are made that a parameter has a part in.

    That is plain data in the form of :class:`taper_runtime.plan.recipes.Step`; nothing where there
    is no such constant.
    """
    recipes = {
        name: _written(constant)
        for name, constant in sorted(constants.items())
        if not constant.is_literal
    }
    return {KEY: recipes} if recipes else {}


def _written(constant: Constant) -> list[Any]:
    order = list(steps(constant))
    places = {id(step): place for place, step in enumerate(order)}
    written: list[Any] = []
    for step in order:
        if isinstance(step, Derived):
            attrs = {name: _plain(value) for name, value in step.attrs.items()}
            op = f"{step.op}[{step.index}]" if step.index else step.op
            written.append([op, [places[id(x)] for x in step.reads], attrs])
        elif isinstance(step, Parameter):
            written.append([PARAMETER, [], {"names": list(step.names)}])
        else:
            leaf: dict[str, Any] = {"dtype": step.dtype, "shape": list(step.shape)}
            if step.type.size <= _FEW:
                leaf["values"] = step.value().tolist()
            written.append([LITERAL, [], leaf])
    return written


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
