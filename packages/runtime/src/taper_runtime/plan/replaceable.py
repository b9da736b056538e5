"""Compute a plan's constants from its replaceable weights.

A constant that depends on a weight has a recipe, a straight-line program of registered ops over
weights. It computes the constant from new values of the weights, with the same bits that an export
of these values would have.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from taper_runtime.base.buffers import aligned_copy, is_aligned
from taper_runtime.base.checks import check_text, check_type, fail
from taper_runtime.base.dtypes import COMPLEX, DTYPES
from taper_runtime.base.errors import InputError, OpError, PlanFormatError
from taper_runtime.base.loading import apart, watched
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.sizes import Size
from taper_runtime.formats import find
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.evaluate import evaluate_step
from taper_runtime.ops.opdef import TensorType
from taper_runtime.plan.arrays import check_array
from taper_runtime.plan.plan import TensorSpec
from taper_runtime.plan.recipes import WEIGHT

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from taper_runtime.ops.opdef import Shape
    from taper_runtime.plan.plan import Plan
    from taper_runtime.plan.recipes import RecipeStep

#: The kinds of weights. A "constant" is a further input of recipes, which cannot be replaced.
KINDS = ("parameter", "buffer", "constant")

#: Limit on the bytes one recipe may compute: a multiple of the file's data, and a minimum.
MAX_GROWTH, MAX_LITTLE = 64, 1 << 30


class WeightSpec(NamedTuple):
    """The name, kind and type of one weight.

    Attributes
    ----------
    name : str
        The name in the module's state dict.
    kind : str
        One of :data:`KINDS`.
    dtype, shape
        The dtype and shape of the stored array.
    is_complex : bool
        Whether users see complex numbers; their parts lie along a last axis of 2.
    aliases : tuple of str
        Other names of the same weight, if weights are tied.
    """

    name: str
    kind: str
    dtype: str
    shape: Shape
    is_complex: bool = False
    aliases: tuple[str, ...] = ()

    @property
    def type(self) -> TensorType:
        """Return the dtype and shape of the array that stores the weight."""
        return TensorType(self.dtype, self.shape)

    @property
    def seen(self) -> TensorType:
        """Return the type that users see."""
        return TensorType(COMPLEX[self.dtype], self.shape[:-1]) if self.is_complex else self.type


def step_op(text: str) -> tuple[str, int]:
    """Return the op of a step and the index of its output: 1 for ``TOPK[1]``."""
    op, bracket, rest = text.partition("[")
    digits = rest.removesuffix("]")
    if bracket and rest.endswith("]") and digits.isascii() and digits.isdigit():
        return op, int(digits[:9])
    return text, 0


def direct_weight(recipe: Sequence[RecipeStep]) -> str | None:
    """Return the name of the weight that a constant equals; None if the constant is computed."""
    return recipe[0].attrs["name"] if len(recipe) == 1 else None


def weights_needed(derived: Mapping[str, Sequence[RecipeStep]]) -> set[str]:
    """Return the names of the weights that recipes read."""
    return {
        step.attrs["name"] for recipe in derived.values() for step in recipe if step.op == WEIGHT
    }


def weight_values(plan: Plan) -> dict[str, np.ndarray]:
    """Return the value of each weight that recipes need, from the constants or ``originals``."""
    values = dict(plan.originals)
    for name, recipe in plan.derived.items():
        weight = direct_weight(recipe)
        if weight is not None:
            values[weight] = plan.constants[name]
    return values


def recipe_types(
    recipe: Sequence[RecipeStep], weights: Mapping[str, WeightSpec]
) -> list[TensorType]:
    """Return the type of each step.

    Raises
    ------
    OpError
        If an op does not accept its inputs.
    """
    types: list[TensorType] = []
    for step in recipe:
        if step.op == WEIGHT:
            types.append(weights[step.attrs["name"]].type)
            continue
        op, index = step_op(step.op)
        inputs = [None if place is None else types[place] for place in step.inputs]
        types.append(REGISTRY[op].infer_types(inputs, step.attrs)[index])
    return types


def derive(
    recipe: Sequence[RecipeStep],
    weights: Mapping[str, WeightSpec],
    values: Mapping[str, np.ndarray],
) -> np.ndarray:
    """Compute a constant from values of the weights.

    Returns
    -------
    numpy.ndarray
        C-contiguous, aligned to 64 bytes, read-only; the weight's own array if the weight is the
        constant.

    Raises
    ------
    InputError
        If an op does not accept the values, as for the inverse of a singular matrix.
    """
    types = recipe_types(recipe, weights)
    readers = Counter(place for step in recipe for place in step.reads)
    arrays: dict[int, np.ndarray] = {}
    for place, step in enumerate(recipe):
        if step.op == WEIGHT:
            arrays[place] = values[step.attrs["name"]]
            continue
        op, index = step_op(step.op)
        arrays[place] = apart(
            evaluate_step,
            op,
            index,
            [None if x is None else arrays[x] for x in step.inputs],
            [None if x is None else types[x] for x in step.inputs],
            step.attrs,
            types[place],
        )
        for x in step.reads:
            readers[x] -= 1
            if readers[x] == 0:
                del arrays[x]
    return stored_aligned(arrays[len(recipe) - 1])


def stored_aligned(array: np.ndarray) -> np.ndarray:
    """Return an array in the form of constants: C-contiguous, aligned to 64 bytes, read-only.

    It is copied unless it already has this form and cannot be made writable.
    """
    if array.flags.c_contiguous and is_aligned(array) and _is_frozen(array):
        return array
    return aligned_copy(array)


def _is_frozen(array: object) -> bool:
    """Return whether neither an array nor the arrays it is a view of can be written to."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        array = array.base
    return True


