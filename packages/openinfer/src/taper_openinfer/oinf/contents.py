"""Define the Python objects that represent the contents of a model file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from taper_openinfer.errors import OpenInferError, shown
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class SizeVar(NamedTuple):
    """A named size.

    Attributes
    ----------
    value : int
        From 0 to 2**64 - 1.
    """

    value: int


class ScalarValue(NamedTuple):
    """One number of metadata, with its element type.

    Attributes
    ----------
    value : bool, int or float
        The number itself, also for f8, bf16 and f16, not its bits.
    dtype : str
    """

    value: bool | int | float
    dtype: str


@dataclass(frozen=True)
class Bitset:
    """A sequence of bits in metadata.

    Attributes
    ----------
    data : bytes
        Bit k is bit k % 8, counted from the lowest, of byte k // 8. Unused bits are 0.
    count : int
        The number of bits.
    """

    data: bytes
    count: int

    @classmethod
    def of(cls, bits: Iterable[bool]) -> Bitset:
        """Make a set of bits from truth values.

        Raises
        ------
        OpenInferError
            If they are no sequence of truth values.
        """
        try:
            flags = np.fromiter(bits, np.bool_)
        except (TypeError, ValueError):
            raise OpenInferError(f"bits: expected truth values, got {shown(bits)}") from None
        return cls(np.packbits(flags, bitorder="little").tobytes(), flags.size)

    @property
    def bits(self) -> np.ndarray:
        """Return the bits as bools, shape (count,)."""
        raw = np.frombuffer(self.data, np.uint8)
        return np.unpackbits(raw, count=self.count, bitorder="little").astype(np.bool_)


@dataclass(frozen=True, eq=False)
class ArrayValue:
    """An array of metadata.

    Attributes
    ----------
    values : numpy.ndarray
        As :mod:`taper_openinfer.dtypes` keeps elements of the type in memory.
    dtype : str
    """

    values: np.ndarray
    dtype: str


@dataclass(frozen=True, eq=False)
class Quantization:
    """A mapping of a tensor's integers to numbers: ``(integer - zero_point) * scale``.

    Attributes
    ----------
    scales : numpy.ndarray
        float32, shape (1,), or one for each index along ``axis``.
    zero_points : numpy.ndarray or None
        int32, one per scale. None means 0; always None in a symmetric scheme.
    axis : int or None
        The axis along which scales differ; None if there is one scale.
    symmetric : bool
    """

    scales: np.ndarray
    zero_points: np.ndarray | None = None
    axis: int | None = None
    symmetric: bool = True


@dataclass(frozen=True, eq=False)
class TensorSpec:
    """A tensor with its data.

    Attributes
    ----------
    data : array_like
        As :mod:`taper_openinfer.dtypes` keeps elements of the type in memory.
    dtype : str, optional
        The element type; by default that of the numpy dtype: uint16 is u16.
    name : str, optional
        By default the name of the field that has the tensor.
    quant : Quantization, optional
    """

    data: np.ndarray | Sequence[object]
    dtype: str | None = None
    name: str | None = None
    quant: Quantization | None = None


@dataclass(frozen=True)
class UninitializedTensor:
    """A tensor without data: the program has to give its initial value.

    Attributes
    ----------
    dtype : str
    shape : tuple of int
    name : str, optional
        By default the name of the field that has the tensor.
    quant : Quantization, optional
    """

    dtype: str
    shape: tuple[int, ...]
    name: str | None = None
    quant: Quantization | None = None
