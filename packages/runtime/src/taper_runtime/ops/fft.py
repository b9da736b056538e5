"""Define Fourier transforms along one axis.

The real and imaginary parts of complex numbers lie along a last axis of 2, which is not counted as
an axis. Native kernels read a table of constants such as roots of unity, see :func:`table`.

A length whose prime factors are all small is transformed by passes of those radices (Stockham's
form, Cochran et al. 1967, "What is the fast Fourier transform?"), a single long one in four steps
(Bailey 1990, "FFTs in external or hierarchical memory"); any other length by a convolution with a
chirp (Bluestein 1970, "A linear filtering approach to the computation of discrete Fourier
transform"). One of real numbers of an even length is one of half the length over pairs of them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from taper_runtime.base.errors import OpError
from taper_runtime.ops.complex_mul import check_pairs
from taper_runtime.ops.opdef import Attr, Attrs, Cost, OpDef, TensorType
from taper_runtime.ops.region import WHOLE, Region, Same
from taper_runtime.ops.type_rules import FLOATS, check_axis, check_dtype, fail, replace

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The divisor of a transform of n numbers: 1, the square root of n, or n.
_NORMS = ("none", "root", "length")

#: The largest length that kernels support.
_MAX_LENGTH = 1 << 26

#: Flops per complex number, 5 log2(n), for a typical n: the length may be a size expression.
_FLOPS = 45

#: The largest radix of a pass.
_MAX_RADIX = 31


#: The tables in use, by length and whether one side is real. Many nodes have the same length.
_TABLES: WeakValueDictionary[tuple[int, bool], np.ndarray] = WeakValueDictionary()


def table(n: int, *, real: bool) -> np.ndarray:
    """Return the table of constants that kernels need for transforms of ``n`` numbers.

    Parameters
    ----------
    n : int
        At least 1.
    real : bool
        Whether the input or the output is real.

    Returns
    -------
    numpy.ndarray
        float32 ``[rows, 2]``, complex numbers one after the other, with ``w(m, k) = exp(-2 pi i k /
        m)``. First ``w(n, k)`` for ``k < n``. ``length`` is ``n``, or half of it if :func:`_length`
        says so. If it has only small prime factors, the result of :func:`_factors` follows. If not,
        these follow: the chirp
        ``w(2 length, j^2)``, the transform of its inverse in ``padded`` numbers divided by
        ``padded``, ``w(padded, k)`` for ``k < padded``, and the factors of ``padded``.
    """
    found = _TABLES.get((n, real))
    if found is not None:
        return found
    length = _length(n, real)
    parts = [_roots(n, np.arange(n))]
    if _is_smooth(length):
        parts.append(_factors(length))
    else:
        padded = _padded(length)
        j = np.arange(length)
        chirp = _roots(2 * length, j * j % (2 * length))
        inverse = np.zeros(padded, np.complex128)
        inverse[:length] = chirp.conj()
        inverse[padded - length + 1 :] = chirp.conj()[:0:-1]
        spectrum = np.fft.fft(inverse) / padded
        parts += [chirp, spectrum, _roots(padded, np.arange(padded)), _factors(padded)]
    rows = np.concatenate(parts).astype(np.complex64)
    made = _TABLES[n, real] = np.stack([rows.real, rows.imag], 1)
    return made


def _length(n: int, real: bool) -> int:
    """Return the length in complex numbers: n, or n / 2 if real numbers can be taken in pairs."""
    return n // 2 if real and n % 2 == 0 else n


def _is_smooth(n: int) -> bool:
    for factor in range(2, _MAX_RADIX + 1):
        while n % factor == 0:
            n //= factor
    return n == 1


def _split(n: int) -> int:
    """Return the first factor of the four-step algorithm: the largest divisor up to the root."""
    for divisor in range(math.isqrt(n), 3, -1):
        if n % divisor == 0:
            return divisor
    return 1


def _padded(length: int) -> int:
    """Return a length for a circular convolution: a square of a product of 2, 3, 5 and 7."""
    root = max(4, -(-math.isqrt(2 * length - 2) // 4) * 4)
    while root * root < 2 * length - 1 or any(f > 7 for f in _prime_factors(root)):
        root += 4
    return root * root


def _prime_factors(n: int) -> list[int]:
    factors, factor = [], 2
    while n > 1:
        if n % factor == 0:
            factors.append(factor)
            n //= factor
        else:
            factor += 1
    return factors


def _roots(m: int, k: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(-2j * np.pi * (k / m)))


def _factors(length: int) -> np.ndarray:
    """Return the twiddle factors ``w(length, i j)``, row by row, of the four-step algorithm.

    ``i`` is below the first factor and ``j`` below the second. Empty if there is one step.
    """
    first = _split(length)
    if first == 1:
        return np.empty(0, np.complex128)
    i, j = np.arange(first)[:, None], np.arange(length // first)
    return _roots(length, i * j).reshape(-1)


# -- ops ------------------------------------------------------------------------------------------


def _check_norm(op: str, attrs: Attrs) -> None:
    if attrs["norm"] not in _NORMS:
        raise OpError(f"{op}: norm: expected one of {list(_NORMS)}, got {attrs['norm']!r}")


def _infer_fft(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    shape = check_pairs("FFT", "x", inputs[0])
    check_axis("FFT", attrs["axis"], len(shape))
    _check_norm("FFT", attrs)
    return inputs[0]


def _infer_rfft(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    dtype, shape, _ = inputs[0]
    check_dtype("RFFT", "x", dtype, FLOATS)
    axis = check_axis("RFFT", attrs["axis"], len(shape))
    _check_norm("RFFT", attrs)
    return TensorType(dtype, (*replace(shape, axis, shape[axis] // 2 + 1), 2))


def _infer_irfft(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    shape = check_pairs("IRFFT", "x", inputs[0])
    axis = check_axis("IRFFT", attrs["axis"], len(shape))
    size = attrs["size"]
    if size < 1 or shape[axis] != size // 2 + 1:
        fail("IRFFT", f"{size // 2 + 1} numbers along axis {axis} for size {size}", list(shape))
    _check_norm("IRFFT", attrs)
    return TensorType(inputs[0].dtype, replace(shape, axis, size))


def _divisor(attrs: Attrs, n: int) -> float:
    return {"none": 1.0, "root": math.sqrt(n), "length": float(n)}[attrs["norm"]]


def _numbers(x: np.ndarray) -> np.ndarray:
    return np.asarray(x[..., 0] + 1j * x[..., 1])


def _pairs(x: np.ndarray, like: np.ndarray) -> np.ndarray:
    return _as(like, np.stack([x.real, x.imag], -1))


def _as(like: np.ndarray, x: np.ndarray) -> np.ndarray:
    return x.astype(like.dtype, order="C")


@np.errstate(all="ignore")
def _evaluate_fft(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, axis = inputs[0].astype(np.float64), attrs["axis"]
    if not x.size:
        return np.zeros(x.shape, inputs[0].dtype)
    numbers = _numbers(x)
    if attrs["inverse"]:
        y = np.fft.ifft(numbers, axis=axis, norm="forward")
    else:
        y = np.fft.fft(numbers, axis=axis)
    return _pairs(y / _divisor(attrs, x.shape[axis]), inputs[0])


@np.errstate(all="ignore")
def _evaluate_rfft(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, axis = inputs[0].astype(np.float64), attrs["axis"]
    if not x.size:
        shape = replace(x.shape, axis, x.shape[axis] // 2 + 1)
        return np.zeros((*shape, 2), inputs[0].dtype)
    y = np.fft.rfft(x, axis=axis)
    return _pairs(y / _divisor(attrs, x.shape[axis]), inputs[0])


@np.errstate(all="ignore")
def _evaluate_irfft(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, axis, size = inputs[0].astype(np.float64), attrs["axis"], attrs["size"]
    if not x.size:
        return np.zeros(replace(x.shape[:-1], axis, size), inputs[0].dtype)
    y = np.fft.irfft(_numbers(x), size, axis=axis, norm="forward")
    return _as(inputs[0], y / _divisor(attrs, size))


def _region(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> list[Region]:
    """Return the regions: a part needs the whole transformed axis and both parts of each number."""
    rank = min(len(inputs[0].shape), len(output.shape))
    rank -= len(inputs[0].shape) == len(output.shape)  # the axis of the parts, in input and output
    axes = [WHOLE if axis == attrs["axis"] else Same(axis) for axis in range(rank)]
    parts = [WHOLE] * (len(inputs[0].shape) - rank)
    return [(*axes, *parts)]


def _table_fft(inputs: Sequence[TensorType], attrs: Attrs) -> np.ndarray | None:
    return _table(inputs[0], inputs[0].shape[attrs["axis"]], real=False)


def _table_rfft(inputs: Sequence[TensorType], attrs: Attrs) -> np.ndarray | None:
    return _table(inputs[0], inputs[0].shape[attrs["axis"]], real=True)


def _table_irfft(inputs: Sequence[TensorType], attrs: Attrs) -> np.ndarray | None:
    return _table(inputs[0], attrs["size"], real=True)


def _table(x: TensorType, n: int, *, real: bool) -> np.ndarray | None:
    if x.dtype != "float32" or not 1 <= n <= _MAX_LENGTH:
        return None
    return table(n, real=real)


def _cost(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    numbers = (inputs[0].size + output.size) // 4  # real numbers take half the flops
    return Cost(_FLOPS * numbers, output.nbytes + sum(t.nbytes for t in inputs))


_AXIS: dict[str, Attr] = {"axis": Attr("int", role="axis")}
_NORM: dict[str, Attr] = {"norm": Attr("string", "none")}


def _op(name: str, doc: str, attrs: dict[str, Attr], **rules: Any) -> OpDef:
    return OpDef(
        name=name, doc=doc, inputs=(1, 1), attrs=attrs, region=_region, cost=_cost, **rules
    )


OPS = (
    _op(
        "FFT",
        "sum over j of x[j] exp(-2 pi i j k / n) along an axis of n complex numbers, or with "
        "exp(+2 pi i j k / n) if inverse; divided by 1, the square root of n, or n, as norm says: "
        "none, root, length.",
        {**_AXIS, "inverse": Attr("bool", default=False), **_NORM},
        infer=_infer_fft,
        evaluate=_evaluate_fft,
        table=_table_fft,
    ),
    _op(
        "RFFT",
        "The first n // 2 + 1 numbers of FFT along an axis of n real numbers: the others are their "
        "conjugates.",
        {**_AXIS, **_NORM},
        infer=_infer_rfft,
        evaluate=_evaluate_rfft,
        table=_table_rfft,
    ),
    _op(
        "IRFFT",
        "The real numbers, size of them, whose inverse FFT's first half is given along an axis; "
        "imaginary parts where there can be none are not read. norm divides by size.",
        {**_AXIS, "size": Attr("int", sized=True), **_NORM},
        infer=_infer_irfft,
        evaluate=_evaluate_irfft,
        table=_table_irfft,
    ),
)
