"""Choose the integers of a weight by the inputs that calibration data show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_frontend.compiler.quantization.factored import GROUP, ROWS, factored, nearest_levels
from taper_frontend.compiler.quantization.rounding import (
    Rounded,
    as_rounded,
    joined,
    parameters_of,
    quantized,
)
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
    choice = _Offsets() if scheme.shift == "offsets" else _Zeros(scheme, scheme.group or rows)
    q = np.empty((rows, columns), np.int8)
    decoded = np.empty((rows, columns), np.float32)
    for start in range(0, rows, _BLOCK):
        stop = min(start + _BLOCK, rows)
        lost = np.zeros((stop - start, columns), np.float32)
        for row in range(start, stop):
            if row % choice.rows == 0:
                choice.add(weight[row : row + choice.rows])
            q[row], decoded[row] = choice.nearest(weight[row], row)
            lost[row - start] = (weight[row] - decoded[row]) / upper[row, row]
            weight[row:stop] -= np.outer(upper[row, row:stop], lost[row - start])
        weight[stop:] -= upper[start:stop, stop:].T @ lost
    apart, total = float(np.linalg.norm(decoded - matrix)), float(np.linalg.norm(matrix))
    return joined(choice.parts, 0, apart / total if total else 0.0)._replace(q=q)


class _Zeros:
    """Scales of a matrix, and perhaps zero points, for some rows after the other.

    Attributes
    ----------
    rows : int
        How many rows are added at a time.
    parts : list of Rounded
        What was added; its levels do not count.
    """

    def __init__(self, scheme: Scheme, rows: int) -> None:
        self.rows = rows
        self.parts: list[Rounded] = []
        self._scheme = scheme

    def add(self, rows: np.ndarray) -> None:
        """Choose the parameters of the next rows."""
        scheme = self._scheme
        self._scale, self._zero = (x[0, 0] for x in parameters_of(rows[None], scheme))
        zeros = self._zero[None].astype(np.int8) if scheme.shift else None
        self.parts.append(Rounded(rows, cast(self._scale[None], scheme.scales), zeros, 0.0))

    def nearest(self, numbers: np.ndarray, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the levels of a row, and their numbers."""
        levels = quantized(numbers, self._scale, self._zero, self._scheme)
        return levels, (levels - self._zero) * self._scale


class _Offsets:
    """The same for scales and offsets with factors."""

    def __init__(self) -> None:
        self.rows = ROWS
        self.parts: list[Rounded] = []

    def add(self, rows: np.ndarray) -> None:
        """Choose the parameters of the next rows."""
        self._found = factored(rows)
        self.parts.append(as_rounded(self._found))

    def nearest(self, numbers: np.ndarray, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the levels of a row, and their numbers."""
        group = row % ROWS // GROUP
        step, lowest = self._found.steps[0, group, 0], self._found.lowest[0, group, 0]
        levels = nearest_levels(numbers, step, lowest)
        return levels, levels * step + lowest


def _factor(squares: np.ndarray) -> np.ndarray:
    """Return the upper Cholesky factor of the inverse, float32."""
    damped = squares.copy()
    diagonal = np.einsum("ii->i", damped)
    unused = diagonal == 0  # inputs that are always 0
    diagonal[unused] = 1
    diagonal += _DAMPING * float(diagonal.mean())
    inverse = np.linalg.inv(damped)
    return np.linalg.cholesky((inverse + inverse.T) / 2).T.astype(np.float32)
