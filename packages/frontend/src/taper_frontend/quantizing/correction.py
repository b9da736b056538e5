"""Choose the integers of a weight by the inputs that calibration data show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_frontend.compiler.quantization.rounding import Rounded, parameters_of, quantized
from taper_runtime.base.dtypes import cast

if TYPE_CHECKING:
    from taper_frontend.compiler.quantization.schemes import Scheme

_BLOCK = 128  # rows whose errors are collected before the later rows see them

#: Number added to the diagonal, as a fraction of its mean, so that the matrix can be inverted.
_DAMPING = 0.01


def round_corrected(matrix: np.ndarray, squares: np.ndarray, scheme: Scheme) -> Rounded:
    """Round a matrix so that its products with typical inputs stay near.

    The rows are rounded one after the other, and what each one loses is made good by those that
    follow. Frantar, Ashkboos, Hoefler and Alistarh, "GPTQ: Accurate Post-Training Quantization for
    Generative Pre-trained Transformers", 2022, algorithm 1.

    Parameters
    ----------
    matrix : numpy.ndarray
        float32 ``[K, N]``.
    squares : numpy.ndarray
        float64 ``[K, K]``, the sum over inputs x of ``x x^T``.
    scheme : Scheme

    Returns
    -------
    Rounded
        Its ``error`` is that of the numbers, which may be larger than without a correction.
    """
    rows, columns = matrix.shape
    weight = matrix.astype(np.float32)
    upper = _factor(squares)
    group = scheme.group or rows
    q = np.empty((rows, columns), np.int8)
    scales = np.empty((rows // group, columns), np.float32)
    zeros = np.zeros((rows // group, columns), np.int8)
    for start in range(0, rows, _BLOCK):
        stop = min(start + _BLOCK, rows)
        lost = np.zeros((stop - start, columns), np.float32)
        for row in range(start, stop):
            if row % group == 0:
                scale, zero = parameters_of(weight[None, row : row + group], scheme)
                scales[row // group], zeros[row // group] = scale[0, 0], zero[0, 0]
            scale, zero = scales[row // group], zeros[row // group].astype(np.float32)
            levels = quantized(weight[row], scale, zero, scheme)
            q[row] = levels
            lost[row - start] = (weight[row] - (levels - zero) * scale) / upper[row, row]
            weight[row:stop] -= np.outer(upper[row, row:stop], lost[row - start])
        weight[stop:] -= upper[start:stop, stop:].T @ lost
    decoded = (q.reshape(-1, group, columns) - zeros[:, None].astype(np.float32)) * scales[:, None]
    apart = np.linalg.norm(decoded.reshape(rows, columns) - matrix)
    total = float(np.linalg.norm(matrix))
    return Rounded(
        q,
        cast(scales, scheme.scales),
        zeros if scheme.zeros else None,
        float(apart) / total if total else 0.0,
    )


def _factor(squares: np.ndarray) -> np.ndarray:
    """Return the upper Cholesky factor of the inverse, float32."""
    damped = squares.copy()
    diagonal = np.einsum("ii->i", damped)
    unused = diagonal == 0  # inputs that are always 0
    diagonal[unused] = 1
    diagonal += _DAMPING * float(diagonal.mean())
    inverse = np.linalg.inv(damped)
    return np.linalg.cholesky((inverse + inverse.T) / 2).T.astype(np.float32)
