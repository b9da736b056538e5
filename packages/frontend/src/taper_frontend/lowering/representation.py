"""Choose how a graph holds torch's tensors: the dtypes they are stored and computed in."""

from __future__ import annotations

import torch

from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.records import NamedTuple
from taper_runtime.ops.convert import FLOATS_16_BIT
from taper_runtime.ops.opdef import TensorType


class Representation(NamedTuple):
    """How a graph holds tensors of one of torch's dtypes.

    Attributes
    ----------
    stored : str
        The dtype of the tensor in the graph.
    computed : str
        The dtype of torch's that is computed in. Where it is another, numbers are stored and moved
        as they are; a node whose ops refuse them is lowered in this dtype, its results rounded.
    parts : tuple of int
        Axes that the tensor in the graph has behind its own: ``(2,)`` for real and imaginary part.
    """

    stored: str
    computed: str
    parts: tuple[int, ...] = ()


#: By torch's name of the dtype. Handlers see these dtypes, ops of the graph those stored.
REPRESENTATIONS = {
    **{name: Representation(name, name) for name in DTYPES},
    **{name: Representation(name, "float32") for name in FLOATS_16_BIT},
    "complex64": Representation("float32", "complex64", (2,)),
    "complex128": Representation("float64", "complex128", (2,)),
}

DTYPE_NAMES = {getattr(torch, name): name for name in REPRESENTATIONS}

#: The dtype of real and imaginary parts -> that of the numbers.
_COMPLEX = {r.stored: name for name, r in REPRESENTATIONS.items() if r.parts}


class Pairs(str):
    """The name of a graph's tensor that holds complex numbers.

    Their real and imaginary parts lie along its last axis, of 2. The plain string is the name of
    that tensor as one of reals.
    """

    __slots__ = ()


def refused_type(value: torch.Tensor) -> str:
    """Return what is wrong with the type of a tensor, empty if nothing is."""
    if value.layout != torch.strided:
        return f"expected a dense tensor, got {value.layout}"
    if value.dtype not in DTYPE_NAMES:
        return f"expected one of {', '.join(REPRESENTATIONS)}, got {value.dtype}"
    return ""


def is_complex(dtype: str) -> bool:
    """Whether a dtype of torch's is one of complex numbers."""
    return bool(REPRESENTATIONS[dtype].parts)


def computed(dtype: str) -> str:
    """Return the dtype that ``dtype`` is computed in."""
    return REPRESENTATIONS[dtype].computed


def real_dtype(dtype: str) -> str:
    """Return the dtype of real and imaginary parts; that of real numbers is their own."""
    return REPRESENTATIONS[dtype].stored


def stored_type(type_: TensorType) -> TensorType:
    """Return the type in the graph of a tensor that torch says is of ``type_``."""
    stored, _, parts = REPRESENTATIONS[type_.dtype]
    return TensorType(stored, (*type_.shape, *parts))


def represented_type(name: str, stored: TensorType) -> TensorType:
    """Return the type in torch of what a tensor of the graph, of type ``stored``, holds."""
    if not isinstance(name, Pairs):
        return stored
    return TensorType(_COMPLEX[stored.dtype], stored.shape[:-1])


def represented(name: str, dtype: str) -> str:
    """Return a tensor of the graph as the handlers' name of a tensor of ``dtype``."""
    return Pairs(name) if is_complex(dtype) else name
