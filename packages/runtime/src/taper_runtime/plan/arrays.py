"""Check the arrays of a plan: constants, initial values of states, weights and samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.checks import fail, tensor_field
from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import InputError, PlanFormatError
from taper_runtime.base.loading import apart_if_large, watched
from taper_runtime.base.sizes import Size
from taper_runtime.formats import PLAIN
from taper_runtime.plan.binding import bind_sizes
from taper_runtime.plan.plan import STORED, TensorSpec

if TYPE_CHECKING:
    from taper_runtime.ops.opdef import Shape
    from taper_runtime.plan.plan import Plan


def check_constants(plan: Plan) -> None:
    """Check that constants and states have the data they need, and that nothing else has data."""
    for name, spec in watched(plan.tensors.items()):
        if spec.role == "constant" and name not in plan.constants and not _is_computed(plan, name):
            raise PlanFormatError(tensor_field(name), "expected data for a constant, got none")
    for name, array in watched(plan.constants.items()):
        if name not in plan.tensors or plan.tensors[name].role not in STORED:
            raise PlanFormatError(
                tensor_field(name), "expected no data for a tensor that is not a constant"
            )
        check_array(array, plan.tensors[name], tensor_field(name))


def _is_computed(plan: Plan, name: str) -> bool:
    """Return whether a constant can be computed from weights, and so needs no data."""
    if name not in plan.derived:
        return False
    # imported here because most plans do not need it
    from taper_runtime.plan.replaceable import direct_weight

    return direct_weight(plan.derived[name]) is None


def check_samples(plan: Plan) -> None:
    """Check the example inputs, and that their sizes are consistent."""
    shapes: dict[str, Shape] = {}
    inputs = {*plan.inputs}
    for name, array in watched(plan.samples.items()):
        field = f"plan.samples[{name!r}]"
        if name not in inputs:
            raise PlanFormatError(field, "expected the name of an input")
        check_array(array, plan.tensors[name], field)
        shapes[name] = array.shape
    try:
        bind_sizes(plan, shapes)
    except InputError as error:
        raise PlanFormatError("plan.samples", str(error)) from error


def check_array(array: np.ndarray, spec: TensorSpec, field: str) -> None:
    """Check that ``array`` stores a tensor of ``spec``, and that kernels can read it by address."""
    dtype, shape, _ = spec.storage
    if spec.role == "state":  # along the batch it is what each row begins with
        shape = tuple([1 if type(size) is Size else size for size in shape])
    if spec.role == "input" and any(isinstance(size, Size) for size in shape):
        shape = getattr(array, "shape", shape)  # shapes with size variables are checked together
    reason = "" if spec.format == PLAIN else f" for format {spec.format}"
    check_stored(array, dtype, shape, field, reason)
    if spec.dtype == "bool" and apart_if_large(_largest_byte, array) > 1:
        raise PlanFormatError(field, "expected only bytes 0 and 1 in the data of a bool tensor")


def check_stored(array: object, dtype: str, shape: Shape, field: str, reason: str = "") -> None:
    """Check the dtype, the shape and the memory layout of an array that a file stores.

    Parameters
    ----------
    array : object
    dtype : str
        The name of one of Taper's.
    shape : tuple of int
    field : str
        The path that errors begin with.
    reason : str
        What errors add to the expected dtype and shape.

    Raises
    ------
    PlanFormatError
        If it is no such array, C-contiguous and aligned.
    """
    if not isinstance(array, np.ndarray):
        fail(field, "expected an array", array)
    if array.dtype != DTYPES[dtype].storage:
        fail(f"{field}.dtype", f"expected {dtype}{reason}", str(array.dtype))
    if array.shape != shape:
        raise PlanFormatError(
            f"{field}.shape", f"expected {list(shape)}{reason}, got {list(array.shape)}"
        )
    if not (array.flags.c_contiguous and array.flags.aligned):
        raise PlanFormatError(field, "expected C-contiguous, aligned data")


def _largest_byte(array: np.ndarray) -> int:
    return int(array.view("u1").max(initial=0))
