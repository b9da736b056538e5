"""Define the record that every format fills in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    import numpy as np

Shape = tuple[int, ...]


class Format(NamedTuple):
    """A way to store tensors of some dtypes and shapes.

    Parameters
    ----------
    name : str
        Its one spelling: the family's name and the parameters, joined by dots.
    storage : callable
        ``(dtype, shape) -> (dtype, shape)`` of the stored array. Raises :class:`OpError` on a
        tensor that has no such format: it stands between a plan file and a kernel.
    encode : callable
        ``(array) -> stored array``, C-contiguous. Arrays are of the storage type of their dtype.
    decode : callable
        ``(stored array, dtype, shape) -> array`` of that dtype and shape.
    tolerance : float
        How far ``decode`` of ``encode`` may be from the array, as a part of its largest magnitude;
        0 where it has the same bits.
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
    encode: Callable[[np.ndarray], np.ndarray]
    decode: Callable[[np.ndarray, str, Shape], np.ndarray]
    tolerance: float = 0.0
    scales_rows: bool = False
    is_for_kernels: bool = True


class Family(NamedTuple):
    """Formats that differ in parameters.

    Parameters
    ----------
    name : str
    make : callable
        ``(*parameters) -> Format``.
    parameters : tuple of containers of int
        Which values each parameter may have.
    spelling : str
        How the names look, for messages.
    examples : tuple of str
        Names of formats that tests try.
    """

    name: str
    make: Callable[..., Format]
    parameters: tuple[Container[int], ...]
    spelling: str
    examples: tuple[str, ...]
