"""Describe how a plan's constants were computed from parameters.

An export writes recipes into ``plan.provenance``, which no run reads. If a plan's weights can be
replaced, the recipes of constants that depend on them are in ``plan.derived`` instead. Those are
complete, and constants are computed by them (:mod:`taper_runtime.plan.replaceable`). The last step
of a recipe is the constant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.base.checks import check_text, fail, is_size
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: A step without inputs: a parameter or buffer of the module, by its names in the state dict. If
#: there are several names, they are tied or have equal values.
PARAMETER = "PARAMETER"

#: A step without inputs: an array that is not a parameter, with its values if there are few.
LITERAL = "LITERAL"

#: A step without inputs: one of ``plan.weights``, by its name.
WEIGHT = "WEIGHT"

_LONGEST = 200  # the most characters of a recipe's text


class RecipeStep(NamedTuple):
    """One step of a recipe: an op on the results of earlier steps.

    Attributes
    ----------
    op : str
        An op's name, with the suffix ``[1]`` for its second output and so on; or :data:`PARAMETER`,
        :data:`LITERAL` or :data:`WEIGHT`. In a plan's provenance it need not be registered.
    inputs : tuple of int or None
        The numbers of the earlier steps that the op reads, from 0; None for an absent input.
    attrs : mapping
        Plain data. A parameter has ``names``, a weight has ``name``, and a literal has ``dtype``,
        ``shape`` and, if there are few, ``values``.
    """

    op: str
    inputs: tuple[int | None, ...]
    attrs: Mapping[str, Any]

    @property
    def reads(self) -> tuple[int, ...]:
        """Return the inputs that are present."""
        return tuple([place for place in self.inputs if place is not None])


def parse_recipes(found: Any, field: str) -> dict[str, tuple[RecipeStep, ...]]:
    """Parse JSON as recipes by the names of constants; ``field`` is the plan's field.

    Raises
    ------
    PlanFormatError
        If they do not have the right form.
    """
    if type(found) is not dict:
        fail(field, "expected an object", found)
    return {name: _recipe(steps, f"{field}[{name!r}]") for name, steps in found.items()}


def parameter_names(recipe: Sequence[RecipeStep]) -> tuple[str, ...]:
    """Return the names of the parameters that a constant was computed from, without duplicates."""
    names: list[str] = []
    for step in recipe:
        if step.op == PARAMETER:
            names += step.attrs["names"]
        elif step.op == WEIGHT:
            names.append(step.attrs["name"])
    return tuple(dict.fromkeys(names))


def recipe_text(recipe: Sequence[RecipeStep]) -> str:
    """Format a recipe as a formula, ``CAT(q.weight, k.weight, axis=1)``; long ones are cut."""
    texts: list[str] = []
    for step in recipe:
        attrs = step.attrs
        if step.op == PARAMETER:
            text = " = ".join(attrs["names"])
        elif step.op == WEIGHT:
            text = attrs["name"]
        elif step.op == LITERAL:
            shape = ", ".join(map(str, attrs["shape"]))
            text = str(attrs.get("values", f"{attrs['dtype']}[{shape}]"))
        else:
            operands = [texts[place] for place in step.reads]
            operands += [f"{name}={value}" for name, value in attrs.items()]
            text = f"{step.op}({', '.join(operands)})"
        texts.append(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")
    return texts[-1]


def _recipe(steps: Any, field: str) -> tuple[RecipeStep, ...]:
    if type(steps) not in (list, tuple) or not steps:
        fail(field, "expected an array of steps", steps)
    return tuple(_step(step, place, f"{field}[{place}]") for place, step in enumerate(steps))


def _step(step: Any, place: int, field: str) -> RecipeStep:
    """Parse one step; ``place`` is its number, which its inputs must be below."""
    if type(step) not in (list, tuple) or len(step) != 3:
        fail(field, "expected an array of op, inputs and attrs", step)
    op, inputs, attrs = step
    check_text(op, f"{field}[0]")
    if type(inputs) not in (list, tuple):
        fail(f"{field}[1]", "expected an array", inputs)
    for each in inputs:
        if each is not None and (not is_size(each) or each >= place):
            fail(f"{field}[1]", f"expected the number of a step before {place}", each)
    if type(attrs) is not dict:
        fail(f"{field}[2]", "expected an object", attrs)
    if op == PARAMETER:
        _check_leaf(inputs, attrs, {"names"}, field)
        _check_names(attrs["names"], f"{field}[2].names")
    elif op == WEIGHT:
        _check_leaf(inputs, attrs, {"name"}, field)
        check_text(attrs["name"], f"{field}[2].name")
    elif op == LITERAL:
        _check_leaf(inputs, attrs, {"dtype", "shape"}, field)
        check_text(attrs["dtype"], f"{field}[2].dtype")
        if type(attrs["shape"]) not in (list, tuple) or not all(map(is_size, attrs["shape"])):
            fail(f"{field}[2].shape", "expected an array of sizes", attrs["shape"])
    return RecipeStep(op, tuple(inputs), attrs)


def _check_leaf(inputs: Any, attrs: Mapping[str, Any], keys: set[str], field: str) -> None:
    if inputs:
        fail(f"{field}[1]", "expected no inputs", inputs)
    for key in sorted(keys - attrs.keys()):
        fail(f"{field}[2].{key}", "expected a value", None)


def _check_names(names: Any, field: str) -> None:
    if type(names) not in (list, tuple) or not names:
        fail(field, "expected an array of names", names)
    for name in names:
        check_text(name, field)
