"""Make the recipes of a plan's constants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

from taper_frontend.compiler.analysis.quantized import is_quantized
from taper_frontend.compiler.graph.constants import Constant, Derived, Parameter, steps
from taper_runtime.base.records import NamedTuple
from taper_runtime.formats import PLAIN
from taper_runtime.ops.convert import FLOATS_16_BIT
from taper_runtime.plan.recipes import LITERAL, PARAMETER, WEIGHT, RecipeStep
from taper_runtime.plan.replaceable import WeightSpec, direct_weight, is_packed, weights_needed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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
    """Return the recipe of a constant, whose leaves are parameters and literals."""
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


def replaceable(
    constants: Mapping[str, Constant], weights: Sequence[Parameter], *, packed: bool = False
) -> Replaceable:
    """Return the replaceable weights, and recipes of the constants that depend on them.

    Parameters
    ----------
    constants : mapping of str to Constant
        All constants of the plan.
    weights : sequence of Parameter
        The weights that a session may replace, used or not.
    packed : bool
        Whether other packed constants also get recipes, which start from the plain weights before
        the PACK. Such a plain weight is a constant of the program, which a session cannot replace.

    Float constants that are decoded from fewer bits, and that no kernel reads as these, always get
    recipes, which start from those bits.
    """
    names = _Names(weights)
    derived: dict[str, tuple[RecipeStep, ...]] = {}
    for name, constant in sorted(constants.items()):
        if constant.is_open or _is_decoded(constant):
            derived[name] = _complete(constant, names)
        elif packed and _is_packed(constant):
            derived[name] = _complete(constant, names, _is_packed, f"{name}.plain")
    whole: set[bytes] = set()  # weights that are constants of the plan themselves
    for name, constant in sorted(constants.items()):
        if packed and name not in derived and constant in names and constant.identity not in whole:
            whole.add(constant.identity)
            derived[name] = (RecipeStep(WEIGHT, (), {"name": names.of(constant, name)}),)
    direct = set(map(direct_weight, derived.values()))
    needed = sorted(weights_needed(derived) - direct)
    originals = {name: names.leaves[name] for name in needed}
    return Replaceable(
        {name: _spec(name, leaf) for name, leaf in sorted(names.leaves.items())}, derived, originals
    )


def _is_packed(constant: Constant) -> TypeGuard[Derived]:
    """Return whether a constant is computed in the format of a packed weight."""
    return isinstance(constant, Derived) and is_packed(constant.type)


def _is_decoded(constant: Constant) -> bool:
    """Return whether a constant is decoded from fewer bits that a file should have instead."""
    if not isinstance(constant, Derived):
        return False
    plain = constant.inputs[0] if constant.op == "PACK" and len(constant.inputs) == 1 else constant
    if plain is None or not (plain is not constant or constant.type.format == PLAIN):
        return False
    leaves = [leaf for leaf in steps(plain) if not isinstance(leaf, Derived)]
    halves = [x for x in leaves if isinstance(x, Parameter) and x.dtype in FLOATS_16_BIT]
    return is_quantized(plain) or (
        plain.dtype == "float32"
        and any(x.kind == "constant" for x in halves)
        and 2 * sum(leaf.nbytes for leaf in leaves) <= plain.nbytes
    )


class _Names:
    """Names for the leaves of recipes: those of the state dict, or new ones.

    Attributes
    ----------
    leaves : dict of str to Constant
    """

    def __init__(self, weights: Sequence[Parameter]) -> None:
        self.leaves: dict[str, Constant] = {weight.names[0]: weight for weight in weights}
        self._names = {weight.identity: weight.names[0] for weight in weights}
        self._taken = {name for weight in weights for name in weight.names}

    def __contains__(self, constant: Constant) -> bool:
        """Return whether a constant is a leaf that has a name."""
        return constant.identity in self._names

    def of(self, leaf: Constant, new: str) -> str:
        """Return the name of a leaf; a leaf without one gets ``new``, unless it is a parameter."""
        if leaf not in self:
            base = leaf.names[0] if isinstance(leaf, Parameter) else new
            name, count = base, 1
            while name in self._taken:
                name, count = f"{base}_{count}", count + 1
            self._names[leaf.identity] = name
            self._taken.add(name)
            self.leaves[name] = leaf
        return self._names[leaf.identity]


def _is_derived(constant: Constant) -> TypeGuard[Derived]:
    return isinstance(constant, Derived)


def _complete(
    constant: Constant,
    names: _Names,
    is_step: Callable[[Constant], TypeGuard[Derived]] = _is_derived,
    new: str = "constant",
) -> tuple[RecipeStep, ...]:
    """Return the recipe of a constant, whose leaves are the constants that are no steps of it."""
    order = list(steps(constant, is_step))
    places: dict[int, int | None] = {id(step): place for place, step in enumerate(order)}
    return tuple(
        RecipeStep(
            _op(step),
            tuple([None if x is None else places[id(x)] for x in step.inputs]),
            {name: _plain(value) for name, value in step.attrs.items()},
        )
        if is_step(step)
        else RecipeStep(WEIGHT, (), {"name": names.of(step, new)})
        for step in order
    )


def _spec(name: str, leaf: Constant) -> WeightSpec:
    dtype, shape, _ = leaf.type
    if not isinstance(leaf, Parameter):
        return WeightSpec(name, "constant", dtype, shape)
    kind = leaf.kind if leaf.is_replaceable else "constant"
    aliases = leaf.names[1:] if leaf.is_replaceable else ()
    return WeightSpec(name, kind, dtype, shape, leaf.is_complex, aliases)


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
