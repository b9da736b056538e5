"""Compute one op in numpy with its evaluator, on arrays as tensors are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import InternalError
from taper_runtime.formats import PLAIN, decode, encode
from taper_runtime.ops import REGISTRY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_runtime.ops.opdef import Attrs, BlockFunction, TensorType


def evaluate_op(
    op: str,
    arrays: Sequence[np.ndarray | None],
    types: Sequence[TensorType | None],
    attrs: Attrs,
    blocks: Sequence[BlockFunction] = (),
) -> tuple[np.ndarray, ...]:
    """Compute one op on arrays that store tensors of the given types.

    The results store tensors of the types that the op infers.

    Raises
    ------
    InputError
        If the op does not accept the values.
    InternalError
        If the evaluator's results do not have the types that the op infers.
    """
    definition = REGISTRY[op]
    expected = definition.infer_types(types, attrs, [block.types for block in blocks])
    values = [
        array if array is None or type_ is None else decode(array, type_)
        for array, type_ in zip(arrays, types, strict=True)
    ]
    with np.errstate(all="ignore"):  # infinities and NaN are ordinary values
        results = definition.evaluate_all(values, definition.complete(attrs), blocks)
    stored = []
    for result, type_ in zip(results, expected, strict=True):
        array = np.asarray(result)
        is_stored = definition.stores
        wanted = type_.storage if is_stored else type_
        check_type(f"the evaluator of {op}", array, wanted, InternalError)
        stored.append(array if is_stored else encode(array, type_))
    return tuple(stored)


def check_type(what: str, array: np.ndarray, expected: TensorType, error: type[Exception]) -> None:
    """Check that an array has a tensor's dtype and shape.

    Raises
    ------
    Exception
        ``error``, if it has not.
    """
    storage = DTYPES[expected.dtype].storage
    if array.shape != expected.shape or array.dtype != storage:
        raise error(
            f"{what}: expected {expected.dtype} {list(expected.shape)}, "
            f"got {array.dtype} {list(array.shape)}"
        )


def evaluate_step(
    op: str,
    index: int,
    arrays: Sequence[np.ndarray | None],
    types: Sequence[TensorType | None],
    attrs: Attrs,
    result: TensorType,
) -> np.ndarray:
    """Compute one output of an op, as a step of a constant's recipe.

    An op that only moves values returns a view if possible.

    Parameters
    ----------
    op : str
    index : int
        The index of the output.
    arrays : sequence of numpy.ndarray or None
        The arrays that store the inputs; they are not written to.
    types : sequence of TensorType or None
        The types of the inputs.
    attrs : mapping
    result : TensorType
        The type that the op infers for that output.

    Returns
    -------
    numpy.ndarray
        The array that stores the output. Do not write to it: it may be a view of an input.

    Raises
    ------
    InputError
        If the op does not accept the values, as for the inverse of a singular matrix.
    """
    array = _moved(op, arrays, types, attrs, result)
    return evaluate_op(op, arrays, types, attrs)[index] if array is None else array


def _moved(
    op: str,
    arrays: Sequence[np.ndarray | None],
    types: Sequence[TensorType | None],
    attrs: Attrs,
    result: TensorType,
) -> np.ndarray | None:
    """Return the result as a view of the first input, or None if it cannot be a view."""
    definition = REGISTRY[op]
    if not arrays or arrays[0] is None or types[0] is None or types[0].format != PLAIN:
        return None
    first = arrays[0]
    if definition.view is None or not first.size:
        return None
    itemsize = first.itemsize
    strides = tuple(stride // itemsize for stride in first.strides)
    view = definition.view(first.shape, strides, definition.complete(attrs))
    if view is None or (view.offset and not first.flags.c_contiguous):
        return None
    start = first.reshape(-1)[view.offset :] if view.offset else first
    moved = [stride * itemsize for stride in view.strides]
    return np.lib.stride_tricks.as_strided(start, result.shape, moved, writeable=False)
