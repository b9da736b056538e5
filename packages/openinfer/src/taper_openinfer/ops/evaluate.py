"""Compute OpenInfer's ops in numpy, on arrays as they are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taper_openinfer.dtypes import DTYPES, from_float32, to_float32
from taper_openinfer.ops import taper
from taper_openinfer.ops.functions import ELEMENTWISE
from taper_openinfer.ops.reductions import OTHERS
from taper_openinfer.ops.rules import complete

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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
    function = ELEMENTWISE.get(op) or OTHERS[op]
    acc = settings.get("acc")
    computed = acc or dtypes[0]
    storage = DTYPES[output_dtype].storage
    widening = [_widening(dtype, acc) for dtype in dtypes]
    is_widened = any(widening)
    narrow = _narrowing(output_dtype)

    def run(inputs: Sequence[np.ndarray]) -> np.ndarray:
        with np.errstate(all="ignore"):  # infinities, NaN and wrapped integers are values
            values = inputs
            if is_widened:
                values = [
                    array if widen is None else widen(array)
                    for array, widen in zip(inputs, widening, strict=True)
                ]
            result = function(values, settings, computed)
            return np.asarray(result if narrow is None else narrow(result), storage, order="C")

    return run


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
