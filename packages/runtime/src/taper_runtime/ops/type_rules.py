"""Share type rules, evaluators and costs among ops.

A ``check_*`` function returns the value that it checked, or raises :class:`OpError`.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from taper_runtime.base.errors import InputError, OpError
from taper_runtime.base.sizes import largest
from taper_runtime.ops.opdef import Attrs, Cost, Shape, TensorType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

FLOATS = ("float32", "float64")
INTS = ("int64", "int32", "int16", "int8", "uint8")
REALS = (*FLOATS, *INTS)
#: The float dtypes that ops compute in; float16 and bfloat16 are only moved and cast.
COMPUTED = (*REALS, "bool")
INDICES = ("int64", "int32")

#: The most inputs of an op that takes any number: a limit of plans, not of the op.
MANY = 2**16

_INT_LIMITS = {name: (int(np.iinfo(name).min), int(np.iinfo(name).max)) for name in INTS}
_INT_LIMITS["bool"] = (0, 1)


def fail(op: str, expected: str, got: object) -> NoReturn:
    """Raise :class:`OpError`; a long ``got`` is shortened."""
    text = str(got)
    raise OpError(
        f"{op}: expected {expected}, got {text if len(text) <= 120 else text[:117] + '...'}"
    )


def check_dtype(op: str, what: str, dtype: str, allowed: Sequence[str]) -> str:
    """Return ``dtype`` if it is one of ``allowed``."""
    if dtype not in allowed:
        fail(op, f"{what} of {' or '.join(allowed)}", dtype)
    return dtype


def check_same_dtype(op: str, inputs: Sequence[TensorType]) -> str:
    """Return the dtype that all inputs share."""
    if any(t.dtype != inputs[0].dtype for t in inputs):
        fail(op, "inputs of one dtype", [t.dtype for t in inputs])
    return inputs[0].dtype


def check_accumulator(op: str, inputs: Sequence[TensorType], attrs: Attrs) -> str:
    """Return the dtype of the sums of a product of bytes, as its attr ``accumulate`` says."""
    if attrs["accumulate"] != "int32":
        fail(op, "accumulate '' or 'int32'", repr(attrs["accumulate"]))
    for name, type_ in zip("ab", inputs, strict=False):
        check_dtype(op, f"{name} where sums are int32", type_.dtype, ("int8", "uint8"))
    return "int32"


def check_axis(op: str, axis: int, rank: int) -> int:
    """Return ``axis`` if it exists and is counted from the front."""
    if not 0 <= axis < rank:
        fail(op, f"an axis in [0, {rank})", axis)
    return axis


def check_axes(op: str, axes: Sequence[int], rank: int) -> Shape:
    """Return ``axes`` if they exist and are in increasing order, which excludes duplicates."""
    for axis in axes:
        check_axis(op, axis, rank)
    if any(a >= b for a, b in itertools.pairwise(axes)):
        fail(op, "axes in increasing order", list(axes))
    return tuple(axes)


def check_shape(op: str, shape: Sequence[int]) -> Shape:
    """Return ``shape`` if no size is negative."""
    if any(size < 0 for size in shape):
        fail(op, "sizes of at least 0", list(shape))
    return tuple(shape)


def check_scalar(op: str, value: float, dtype: str) -> float:
    """Return ``value`` if ``dtype`` can hold it: in range, and for integers without a fraction.

    A float dtype accepts every number, with rounding.
    """
    if dtype in _INT_LIMITS:
        low, high = _INT_LIMITS[dtype]
        if not isinstance(value, int) or not low <= value <= high:
            fail(op, f"a scalar of {dtype}", repr(value))
    return value


def broadcast(op: str, shapes: Sequence[Shape]) -> Shape:
    """Return the shape to which numpy broadcasts ``shapes``."""
    rank = max(map(len, shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        if shape == (*result,):  # most operands have equal shapes
            continue
        for i, size in enumerate(shape, rank - len(shape)):
            if result[i] == 1:
                result[i] = size
            elif size not in (1, result[i]):
                fail(op, "shapes that broadcast", [list(s) for s in shapes])
    return tuple(result)


def check_broadcasts_to(op: str, what: str, shape: Shape, target: Shape) -> Shape:
    """Return ``target`` if ``shape`` broadcasts to it."""
    if broadcast(op, [shape, target]) != target:
        fail(op, f"{what} that broadcasts to {list(target)}", list(shape))
    return target


def check_indices(op: str, index: np.ndarray, low: int, size: int) -> None:
    """Check, at run time, that every index is in ``[low, size)``.

    Raises
    ------
    InputError
        If an index is out of range, with the message of a kernel that finds one.
    """
    if index.size and not (low <= index.min() and index.max() < size):
        raise InputError(
            f"{op}: expected indices in [{low}, {size}), got {index.min()} to {index.max()}"
        )


def replace(shape: Shape, axis: int, *sizes: int) -> Shape:
    """Return ``shape`` with the dim at ``axis`` replaced by dims of ``sizes``."""
    return (*shape[:axis], *sizes, *shape[axis + 1 :])


def move_cost(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    """Return the cost of reading each output element once from the first input, row by row.

    All other inputs are read whole.
    """
    rows = output.size // largest(output.shape[-1], 1) if output.shape else 1
    return Cost(0, 2 * output.nbytes + sum(t.nbytes for t in inputs[1:]), rows=rows)


#: What a row takes beyond its elements, in loops: it is reduced twice, then the sums of vectors are
#: added, divided and spread. Rows of 96 to 1536 elements take a LAYER_NORM 40 ns more.
_LOOPS = 16


def row_cost(
    flops: int, passes: Mapping[str, int], axes: Iterable[int], inputs: Sequence[TensorType | None]
) -> Cost:
    """Return the cost of an op that reduces rows of its first input, and writes one of its type.

    Parameters
    ----------
    flops : int
        Those of an element.
    passes : mapping of str to int
        How often each element goes through a micro-op, or through loads and arithmetic like it.
    axes : iterable of int
        Those along which a row lies.
    inputs : sequence of TensorType
    """
    x = inputs[0]
    assert x is not None
    row = math.prod(x.shape[axis] for axis in axes)
    return Cost(
        flops * x.size,
        x.nbytes + sum(t.nbytes for t in inputs if t is not None),
        functions=tuple((name, x.dtype, count * x.size) for name, count in passes.items()),
        rows=_LOOPS * x.size // largest(row, 1),
    )
