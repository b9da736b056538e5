"""Make the recipes of a plan's constants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_frontend.compiler.graph.constants import Constant, Derived, Parameter, steps
from taper_runtime.base.records import NamedTuple
from taper_runtime.plan.recipes import LITERAL, PARAMETER, WEIGHT, RecipeStep
from taper_runtime.plan.replaceable import WeightSpec, direct_weight, is_tiles, weights_needed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FEW = 8  # the values of literals of up to so many elements are written


def provenance(constants: Mapping[str, Constant]) -> dict[str, tuple[RecipeStep, ...]]:
    """Return the recipes of the constants that depend on a parameter.

    Constants that depend on replaceable weights are left out; see :func:`replaceable`.
    """
    return {
        name: _recipe(constant)
        for name, constant in sorted(constants.items())
        if not constant.is_literal and not constant.is_open
    }


def _recipe(constant: Constant) -> tuple[RecipeStep, ...]:
    order = list(steps(constant))
    places = {id(step): place for place, step in enumerate(order)}
    recipe: list[RecipeStep] = []
    for step in order:
        if isinstance(step, Derived):
            attrs = {name: _plain(value) for name, value in step.attrs.items()}
            recipe.append(RecipeStep(_op(step), tuple([places[id(x)] for x in step.reads]), attrs))
        elif isinstance(step, Parameter):
            recipe.append(RecipeStep(PARAMETER, (), {"names": list(step.names)}))
        else:
            leaf: dict[str, Any] = {"dtype": step.dtype, "shape": list(step.shape)}
            if step.type.size <= _FEW:
                leaf["values"] = step.value().tolist()
            recipe.append(RecipeStep(LITERAL, (), leaf))
    return tuple(recipe)


def _op(step: Derived) -> str:
    return f"{step.op}[{step.index}]" if step.index else step.op


class Replaceable(NamedTuple):
    """The weights that a session may replace, as fields of a plan.

    Attributes
    ----------
    weights : dict of str to WeightSpec
    derived : dict of str to tuple of RecipeStep
    originals : dict of str to Constant
        The weights whose values the plan needs in addition to its constants.
    """

    weights: dict[str, WeightSpec]
    derived: dict[str, tuple[RecipeStep, ...]]
    originals: dict[str, Constant]


def replaceable(constants: Mapping[str, Constant], weights: Sequence[Parameter]) -> Replaceable:
    """Return the replaceable weights, and recipes of the constants that depend on them.

    Parameters
    ----------
    constants : mapping of str to Constant
        All constants of the plan.
    weights : sequence of Parameter
        The weights that a session may replace, used or not.
    """
    names = _Names(weights)
    derived = {
        name: tuple(_complete(constant, names))
        for name, constant in sorted(constants.items())
        if constant.is_open
    }
    direct = set(map(direct_weight, derived.values()))
    needed = sorted(weights_needed(derived) - direct)
    originals = {name: names.leaves[name] for name in needed}
    return Replaceable(
        {name: _spec(name, leaf) for name, leaf in sorted(names.leaves.items())}, derived, originals
    )


def with_tile_weights(kept: Replaceable, constants: Mapping[str, Constant]) -> Replaceable:
    """Add recipes for weights in Winograd's format, from the plain weights.

    Such a weight is a constant of the program, which a session cannot replace.
    """
    weights, derived, originals = dict(kept.weights), dict(kept.derived), dict(kept.originals)
    leaves: dict[int, str] = {}
    for name, constant in sorted(constants.items()):
        if name in derived or not isinstance(constant, Derived) or not is_tiles(constant.type):
            continue
        (weight,) = constant.reads
        leaf = leaves.get(id(weight))
        if leaf is None:
            leaf = leaves[id(weight)] = f"{name}.plain"
            originals[leaf] = weight
            weights[leaf] = WeightSpec(leaf, "constant", *weight.type[:2])
        attrs = {key: _plain(value) for key, value in constant.attrs.items()}
        derived[name] = (
            RecipeStep(WEIGHT, (), {"name": leaf}),
            RecipeStep(constant.op, (0,), attrs),
        )
    return Replaceable(weights, derived, originals)


class _Names:
    """Names for the leaves of recipes: those of the state dict, or new ones.

    Attributes
    ----------
    leaves : dict of str to Constant
    """

    def __init__(self, weights: Sequence[Parameter]) -> None:
        self.leaves: dict[str, Constant] = {weight.names[0]: weight for weight in weights}
        self._names = {id(weight): weight.names[0] for weight in weights}
        self._taken = {name for weight in weights for name in weight.names}

    def of(self, leaf: Constant) -> str:
        """Return the name of a leaf."""
        if id(leaf) not in self._names:
            base = leaf.names[0] if isinstance(leaf, Parameter) else "constant"
            name, count = base, 1
            while name in self._taken:
                name, count = f"{base}_{count}", count + 1
            self._names[id(leaf)] = name
            self._taken.add(name)
            self.leaves[name] = leaf
        return self._names[id(leaf)]


def _complete(constant: Constant, names: _Names) -> list[RecipeStep]:
    order = list(steps(constant))
    places: dict[int, int | None] = {id(step): place for place, step in enumerate(order)}
    return [
        RecipeStep(
            _op(step),
            tuple([None if x is None else places[id(x)] for x in step.inputs]),
            {name: _plain(value) for name, value in step.attrs.items()},
        )
        if isinstance(step, Derived)
        else RecipeStep(WEIGHT, (), {"name": names.of(step)})
        for step in order
    ]


def _spec(name: str, leaf: Constant) -> WeightSpec:
    dtype, shape, _ = leaf.type
    if not isinstance(leaf, Parameter):
        return WeightSpec(name, "constant", dtype, shape)
    kind = leaf.kind if leaf.is_replaceable else "constant"
    aliases = leaf.names[1:] if leaf.is_replaceable else ()
    return WeightSpec(name, kind, dtype, shape, leaf.is_complex, aliases)


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
