"""Define the records that a format and a family of formats fill in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.errors import OpError
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    import numpy as np

Shape = tuple[int, ...]


def _one(types: Sequence[tuple[str, Shape]]) -> tuple[str, Shape]:
    """Return the only type."""
    if len(types) != 1:
        raise OpError(f"expected one tensor to pack, got {len(types)}")
    return types[0]


class Format(NamedTuple):
    """One way to store tensors of some dtypes and shapes.

    Parameters
    ----------
    name : str
        The family's name and the parameters, joined by dots.
    storage : callable
        ``(dtype, shape) -> (dtype, shape)`` of the stored array. It raises :class:`OpError` if such
        a tensor cannot have this format: it protects the kernels from invalid plan files.
    encode : callable
        ``(*arrays) -> stored array``, C-contiguous, from the arrays that ``packs`` accepts. Arrays
        are of the storage type of their dtype.
    decode : callable
        ``(stored array, dtype, shape) -> array`` of that dtype and shape.
    packs : callable
        ``([(dtype, shape)] of arrays) -> (dtype, shape)`` of the tensor that they make up: by
        default of one array that is the tensor. It raises :class:`OpError` for others.
    tolerance : float
        How far ``decode(encode(array))`` may be from the array, as a fraction of its largest
        magnitude; 0 if it has the same bits.
    scales_rows : bool
        Whether a matrix ``[K, N]`` times a factor per row, ``[K, 1]``, is stored as the stored
        array times that factor.
    is_for_kernels : bool
        Whether kernels alone ask for the format, so that a file may hold the plain tensor instead
        and a session may pack it. False where the format is the smaller one, as of quantized
        weights.
    """

    name: str
    storage: Callable[[str, Shape], tuple[str, Shape]]
    encode: Callable[..., np.ndarray]
    decode: Callable[[np.ndarray, str, Shape], np.ndarray]
    packs: Callable[[Sequence[tuple[str, Shape]]], tuple[str, Shape]] = _one
    tolerance: float = 0.0
    scales_rows: bool = False
    is_for_kernels: bool = True


class Family(NamedTuple):
    """Formats that differ only in parameters.

    Parameters
    ----------
    name : str
    make : callable
        ``(*parameters) -> Format``.
    parameters : tuple of containers of int or str
        The values that each parameter may have.
    spelling : str
        The pattern of the names, for error messages.
    examples : tuple of str
        Names of formats for tests.
    """

    name: str
    make: Callable[..., Format]
    parameters: tuple[Container[int] | Container[str] | Container[int | str], ...]
    spelling: str
    examples: tuple[str, ...]
