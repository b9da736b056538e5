"""Join the tables of replaceable weights of several plans."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from taper_frontend.errors import ExportError
from taper_runtime.plan.recipes import WEIGHT, RecipeStep
from taper_runtime.plan.replaceable import direct_weight, weight_values, weights_needed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from taper_runtime.ops.opdef import TensorType
    from taper_runtime.plan.plan import Plan
    from taper_runtime.plan.replaceable import WeightSpec


def digest(array: np.ndarray) -> bytes:
    """Return a digest of the bytes of a C-contiguous array."""
    return blake2b(array.reshape(-1).view("u1").data).digest()


class WeightJoiner:
    """The weights of all plans; further inputs of recipes are renamed if their names clash.

    Raises
    ------
    ExportError
        If two plans have a weight with different kinds, types, names or values.
    """

    def __init__(self, plans: Mapping[str, Plan]) -> None:
        """Collect the weights of all plans; equal inputs of recipes are merged."""
        self._specs: dict[str, WeightSpec] = {}
        self._values: dict[str, np.ndarray] = {}
        self._names: dict[int, dict[str, str]] = {}
        constants: dict[tuple[TensorType, bytes], str] = {}
        for entry, plan in plans.items():
            values = weight_values(plan)
            for name, spec in plan.weights.items():
                if spec.kind != "constant":
                    self._add(entry, spec, values.get(name))
        taken = {each for spec in self._specs.values() for each in (spec.name, *spec.aliases)}
        for plan in plans.values():
            names = self._names[id(plan)] = {}
            values = weight_values(plan)
            for name, spec in plan.weights.items():
                if spec.kind != "constant":
                    continue
                key = spec.type, digest(values[name])
                if key not in constants:
                    new, count = name, 1
                    while new in taken:
                        new, count = f"{name}_{count}", count + 1
                    taken.add(new)
                    constants[key] = new
                    self._specs[new] = spec._replace(name=new)
                    self._values[new] = values[name]
                names[name] = constants[key]

    def _add(self, entry: str, spec: WeightSpec, value: np.ndarray | None) -> None:
        known = self._values.get(spec.name)
        differs = known is not None and value is not None and digest(known) != digest(value)
        if self._specs.setdefault(spec.name, spec) != spec or differs:
            raise ExportError(
                f"weight {spec.name!r}: expected the same type, value and names in all entries, "
                f"got another in {entry!r}"
            )
        if value is not None:
            self._values[spec.name] = value

    def recipe(self, plan: Plan, constant: str) -> tuple[RecipeStep, ...] | None:
        """Return the recipe of a constant of a plan, with the names in the joined plan."""
        if constant not in plan.derived:
            return None
        names = self._names[id(plan)]
        return tuple([_renamed(step, names) for step in plan.derived[constant]])

    def joined(self, derived: Mapping[str, Sequence[RecipeStep]]) -> dict[str, Any]:
        """Return ``weights``, ``derived`` and ``originals`` of the joined plan."""
        needed = weights_needed(derived) - set(map(direct_weight, derived.values()))
        return {
            "weights": {name: self._specs[name] for name in sorted(self._specs)},
            "derived": {name: derived[name] for name in sorted(derived)},
            "originals": {name: self._values[name] for name in sorted(needed)},
        }


def _renamed(step: RecipeStep, names: Mapping[str, str]) -> RecipeStep:
    if step.op != WEIGHT:
        return step
    name = step.attrs["name"]
    return step._replace(attrs={"name": names.get(name, name)})
