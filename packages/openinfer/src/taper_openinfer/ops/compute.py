"""Compute OpenInfer's ops in numpy, on arrays as they are stored."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_openinfer.dtypes import DTYPES, from_float32, to_float32
from taper_openinfer.ops import taper
from taper_openinfer.ops.call_rules import complete
from taper_openinfer.ops.formulas import Given, write

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from taper_openinfer.ops.formulas import Formula

    Shape = tuple[int, ...]
    Evaluator = Callable[[Sequence[np.ndarray]], np.ndarray]

#: Stored in fewer bits than float32, which they are computed in.
SMALL_FLOATS = ("f8", "bf16", "f16")


def evaluate(
    op: str,
    inputs: Sequence[np.ndarray],
    dtypes: Sequence[str],
    settings: Mapping[str, Any],
    output_dtype: str,
) -> np.ndarray:
    """Compute one call that :func:`output_type` allows.

    Parameters
    ----------
    op : str
    inputs : sequence of numpy.ndarray
        As their element types are stored in memory; read only.
    dtypes : sequence of str
    settings : mapping
    output_dtype : str
        What :func:`output_type` gives.

    Returns
    -------
    numpy.ndarray
        A new array, row-major, as ``output_dtype`` is stored.
    """
    return prepare(op, dtypes, settings, output_dtype)(inputs)


def prepare(
    op: str, dtypes: Sequence[str], settings: Mapping[str, Any], output_dtype: str
) -> Evaluator:
    """Return what :func:`evaluate` calls with the inputs, for a call that is computed often."""
    if taper.is_taper(op):
        return taper.prepare(op, settings)
    settings = complete(op, dtypes, settings)
    acc = settings.get("acc")
    dtype = acc or ("f32" if dtypes[0] in SMALL_FLOATS else dtypes[0])
    storage = DTYPES[output_dtype].storage
    widening = [_widening(each, acc) for each in dtypes]
    narrow = _narrowing(output_dtype)

    @lru_cache(maxsize=8)
    def written(shape: Shape) -> Formula | None:
        return write(op, Given(dtype, dtypes, shape, settings))

    def run(inputs: Sequence[np.ndarray]) -> np.ndarray:
        with np.errstate(all="ignore"):  # infinities, NaN and wrapped integers are values
            values = [
                array if widen is None else widen(array)
                for array, widen in zip(inputs, widening, strict=True)
            ]
            formula = written(inputs[0].shape)
            result = _ones(values[0], dtypes[0]) if formula is None else formula.evaluate(values)
            result = np.asarray(result if narrow is None else narrow(result), storage, order="C")
        return result.copy() if any(result is array for array in inputs) else result

    return run


#: By byte.
_COUNTS = np.array([bin(byte).count("1") for byte in range(256)], np.uint8)


def _ones(x: np.ndarray, dtype: str) -> np.ndarray:
    """Count the bits that are 1: ``popcount``, which no op of Taper's computes."""
    row = DTYPES[dtype]
    x = np.asarray(x & x.dtype.type((1 << row.bits) - 1) if row.is_packed else x, order="C")
    counts: np.ndarray = _COUNTS[x.reshape(*x.shape, 1).view(np.uint8)].sum(axis=-1, dtype=np.uint8)
    return counts


def _widening(dtype: str, acc: str | None) -> Callable[[np.ndarray], np.ndarray] | None:
    """How stored elements become what is computed with; None where they are that."""
    if acc is not None:
        return lambda array: array.astype(DTYPES[acc].storage)
    if dtype in SMALL_FLOATS:
        return lambda array: to_float32(dtype, array)
    return None


def _narrowing(dtype: str) -> Callable[[Any], np.ndarray] | None:
    """How results become stored elements: small floats are rounded, narrow integers wrapped."""
    row = DTYPES[dtype]
    if dtype in SMALL_FLOATS:
        return lambda array: from_float32(dtype, np.asarray(array, np.float32))
    if not row.is_packed:
        return None
    if row.kind == "packed_unsigned":
        return lambda array: np.bitwise_and(array, row.storage.type((1 << row.bits) - 1))
    free = row.storage.type(8 - row.bits)
    return lambda array: np.right_shift(np.left_shift(array, free), free)
