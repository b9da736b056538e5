"""Check the arrays that a run reads and writes, for all executors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import InputError
from taper_runtime.base.size_values import size_at
from taper_runtime.base.sizes import UNBOUNDED
from taper_runtime.plan.binding import bind_sizes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taper_runtime.plan.plan import Plan, TensorSpec


def check_array(spec: TensorSpec, array: object) -> np.ndarray:
    """Return ``array`` if it has the input's dtype; its shape is not checked.

    A numpy scalar, such as ``x.sum()`` gives, becomes an array without dims.

    Raises
    ------
    InputError
    """
    storage = DTYPES[spec.dtype].storage
    if isinstance(array, np.generic):
        array = np.asarray(array)
    if not isinstance(array, np.ndarray):
        raise InputError(f"input {spec.name!r}: expected a numpy array, got {type(array).__name__}")
    if array.dtype != storage:
        raise InputError(f"input {spec.name!r}: expected dtype {storage}, got {array.dtype}")
    return array


def bind_inputs(plan: Plan, arrays: Sequence[np.ndarray]) -> dict[str, int]:
    """Return the values of the plan's size variables, found from ``arrays``, one per input.

    Raises
    ------
    InputError
        If an array has another dtype than its input, or a shape that the plan does not take.
    """
    checked = {
        name: check_array(plan.tensors[name], array)
        for name, array in zip(plan.reads, arrays, strict=True)
    }
    return bind_sizes(plan, {name: array.shape for name, array in checked.items()})


def check_measured(plan: Plan, name: str, value: int, values: Mapping[str, int]) -> None:
    """Check the value of a size variable that a node has computed or an input has given.

    Parameters
    ----------
    plan : Plan
    name : str
        The variable.
    value : int
    values : mapping of str to int
        The values of the variables before it.

    Raises
    ------
    InputError
        If the value is out of range; the message names the node or the input.
    """
    low, high = plan.sizes[name]
    most = size_at(high, values)
    if not low <= value <= most:
        limits = f"at least {low}" if most >= UNBOUNDED and value < low else f"{low} to {most}"
        limits = str(low) if low == most else limits
        tensor, _ = plan.origins[name]
        if tensor in plan.inputs:
            raise InputError(f"input {tensor!r} ({name}): expected {limits}, got {value}")
        node = next(node for node in plan.nodes if tensor in node.outputs)
        at = f" at {node.source}" if node.source else ""
        raise InputError(
            f"node {node.output} ({node.op}){at}: the size {name} that it computes: expected "
            f"{limits}, got {value}"
        )


def check_value(spec: TensorSpec, array: object) -> np.ndarray:
    """Return ``array`` if it has the input's dtype and shape; its strides are not checked.

    Raises
    ------
    InputError
        If it is not an array of that dtype and shape; nothing is converted.
    """
    array = check_array(spec, array)
    if array.shape != spec.shape:
        raise InputError(f"input {spec.name!r}: expected shape {spec.shape}, got {array.shape}")
    return array


def check_input(spec: TensorSpec, array: object) -> np.ndarray:
    """Return ``array`` as a contiguous, aligned array of the input's dtype and shape.

    Raises
    ------
    InputError
        As :func:`check_value`.
    """
    array = check_value(spec, array)
    if array.flags.c_contiguous and array.flags.aligned:
        return array
    return np.array(array, order="C")


def check_output(spec: TensorSpec, array: np.ndarray, others: Sequence[np.ndarray]) -> np.ndarray:
    """Return ``array`` if a run may write the output into it.

    Raises
    ------
    InputError
        If the array has another dtype or shape than the output, cannot be written in place, or
        shares memory with one of ``others``: the run's inputs, which are still read while
        outputs are written, and its other outputs.
    """
    storage = DTYPES[spec.dtype].storage
    name = f"out[{spec.name!r}]"
    if not isinstance(array, np.ndarray):
        raise InputError(f"{name}: expected a numpy array, got {type(array).__name__}")
    if array.dtype != storage:
        raise InputError(f"{name}: expected dtype {storage}, got {array.dtype}")
    if array.shape != spec.shape:
        raise InputError(f"{name}: expected shape {spec.shape}, got {array.shape}")
    if not (array.flags.c_contiguous and array.flags.aligned and array.flags.writeable):
        raise InputError(f"{name}: expected a C-contiguous, aligned, writable array")
    if any(np.may_share_memory(array, other) for other in others):
        raise InputError(f"{name}: expected its own memory, got memory of another input or output")
    return array
