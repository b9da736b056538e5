"""Compute calls of numbers alone, such as ranges, as torch does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taper_frontend.lowering.representation import REPRESENTATIONS
from taper_runtime.ops.convert import FLOATS_16_BIT, to_bfloat16

if TYPE_CHECKING:
    from collections.abc import Callable


def _arange(of: str, /, start: float, end: float, step: float = 1, **options: Any) -> np.ndarray:
    """Return a range; floats are computed in float64, and rounded."""
    whole = all(isinstance(value, int) for value in (start, end, step))
    if whole:
        return _rounded(np.arange(start, end, step, dtype=np.int64), of)
    count = int(np.ceil((end - start) / step))
    return _rounded(start + np.arange(count) * float(step), of)


def _linspace(of: str, /, start: float, end: float, steps: int, **options: Any) -> np.ndarray:
    """Return evenly spaced numbers, counted from the start in the first half, then from the end."""
    real = np.dtype(np.float64 if of == "float64" or "int" in of else np.float32)
    first, last = real.type(start), real.type(end)
    step = (last - first) / real.type(max(steps - 1, 1))
    index = np.arange(steps).astype(real)
    counted = first + step * index
    back = last - step * (real.type(steps - 1) - index)
    return _rounded(np.where(np.arange(steps) < max(steps // 2, steps == 1), counted, back), of)


def _tril_indices(of: str, /, rows: int, columns: int, offset: int = 0, **_: Any) -> np.ndarray:
    return _rounded(np.stack(np.tril_indices(rows, offset, columns)), of)


def _triu_indices(of: str, /, rows: int, columns: int, offset: int = 0, **_: Any) -> np.ndarray:
    return _rounded(np.stack(np.triu_indices(rows, offset, columns)), of)


def _rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return real numbers as a plan stores them."""
    if dtype in FLOATS_16_BIT:
        values = values.astype(np.float32)
        return to_bfloat16(values) if dtype == "bfloat16" else values.astype(np.float16)
    return values.astype(REPRESENTATIONS[dtype].stored)


#: ``(dtype of the result, *arguments) -> array as a plan stores it``, by ATen op.
NUMBER_CALLS: dict[str, Callable[..., np.ndarray]] = {
    "aten.arange.start_step": _arange,
    "aten.linspace.default": _linspace,
    "aten.tril_indices.default": _tril_indices,
    "aten.triu_indices.default": _triu_indices,
}
