"""Choose how a graph represents torch's tensors: the dtypes of storage and computation."""

from __future__ import annotations

import torch

from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.records import NamedTuple
from taper_runtime.ops.convert import FLOATS_16_BIT
from taper_runtime.ops.opdef import TensorType


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

DTYPE_NAMES = {getattr(torch, name): name for name in REPRESENTATIONS}

#: For each dtype of real and imaginary parts, the dtype of the complex numbers.
_COMPLEX = {r.stored: name for name, r in REPRESENTATIONS.items() if r.parts}


class Pairs(str):
    """The name of a tensor of the graph that holds complex numbers.

    Real and imaginary parts lie along a last axis of 2. As a plain string the name denotes the
    tensor of reals.
    """

    __slots__ = ()


def refused_type(value: torch.Tensor) -> str:
    """Return what is wrong with the type of a tensor; empty if nothing is."""
    if value.layout != torch.strided:
        return f"expected a dense tensor, got {value.layout}"
    if value.dtype not in DTYPE_NAMES:
        return f"expected one of {', '.join(REPRESENTATIONS)}, got {value.dtype}"
    return ""


def is_complex(dtype: str) -> bool:
    """Return whether a torch dtype is complex."""
    return bool(REPRESENTATIONS[dtype].parts)


def computed(dtype: str) -> str:
    """Return the dtype in which ``dtype`` is computed."""
    return REPRESENTATIONS[dtype].computed


def real_dtype(dtype: str) -> str:
    """Return the dtype of real and imaginary parts; a real dtype is returned as it is."""
    return REPRESENTATIONS[dtype].stored


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
