"""Define rare elementwise ops, which numpy computes: no kernels, no scalar operand."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.base.records import NamedTuple
from taper_runtime.ops.functions import erfc
from taper_runtime.ops.opdef import ALL_INPUTS, Attrs, OpDef, TensorType
from taper_runtime.ops.region import elementwise
from taper_runtime.ops.type_rules import FLOATS, broadcast, check_dtype, check_same_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Wide = NDArray[np.float64]


class Special(NamedTuple):
    """The definition of one function.

    Attributes
    ----------
    function : callable
        Computes an array from arrays of one dtype. Floats are passed as float64 unless ``exact``.
    arity : int
    dtypes : tuple of str
    doc : str
    exact : bool
        Whether the result depends on the dtype of the operands.
    """

    function: Callable[..., Any]
    arity: int
    dtypes: tuple[str, ...]
    doc: str
    exact: bool = False


def erfinv(x: Wide) -> Wide:
    """Return the inverse of erf: Winitzki's approximation, then Newton steps on erfc.

    Using erfc keeps the tails exact. S. Winitzki, "A handy approximation for the error function and
    its inverse", 2008.
    """
    size = np.abs(x)
    inside = np.where(size < 1, size, 0.0)
    tail = np.log1p(-inside * inside)
    a = 0.147
    mean = 2 / (math.pi * a) + tail / 2
    y = np.sqrt(np.sqrt(mean * mean - tail / a) - mean)
    for _ in range(4):
        y = y + (erfc(y) - (1 - inside)) * (math.sqrt(math.pi) / 2) * np.exp(y * y)
    y = np.where(size < 1, y, np.where(size == 1, np.inf, np.nan))
    return np.copysign(y, x)


def _log_gamma(x: float) -> float:
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):  # a pole, or an overflow
        return math.inf


_lgamma = np.frompyfunc(_log_gamma, 1, 1)


def digamma(x: Wide) -> Wide:
    """Return the logarithmic derivative of the gamma function.

    Negative numbers are reflected, numbers up to 10 are shifted by the recurrence, and the rest
    uses the asymptotic series (Abramowitz and Stegun, 6.3.18). At 0 the result is an infinity of
    the opposite sign; at the other poles it is NaN.
    """
    negative = x < 0
    z = np.where(negative, 1 - x, x)
    total = np.zeros_like(z)
    for _ in range(10):
        small = z < 10
        total = total - np.where(small, 1 / np.where(small, z, 1.0), 0.0)
        z = np.where(small, z + 1, z)
    square = 1 / (z * z)
    series = 1 / 12 - square * (1 / 120 - square * (1 / 252 - square * (1 / 240 - square / 132)))
    total = total + np.log(z) - 0.5 / z - square * series
    fraction = np.where(negative, x - np.trunc(x), 0.5)
    total = np.where(negative, total - math.pi / np.tan(math.pi * fraction), total)
    total = np.where(negative & (fraction == 0), np.nan, total)
    return np.where(x == 0, np.copysign(np.inf, -x), total)


SPECIALS: dict[str, Special] = {
    "ERFINV": Special(erfinv, 1, FLOATS, "the y with erf(y) = x"),
    "LGAMMA": Special(_lgamma, 1, FLOATS, "log |gamma(x)|"),
    "DIGAMMA": Special(digamma, 1, FLOATS, "derivative of log gamma(x)"),
    "I0": Special(np.i0, 1, FLOATS, "modified Bessel function of the first kind, order 0"),
    "HYPOT": Special(np.hypot, 2, FLOATS, "sqrt(a^2 + b^2) without overflow"),
    "NEXTAFTER": Special(
        np.nextafter, 2, ("float32",), "the number next to a in the direction of b", exact=True
    ),
}


def _infer(op: str, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    dtype = check_same_dtype(op, inputs)
    check_dtype(op, "operands", dtype, SPECIALS[op].dtypes)
    return TensorType(dtype, broadcast(op, [t.shape for t in inputs]))


def _evaluate(op: str, inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    special, dtype = SPECIALS[op], inputs[0].dtype
    wide = dtype.kind == "f" and not special.exact
    with np.errstate(all="ignore"):  # infinities and NaN are ordinary values
        result = special.function(*(x.astype(np.float64) if wide else x for x in inputs))
        shape = np.broadcast_shapes(*(x.shape for x in inputs))
        return np.asarray(result, order="C").astype(dtype).reshape(shape)


OPS = tuple(
    OpDef(
        name=op,
        doc=f"Elementwise: {special.doc}.",
        inputs=(special.arity, special.arity),
        infer=partial(_infer, op),
        evaluate=partial(_evaluate, op),
        region=elementwise,
        commutes=op == "HYPOT",
        strided=(ALL_INPUTS,),
        native=False,
    )
    for op, special in SPECIALS.items()
)