#: What has been computed and is in use, with what it was computed from.
_shared: dict[tuple[object, ...], tuple[ref[np.ndarray], list[ref[np.ndarray]]]] = {}


def derive_shared(
    name: str,
    recipe: Sequence[RecipeStep],
    weights: Mapping[str, WeightSpec],
    values: Mapping[str, np.ndarray],
) -> np.ndarray:
    """Compute a constant as :func:`derive_named`, unless it has been and is in use.

    So all sessions of one plan have one array.
    """
    read = [values[step.attrs["name"]] for step in recipe if step.op == WEIGHT]
    steps = [
        (step.op, step.inputs, None if step.op == WEIGHT else sorted(step.attrs.items()))
        for step in recipe
    ]
    key = repr(steps), *map(id, read)
    if (known := _in_use(key, read)) is not None:
        return known
    made = derive_named(name, recipe, weights, values)
    if (known := _in_use(key, read)) is not None:  # another thread computed it meanwhile
        return known
    if not any(made is array for array in read):
        _shared[key] = ref(made, lambda _: _shared.pop(key, None)), list(map(ref, read))
    return made


def _in_use(key: tuple[object, ...], read: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return what has been computed from these very arrays, if it is in use."""
    if key not in _shared:
        return None
    made, sources = _shared[key]
    is_known = all(source() is array for source, array in zip(sources, read, strict=True))
    return made() if is_known else None


def folded(plan: Plan, kept: Collection[str] = ()) -> Plan:
    """Return the plan with all its constants computed from the weights if they have recipes.

    Parameters
    ----------
    plan : Plan
    kept : collection of str
        Constants that are not changed.

    Raises
    ------
    InputError
        If an op does not accept the values of the weights; the message names the constant.
    """
    values = weight_values(plan)
    constants = dict(plan.constants)
    for name, recipe in plan.derived.items():
        if direct_weight(recipe) is None and name not in kept:
            constants[name] = derive_shared(name, recipe, plan.weights, values)
    return plan._replace(constants=constants)


def derive_named(
    name: str,
    recipe: Sequence[RecipeStep],
    weights: Mapping[str, WeightSpec],
    values: Mapping[str, np.ndarray],
) -> np.ndarray:
    """Compute a constant like :func:`derive`; errors name it."""
    try:
        return derive(recipe, weights, values)
    except InputError as error:
        raise InputError(f"constant {name!r} cannot be computed: {error}") from error


def unfolded(plan: Plan) -> Plan:
    """Return the plan without the constants that recipes compute."""
    return _without(plan, {n for n, steps in plan.derived.items() if direct_weight(steps) is None})


def is_packed(type_: TensorType) -> bool:
    """Return whether a tensor's format is made for kernels and packed from a plain one."""
    return find(type_.format).is_for_kernels


def without_packed(plan: Plan) -> Plan:
    """Return the plan without the packed weights that recipes compute."""
    return _without(plan, {name for name in plan.derived if is_packed(plan.tensors[name].type)})


def stored_packed(plan: Plan) -> Plan:
    """Return a plan with its packed weights, but without their recipes and plain weights.

    Recipes of weights that a session may replace stay, and those that decode fewer bits.
    """
    dropped = set()
    for name, recipe in plan.derived.items():
        leaves = [plan.weights[each] for each in weights_needed({name: recipe})]
        if all(x.kind == "constant" and x.dtype == plan.tensors[name].dtype for x in leaves):
            dropped.add(name)
    derived = {name: recipe for name, recipe in plan.derived.items() if name not in dropped}
    needed = weights_needed(derived)
    weights = {n: x for n, x in plan.weights.items() if x.kind != "constant" or n in needed}
    originals = {name: x for name, x in plan.originals.items() if name in weights}
    values, direct = weight_values(plan), set(map(direct_weight, derived.values()))
    originals |= {name: values[name] for name in sorted(needed - direct)}
    return plan._replace(derived=derived, weights=weights, originals=originals)


def without_decoded(plan: Plan) -> Plan:
    """Return the plan without constants that recipes decode from fewer bits of constants alone."""
    return _without(plan, {name for name in plan.derived if _is_decoded(plan, name)})


def _is_decoded(plan: Plan, name: str) -> bool:
    recipe = plan.derived[name]
    leaves = [plan.weights[each] for each in weights_needed({name: recipe})]
    return (
        direct_weight(recipe) is None
        and all(leaf.kind == "constant" for leaf in leaves)
        and any(leaf.dtype != "float32" for leaf in leaves)
    )


def _without(plan: Plan, computed: Collection[str]) -> Plan:
    constants = {n: array for n, array in plan.constants.items() if n not in computed}
    return plan._replace(constants=constants)


def is_folded(plan: Plan) -> bool:
    """Return whether the plan has all its constants."""
    return all(name in plan.constants for name in plan.derived)


def outlined(plan: Plan) -> Plan:
    """Return the plan with all its constants; those to be computed have no memory or values.

    Such a plan shows what a run needs, and must not be run.
    """
    missing = [name for name in plan.derived if name not in plan.constants]
    stand_ins = {name: stand_in(plan.tensors[name].storage) for name in missing}
    return plan._replace(constants={**plan.constants, **stand_ins})


def stand_in(type_: TensorType) -> np.ndarray:
    """Return an array of this type that takes almost no memory."""
    return np.broadcast_to(np.zeros((), DTYPES[type_.dtype].storage), type_.shape)


def completed(plan: Plan) -> Plan:
    """Return the plan with missing constants computed; present ones are not changed."""
    return plan if is_folded(plan) else folded(plan, plan.constants)


def check_recipe(
    recipe: Sequence[RecipeStep],
    weights: Mapping[str, WeightSpec],
    wanted: TensorType,
    limit: int,
    field: str,
) -> None:
    """Check that a recipe computes a tensor of this type, in at most ``limit`` bytes in all.

    Raises
    ------
    PlanFormatError
        If a step breaks a rule; the message names it.
    """
    types: list[TensorType] = []
    total = 0
    for place, step in enumerate(recipe):
        where = f"{field}[{place}]"
        if step.op == WEIGHT:
            name = step.attrs["name"]
            if name not in weights or step.attrs.keys() != {"name"}:
                fail(f"{where}[2].name", "expected the name of a weight", name)
            types.append(weights[name].type)
            continue
        types.append(_step_type(step, types, where))
        total += types[-1].nbytes
        if total > limit:
            fail(where, f"expected steps that compute at most {limit} bytes", total)
    if types[-1] != wanted:
        fail(
            field, f"expected a recipe that computes {wanted}, the type of the constant", types[-1]
        )


def _step_type(step: RecipeStep, types: Sequence[TensorType], field: str) -> TensorType:
    """Check a step and return the type of its result."""
    op, index = step_op(step.op)
    if op not in REGISTRY or REGISTRY[op].blocks:
        fail(f"{field}[0]", "expected a registered op without blocks", step.op)
    if step.op not in (op, f"{op}[{index}]") or step.op == f"{op}[0]":
        fail(
            f"{field}[0]",
            "expected the name of an op, with [1] or more for another output than the first",
            step.op,
        )
    inputs = [None if place is None else types[place] for place in step.inputs]
    try:
        inferred = REGISTRY[op].infer_types(inputs, step.attrs)
    except OpError as error:
        raise PlanFormatError(field, str(error)) from error
    if index >= len(inferred):
        fail(f"{field}[0]", f"expected one of the {len(inferred)} outputs of {op}", step.op)
    if any(type(size) is not int for size in inferred[index].shape):
        fail(field, "expected sizes without variables", inferred[index].shape)
    return inferred[index]


def weights_of(plan: Plan, constants: Collection[str]) -> dict[str, Any]:
    """Return ``weights``, ``derived`` and ``originals`` for these constants of a plan alone."""
    derived = {name: recipe for name, recipe in plan.derived.items() if name in constants}
    direct = set(map(direct_weight, derived.values()))
    values = weight_values(plan)
    originals = {name: values[name] for name in sorted(weights_needed(derived) - direct)}
    return {"weights": plan.weights, "derived": derived, "originals": originals}


def check_weights(plan: Plan) -> None:
    """Check the weights, the recipes that read them, and that no weight is missing."""
    taken: set[str] = set()
    for name, spec in watched(plan.weights.items()):
        field = f"plan.weights[{name!r}]"
        if spec.name != name:
            fail(field, "expected the name of the weight", spec.name)
        for each in (name, *spec.aliases):
            check_text(each, field)
            if not each or each in taken:
                fail(field, "expected names that no other weight has", each)
            taken.add(each)
        if spec.kind not in KINDS:
            fail(f"{field}.kind", f"expected one of {', '.join(KINDS)}", spec.kind)
        check_type(spec.dtype, spec.shape, field)
        if any(type(size) is Size for size in spec.shape):
            fail(f"{field}.shape", "expected sizes without variables", spec.shape)
        if spec.is_complex and (spec.dtype not in COMPLEX or spec.shape[-1:] != (2,)):
            fail(f"{field}.complex", "expected floats with a last axis of 2", spec.shape)
    _check_derived(plan)
    for name, array in watched(plan.originals.items()):
        spec = plan.weights[name]
        stored = TensorSpec(name, spec.dtype, spec.shape, "constant")
        check_array(array, stored, f"plan.weights[{name!r}]")


def _check_derived(plan: Plan) -> None:
    """Check the recipes, and that exactly the weights that need data of their own have some."""
    direct: set[str] = set()
    data = (*plan.originals.values(), *plan.constants.values())
    limit = max(MAX_LITTLE, MAX_GROWTH * sum(array.nbytes for array in data))
    for name, recipe in watched(plan.derived.items()):
        field = f"plan.derived[{name!r}]"
        if name not in plan.tensors or plan.tensors[name].role != "constant":
            fail(field, "expected the name of a constant", name)
        check_recipe(recipe, plan.weights, plan.tensors[name].type, limit, field)
        weight = direct_weight(recipe)
        if weight is not None and weight in direct:
            fail(field, "expected one constant that is this weight", weight)
        if weight is not None:
            direct.add(weight)
    needed = weights_needed(plan.derived) - direct
    if wrong := needed ^ plan.originals.keys():
        name = min(wrong)
        expected = "data, because a recipe" if name in needed else "no data, because no recipe"
        raise PlanFormatError(f"plan.weights[{name!r}]", f"expected {expected} needs it")
