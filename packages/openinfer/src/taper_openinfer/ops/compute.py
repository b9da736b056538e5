"""Compute OpenInfer's ops in numpy, on arrays in storage form."""

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

#: Element types that are computed in float32 and stored in fewer bits.
SMALL_FLOATS = ("f8", "bf16", "f16")


def evaluate(
    op: str,
    inputs: Sequence[np.ndarray],
    dtypes: Sequence[str],
    settings: Mapping[str, Any],
    output_dtype: str,
) -> np.ndarray:
    """Compute a call that :func:`output_type` accepts.

    Parameters
    ----------
    op : str
    inputs : sequence of numpy.ndarray
        The inputs in storage form; they are not written to.
    dtypes : sequence of str
    settings : mapping
    output_dtype : str
        The element type that :func:`output_type` returns.

    Returns
    -------
    numpy.ndarray
        A new array, row-major, in the storage form of ``output_dtype``.
    """
    return prepare(op, dtypes, settings, output_dtype)(inputs)


def prepare(
    op: str, dtypes: Sequence[str], settings: Mapping[str, Any], output_dtype: str
) -> Evaluator:
    """Return a function of the inputs that computes a call which is evaluated often."""
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


#: The number of 1 bits of each byte.
_COUNTS = np.array([bin(byte).count("1") for byte in range(256)], np.uint8)


def _ones(x: np.ndarray, dtype: str) -> np.ndarray:
    """Count the 1 bits of each element: ``popcount``, which no Taper op computes."""
    row = DTYPES[dtype]
    x = np.asarray(x & x.dtype.type((1 << row.bits) - 1) if row.is_packed else x, order="C")
    counts: np.ndarray = _COUNTS[x.reshape(*x.shape, 1).view(np.uint8)].sum(axis=-1, dtype=np.uint8)
    return counts


def _widening(dtype: str, acc: str | None) -> Callable[[np.ndarray], np.ndarray] | None:
    """Return the conversion of stored elements to the type of the computation, or None."""
    if acc is not None:
        return lambda array: array.astype(DTYPES[acc].storage)
    if dtype in SMALL_FLOATS:
        return lambda array: to_float32(dtype, array)
    return None


def _narrowing(dtype: str) -> Callable[[Any], np.ndarray] | None:
    """Return the conversion of results to storage form: floats are rounded, integers wrapped."""
    row = DTYPES[dtype]
    if dtype in SMALL_FLOATS:
        return lambda array: from_float32(dtype, np.asarray(array, np.float32))
    if not row.is_packed:
        return None
    if row.kind == "packed_unsigned":
        return lambda array: np.bitwise_and(array, row.storage.type((1 << row.bits) - 1))
    free = row.storage.type(8 - row.bits)
    return lambda array: np.right_shift(np.left_shift(array, free), free)
