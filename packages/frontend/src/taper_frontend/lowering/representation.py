"""Choose how a graph represents torch's tensors: the dtypes of storage and computation."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.records import NamedTuple
from taper_runtime.ops.convert import FLOATS_16_BIT, to_bfloat16
from taper_runtime.ops.opdef import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterable


class Representation(NamedTuple):
    """The representation in a graph of tensors of one torch dtype.

    Attributes
    ----------
    stored : str
        The dtype of the tensor in the graph.
    computed : str
        The torch dtype of computations. If it differs from the tensor's, numbers are stored and
        moved unchanged. A node whose ops refuse them is lowered in this dtype, and its results are
        rounded.
    parts : tuple of int
        Additional last axes of the tensor in the graph: ``(2,)`` for real and imaginary part.
    """

    stored: str
    computed: str
    parts: tuple[int, ...] = ()


#: By torch's name of the dtype. Handlers see these dtypes; ops of the graph see the stored ones.
REPRESENTATIONS = {
    **{name: Representation(name, name) for name in DTYPES},
    **{name: Representation(name, "float32") for name in FLOATS_16_BIT},
    "complex64": Representation("float32", "complex64", (2,)),
    "complex128": Representation("float64", "complex128", (2,)),
}

#: For each dtype of real and imaginary parts, the dtype of the complex numbers.
_COMPLEX = {r.stored: name for name, r in REPRESENTATIONS.items() if r.parts}


class Pairs(str):
    """The name of a tensor of the graph that holds complex numbers.

    Real and imaginary parts lie along a last axis of 2. As a plain string the name denotes the
    tensor of reals.
    """

    __slots__ = ()


def is_complex(dtype: str) -> bool:
    """Return whether a torch dtype is complex."""
    return bool(REPRESENTATIONS[dtype].parts)


def computed(dtype: str) -> str:
    """Return the dtype in which ``dtype`` is computed."""
    return REPRESENTATIONS[dtype].computed


def real_dtype(dtype: str) -> str:
    """Return the dtype of real and imaginary parts; a real dtype is returned as it is."""
    return REPRESENTATIONS[dtype].stored


def number_array(value: complex, dtype: str) -> np.ndarray:
    """Return a scalar of a torch dtype as a plan stores it, rounded as torch rounds numbers."""
    stored, _, parts = REPRESENTATIONS[dtype]
    if parts:
        return _cast(np.array([value.real, value.imag]), stored)
    if dtype in FLOATS_16_BIT:
        rounded = _cast(np.array(value), "float32")
        return to_bfloat16(rounded) if dtype == "bfloat16" else _cast(rounded, stored)
    if "float" in dtype:
        return _cast(np.array(value), stored)
    if dtype == "bool":
        return np.array(bool(value))
    whole = int(value.real)
    wraps = dtype == "uint8" and -256 < whole < 0
    return np.array(whole + 256 * wraps, stored)


def _cast(array: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(over="ignore"):  # a number beyond the range becomes infinite
        return array.astype(dtype)


def resolution(dtype: str) -> float:
    """Return the distance from 1 to the next number of a dtype of floats."""
    return 2.0**-7 if dtype == "bfloat16" else float(np.finfo(dtype).eps)


#: torch's dtypes, each after those whose numbers it has.
_RANKS = (
    "bool", "uint8", "int8", "int16", "int32", "int64",
    "bfloat16", "float16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip


def result_dtype(tensors: Iterable[str], scalars: Iterable[str], numbers: Iterable[str]) -> str:
    """Return the dtype of torch's type promotion.

    Numbers yield to tensors without dims, and those to other tensors, if they are of the same kind:
    a tensor of int32 and a number of float32 give float32, one of float64 and a number float64.

    Parameters
    ----------
    tensors, scalars, numbers : iterable of str
        The dtypes of tensors with dims, of tensors without, and of Python's numbers.
    """
    found = [
        reduce(_promoted, dtypes) for each in (numbers, scalars, tensors) if (dtypes := [*each])
    ]
    return reduce(_over, found)


def number_dtype(number: complex, default: str) -> str:
    """Return torch's dtype of a Python number; ``default`` is that of floats."""
    if isinstance(number, bool):
        return "bool"
    if isinstance(number, int):
        return "int64"
    return default if isinstance(number, float) else _complex_of(default)


def _promoted(a: str, b: str) -> str:
    """Return torch's dtype for two tensors of the same rank."""
    if a == b:
        return a
    pair = {a, b}
    if pair == {"complex64", "float64"}:
        return "complex128"
    if pair == {"uint8", "int8"}:
        return "int16"
    if pair == set(FLOATS_16_BIT):
        return "float32"
    return max(a, b, key=_RANKS.index)


def _over(lower: str, higher: str) -> str:
    """Return torch's dtype where ``higher`` keeps its own within one kind of numbers."""
    if is_complex(higher) or ("float" in higher and not is_complex(lower)):
        return higher
    if "float" in higher:
        return _complex_of(higher)
    if higher == "bool" or "float" in lower or is_complex(lower):
        return _promoted(higher, lower)
    return higher


def _complex_of(real: str) -> str:
    return "complex128" if real == "float64" else "complex64"


def stored_type(type_: TensorType) -> TensorType:
    """Return the type in the graph of a tensor whose type in torch is ``type_``."""
    stored, _, parts = REPRESENTATIONS[type_.dtype]
    return TensorType(stored, (*type_.shape, *parts))


def represented_type(name: str, stored: TensorType) -> TensorType:
    """Return the torch type of a tensor of the graph, whose type there is ``stored``."""
    if not isinstance(name, Pairs):
        return stored
    return TensorType(_COMPLEX[stored.dtype], stored.shape[:-1])


def represented(name: str, dtype: str) -> str:
    """Return the name of a tensor of ``dtype`` in the form that handlers use."""
    return Pairs(name) if is_complex(dtype) else name
