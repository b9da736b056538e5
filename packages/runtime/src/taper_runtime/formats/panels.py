"""panels.AXIS: a matrix cut along one of its two axes into panels of 16.

What the matrix kernels read as their second operand ``[K, N]``: for each 16 columns, ``[K, 16]``,
zero beyond N. ``panels.1`` is that of a matrix ``[K, N]``, ``panels.0`` that of one stored
transposed, ``[N, K]``: both are ``[ceil(N/16), K, 16]``.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from taper_runtime.base.errors import OpError
from taper_runtime.formats.format import Family, Format, Shape

#: Columns of one panel: one cache line of float32. Kernels have the same, GEMM_NR, which
#: tests/runtime/test_shared_constants.py holds.
PANEL = 16


def whole_panels(columns: int) -> int:
    """Return how many columns kernels compute for a product of ``columns``."""
    return (columns + PANEL - 1) // PANEL * PANEL


def pack(b: np.ndarray) -> np.ndarray:
    """Pack a ``[K, N]`` of any dtype as ``[ceil(N/16), K, 16]``, zero beyond N."""
    k, n = b.shape
    whole, rest = divmod(n, PANEL)
    packed = np.zeros((-(-n // PANEL), k, PANEL), b.dtype)
    # views of b, so that a large weight is copied once
    packed[:whole] = b[:, : n - rest].reshape(k, whole, PANEL).transpose(1, 0, 2)
    if rest:
        packed[whole, :, :rest] = b[:, n - rest :]
    return packed


def unpack(packed: np.ndarray, columns: int) -> np.ndarray:
    """Undo :func:`pack` of a matrix with ``columns`` columns."""
    count, k, width = packed.shape
    return packed.transpose(1, 0, 2).reshape(k, count * width)[:, :columns]


def _storage(axis: int, dtype: str, shape: Shape) -> tuple[str, Shape]:
    if len(shape) != 2:
        raise OpError(f"format panels.{axis}: expected a matrix, got {list(shape)}")
    return dtype, (-(-shape[axis] // PANEL), shape[1 - axis], PANEL)


def _encode(axis: int, array: np.ndarray) -> np.ndarray:
    return pack(array if axis == 1 else array.T)


def _decode(axis: int, stored: np.ndarray, dtype: str, shape: Shape) -> np.ndarray:
    matrix = unpack(stored, shape[axis])
    return matrix if axis == 1 else matrix.T


def _make(axis: int) -> Format:
    return Format(
        name=f"panels.{axis}",
        storage=partial(_storage, axis),
        encode=partial(_encode, axis),
        decode=partial(_decode, axis),
        scales_rows=axis == 1,
    )


FAMILY = Family("panels", _make, ((0, 1),), "panels.0 or panels.1", ("panels.0", "panels.1"))
