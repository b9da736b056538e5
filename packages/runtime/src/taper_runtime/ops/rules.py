"""Checks shared by the type rules of the ops: each returns what it checked or raises OpError."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from taper_runtime.errors import OpError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_runtime.ops.opdef import Shape, TensorType

FLOATS = ("float64", "float32", "float16")
INTS = ("int64", "int32", "int16", "int8", "uint8")
REALS = (*FLOATS, *INTS)
#: What evaluators compute with; bfloat16 is stored and moved, not computed.
COMPUTED = (*REALS, "bool")


def check_dtype(op: str, what: str, dtype: str, allowed: Sequence[str]) -> str:
    """``dtype`` if it is one of ``allowed``."""
    if dtype not in allowed:
        raise OpError(f"{op}: {what}: expected dtype {' or '.join(allowed)}, got {dtype}")
    return dtype


def check_same_dtype(op: str, inputs: Sequence[TensorType]) -> str:
    """The dtype all inputs share."""
    dtypes = {t.dtype for t in inputs}
    if len(dtypes) != 1:
        raise OpError(f"{op}: expected inputs of one dtype, got {[t.dtype for t in inputs]}")
    return dtypes.pop()


def check_axis(op: str, axis: int, rank: int) -> int:
    """``axis`` if it counts from the front and exists."""
    if not 0 <= axis < rank:
        raise OpError(f"{op}: expected an axis in [0, {rank}), got {axis}")
    return axis


def check_axes(op: str, axes: Sequence[int], rank: int) -> Shape:
    """``axes`` if they exist, rise and do not repeat."""
    for axis in axes:
        check_axis(op, axis, rank)
    if any(a >= b for a, b in itertools.pairwise(axes)):
        raise OpError(f"{op}: expected axes that rise, got {list(axes)}")
    return tuple(axes)


def check_shape(op: str, shape: Sequence[int]) -> Shape:
    """``shape`` if no size is negative."""
    if any(size < 0 for size in shape):
        raise OpError(f"{op}: expected sizes of at least 0, got {list(shape)}")
    return tuple(shape)


def broadcast(op: str, shapes: Sequence[Shape]) -> Shape:
    """The shape numpy broadcasts ``shapes`` to."""
    rank = max(map(len, shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for i, size in enumerate(shape, rank - len(shape)):
            if result[i] == 1:
                result[i] = size
            elif size not in (1, result[i]):
                raise OpError(f"{op}: shapes do not broadcast: {[list(s) for s in shapes]}")
    return tuple(result)
