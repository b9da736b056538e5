"""Store a matrix in panels of 16, cut along one of its two axes.

The formats ``panels.AXIS`` store the second operand ``[K, N]`` of a matrix product as the kernels
read it: each panel of 16 columns is ``[K, 16]``, with zeros beyond N. ``panels.1`` stores a matrix
``[K, N]``, ``panels.0`` a transposed matrix ``[N, K]``. Both are ``[ceil(N/16), K, 16]``.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from taper_runtime.base.errors import OpError
from taper_runtime.formats.format import Family, Format, Shape

#: Columns of one panel: one cache line of float32. The kernels call it GEMM_NR;
#: tests/runtime/test_shared_constants.py checks that both are equal.
PANEL = 16


def whole_panels(columns: int) -> int:
    """Return ``columns`` rounded up to whole panels."""
    return (columns + PANEL - 1) // PANEL * PANEL


def computed_columns(columns: int) -> int:
    """Return how many columns kernels compute: those of whole halves of panels.

    SSE and NEON compute whole panels; what kernels tell of a variant's work counts these.
    """
    half = PANEL // 2
    return (columns + half - 1) // half * half


def pack(b: np.ndarray) -> np.ndarray:
    """Pack a ``[K, N]`` of any dtype as ``[ceil(N/16), K, 16]``, with zeros beyond N."""
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
