"""Define elementwise functions that numpy lacks, or defines differently from torch.

Functions of :data:`Wide` take and return float64: they have several steps, and the result is
rounded once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Wide = NDArray[np.float64]

_erf = np.frompyfunc(math.erf, 1, 1)
_erfc = np.frompyfunc(math.erfc, 1, 1)


def erf(x: Wide) -> Wide:
    """Return the error function of x."""
    return np.asarray(_erf(x), np.float64)


def erfc(x: Wide) -> Wide:
    """Return ``1 - erf(x)`` without cancellation."""
    return np.asarray(_erfc(x), np.float64)


def erfcx(x: Wide) -> Wide:
    """Return ``exp(x * x) * erfc(x)``, where x is large without overflow and underflow.

    Up to 10 it is that product. The square is computed in two parts, because its rounding error
    would become the relative error of the exponential. Beyond 10 it is the asymptotic series
    (Abramowitz and Stegun, 7.1.23).
    """
    near = np.clip(x, -27, 10)
    high = near.astype(np.float32).astype(np.float64)  # its square is exact
    square = np.exp(high * high) * np.exp((near - high) * (near + high))
    far = np.maximum(x, 10)
    series = np.ones_like(far)
    for factor in range(23, 0, -2):
        series = 1 - factor * (0.5 / (far * far)) * series
    return np.where(x > 10, series / far / math.sqrt(math.pi), square * erfc(near))


def gelu(x: Wide) -> Wide:
    """Return ``x * (1 + erf(x / sqrt(2))) / 2``, by erfc, which does not cancel for x < 0."""
    return 0.5 * x * erfc(-math.sqrt(0.5) * x)


def gelu_tanh(x: Wide) -> Wide:
    """Return ``x * (1 + tanh(u)) / 2``, which is ``x * sigmoid(2 u)``."""
    u = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return x * sigmoid(2 * u)


def sigmoid(x: Wide) -> Wide:
    """Return ``1 / (1 + exp(-x))``."""
    return 1 / (1 + np.exp(-x))


def silu(x: Wide) -> Wide:
    """Return ``x * sigmoid(x)``."""
    return x * sigmoid(x)


def softplus(x: Wide) -> Wide:
    """Return ``log(1 + exp(x))``, or ``x`` if it exceeds 20, as torch does."""
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


def mish(x: Wide) -> Wide:
    """Return ``x * tanh(softplus(x))``."""
    return x * np.tanh(softplus(x))


def hardsigmoid(x: Wide) -> Wide:
    """Return ``x / 6 + 1 / 2``, clamped to 0 and 1."""
    return np.clip(x + 3, 0, 6) / 6


def hardswish(x: Wide) -> Wide:
    """Return ``x * hardsigmoid(x)``."""
    return x * hardsigmoid(x)


def rsqrt(x: Wide) -> Wide:
    """Return ``1 / sqrt(x)``."""
    return 1 / np.sqrt(x)


def elu(x: Wide, alpha: Wide) -> Wide:
    """Return ``x`` if it is positive, else ``alpha * (exp(x) - 1)``."""
    return np.where(x > 0, x, alpha * np.expm1(x))


def leaky_relu(x: np.ndarray, slope: np.ndarray) -> Any:
    """Return ``x`` if it is positive, else ``slope * x``."""
    return np.where(x > 0, x, slope * x)


def relu(x: np.ndarray) -> Any:
    """Return 0 if x is negative, else ``x``; NaN and -0 are returned unchanged."""
    return np.where(x < 0, x.dtype.type(0), x)


def sign(x: np.ndarray) -> Any:
    """Return -1, 0 or 1; for NaN 0, as torch does."""
    return (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)


def reciprocal(x: np.ndarray) -> Any:
    """Return ``1 / x``."""
    return x.dtype.type(1) / x


def trunc_div(a: np.ndarray, b: np.ndarray) -> Any:
    """Return the quotient rounded toward zero; integers divided by 0 give 0."""
    if a.dtype.kind == "f":
        return np.trunc(a / b)
    floor = a // b
    return floor + ((floor < 0) & (floor * b != a))


def remainder(a: np.ndarray, b: np.ndarray) -> Any:
    """Return the remainder of floor division: it has the sign of ``b``; 0 has the sign of ``a``."""
    rest = np.fmod(a, b)
    return np.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


def power(a: np.ndarray, b: np.ndarray) -> Any:
    """Return the power; an integer to a negative power is truncated to 0, 1 or -1."""
    if a.dtype.kind == "f":
        return np.power(a, b)
    inverse = np.where(abs(a) == 1, np.power(a, b & 1), 0)
    return np.where(b < 0, inverse, np.power(a, np.maximum(b, 0)))


def left_shift(a: np.ndarray, b: np.ndarray) -> Any:
    """Return ``a * 2^b``; 0 if all bits are shifted out or ``b`` is negative, as torch does."""
    bits = 8 * a.dtype.itemsize
    inside = (b >= 0) & (b < bits)
    return np.where(inside, np.left_shift(a, np.where(inside, b, 0)), 0)


def right_shift(a: np.ndarray, b: np.ndarray) -> Any:
    """Return ``a / 2^b`` rounded down; negative ``b`` shifts out all bits, as in torch."""
    last = 8 * a.dtype.itemsize - (a.dtype.kind == "i")
    inside = (b >= 0) & (b < last)
    return np.right_shift(a, np.where(inside, b, last).astype(a.dtype))
