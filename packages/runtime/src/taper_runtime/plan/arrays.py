"""Check the arrays of a plan: constants, first values of states, weights and samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.dtypes import COMPLEX, DTYPES
from taper_runtime.errors import InputError, PlanFormatError
from taper_runtime.formats import PLAIN
from taper_runtime.plan.binding import bind_sizes
from taper_runtime.plan.checks import check_text, check_type, fail, tensor_field
from taper_runtime.plan.plan import STORED, TensorSpec
from taper_runtime.plan.weights import (
    KINDS,
    MAX_GROWTH,
    MAX_LITTLE,
    WEIGHT_PREFIX,
    check_recipe,
    direct_weight,
    weights_needed,
)
from taper_runtime.sizes import Size

if TYPE_CHECKING:
    import numpy as np

    from taper_runtime.ops.opdef import Shape
    from taper_runtime.plan.plan import Plan


def check_constants(plan: Plan) -> None:
    """Check that constants and states have the data that they need, and nothing else has any."""
    for name, spec in plan.tensors.items():
        if spec.role == "constant" and name not in plan.constants and not _is_computed(plan, name):
            raise PlanFormatError(tensor_field(name), "expected its data, as it is a constant")
    for name, array in plan.constants.items():
        if name not in plan.tensors or plan.tensors[name].role not in STORED:
            raise PlanFormatError(tensor_field(name), "expected no data, as it is no constant")
        _check_array(array, plan.tensors[name], tensor_field(name))


def _is_computed(plan: Plan, name: str) -> bool:
    """Whether a constant can be computed from weights, so that it needs no data."""
    return name in plan.derived and direct_weight(plan.derived[name]) is None


def check_weights(plan: Plan) -> None:
    """Check the weights, the recipes that read them, and that these have what they need."""
    taken: set[str] = set()
    for name, spec in plan.weights.items():
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
            fail(f"{field}.shape", "expected sizes that are known", spec.shape)
        if spec.is_complex and (spec.dtype not in COMPLEX or spec.shape[-1:] != (2,)):
            fail(f"{field}.complex", "expected floats with a last axis of 2", spec.shape)
    _check_derived(plan)
    for name, array in plan.originals.items():
        spec = plan.weights[name]
        stored = TensorSpec(name, spec.dtype, spec.shape, "constant")
        _check_array(array, stored, f"plan.weights[{name!r}]")


def _check_derived(plan: Plan) -> None:
    direct: set[str] = set()
    data = (*plan.originals.values(), *plan.constants.values())
    limit = max(MAX_LITTLE, MAX_GROWTH * sum(array.nbytes for array in data))
    for name, recipe in plan.derived.items():
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
        expected = "expected its data" if name in needed else "expected no data"
        raise PlanFormatError(f"plan.weights[{name!r}]", f"{expected}, as recipes say")
    for name in plan.tensors if plan.weights else ():
        if name.startswith(WEIGHT_PREFIX):
            raise PlanFormatError(tensor_field(name), "the file keeps this name for weights")


def check_samples(plan: Plan) -> None:
    """Check the example inputs, and that their sizes agree."""
    shapes: dict[str, Shape] = {}
    inputs = {*plan.inputs}
    for name, array in plan.samples.items():
        field = f"plan.samples[{name!r}]"
        if name not in inputs:
            raise PlanFormatError(field, "expected the name of an input")
        _check_array(array, plan.tensors[name], field)
        shapes[name] = array.shape
    try:
        bind_sizes(plan, shapes)
    except InputError as error:
        raise PlanFormatError("plan.samples", str(error)) from error


def _check_array(array: np.ndarray, spec: TensorSpec, field: str) -> None:
    """Check that ``array`` stores a tensor of ``spec`` and can be read by its address."""
    dtype, shape, _ = spec.storage
    as_stored = "" if spec.format == PLAIN else f" in format {spec.format}"
    if array.dtype != DTYPES[dtype].storage:
        fail(
            f"{field}.dtype", f"expected data of the tensor's {dtype}{as_stored}", str(array.dtype)
        )
    sized = spec.role == "input" and any(isinstance(size, Size) for size in shape)
    if array.shape != shape and not sized:  # what depends on sizes is bound together
        raise PlanFormatError(
            f"{field}.shape",
            f"the tensor's{as_stored} is {list(shape)}, its data's {list(array.shape)}",
        )
    if not (array.flags.c_contiguous and array.flags.aligned):
        raise PlanFormatError(field, "expected C-contiguous, aligned data")
    if spec.dtype == "bool" and array.view("u1").max(initial=0) > 1:
        raise PlanFormatError(field, "expected only bytes 0 and 1 in the data of a bool tensor")
