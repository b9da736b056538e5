"""Make arrays of variables: initial values, values from and for users, and their display."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from taper_openinfer.dtypes import DTYPES, check_array, from_float32, to_float32
from taper_openinfer.errors import OpenInferError, check_choice, shown
from taper_runtime.base.checks import MAX_TENSOR_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence


class VariableState(StrEnum):
    """States of a variable: its data are in memory, or not."""

    UNLOADED = "Unloaded"
    DATA = "Data"

    @classmethod
    def of(cls, is_loaded: bool) -> VariableState:
        """Return the state for whether the data are in memory."""
        return cls.DATA if is_loaded else cls.UNLOADED


Scalar = bool | int | float

#: Float types whose arrays hold the bits.
_BITS = ("bf16", "f8")


def scalar_array(dtype: str, value: Scalar) -> np.ndarray:
    """Return ``value`` as an array without dims, in the storage form of ``dtype``.

    Raises
    ------
    OpenInferError
        If the value is not one of the type's.
    """
    row = DTYPES[dtype]
    if row.kind == "float":
        if dtype in _BITS:
            return np.asarray(from_float32(dtype, np.array(value, np.float32)))
        with np.errstate(over="ignore"):
            return np.array(value, row.storage)
    if value != int(value) or not row.low <= value <= row.high:
        raise OpenInferError(f"expected a value of {dtype}, got {value!r}")
    array = np.array(int(value), row.storage)
    check_array(dtype, array)
    return array


def zero(dtype: str) -> np.ndarray:
    """Return the value whose bits in a file are 0, without dims: -1 for t1, else 0."""
    return scalar_array(dtype, -1 if dtype == "t1" else 0)


def filled(dtype: str, shape: Sequence[int], init: Scalar | None) -> np.ndarray:
    """Return a read-only array of the ``@init`` value, or of zeros if there is none."""
    value = zero(dtype) if init is None else scalar_array(dtype, init)
    array = np.zeros(shape, value.dtype) if not value.any() else np.full(shape, value)
    array.flags.writeable = False
    return array


def python_scalar(dtype: str, array: np.ndarray) -> Scalar:
    """Return the only element of an array in storage form as a Python number."""
    value: Scalar = (to_float32(dtype, array) if dtype in _BITS else array).item()
    return value


def is_true(dtype: str, array: np.ndarray) -> bool:
    """Return whether the only element of an array is not 0."""
    return python_scalar(dtype, array) != 0


def taken(name: str, dtype: str, shape: tuple[int, ...], given: object) -> np.ndarray:
    """Return a read-only copy of a user's value for a variable, after checking it.

    Parameters
    ----------
    name : str
        The name for messages.
    dtype : str
    shape : tuple of int
    given : array_like
        An array of the storage type of ``dtype``, or a Python number if there are no dims.

    Raises
    ------
    OpenInferError
        If the shape or the dtype is wrong, or a value is not one of the type's.
    """
    row = DTYPES[dtype]
    if type(given) is np.ndarray and given.dtype is row.storage and given.shape == shape:
        if row.bits < 8:
            check_array(dtype, given)
        array = given.copy()
        array.setflags(write=False)
        return array
    try:
        if type(given) is np.ndarray and given.dtype is row.storage:
            array = given.copy()
            if row.is_packed:
                check_array(dtype, array)
        elif not shape and isinstance(given, bool | int | float):
            array = scalar_array(dtype, given)
        else:
            array = np.array(given, order="C")
            check_array(dtype, array)
            array = array.astype(row.storage, copy=False)
    except (ValueError, OverflowError) as error:
        raise OpenInferError(f"{name}: {error}") from None
    if array.shape != shape:
        raise OpenInferError(f"{name}: expected an array of shape {shape}, got {array.shape}")
    array.flags.writeable = False
    return array


class Random:
    """Reproducible random numbers for examples and tests."""

    @staticmethod
    def generate_with_seed(
        seed: int, bounds: tuple[float, float], count: int, dtype: str = "f32"
    ) -> np.ndarray:
        """Return ``count`` uniform numbers between two bounds; equal seeds give equal numbers.

        Parameters
        ----------
        seed : int
        bounds : (float, float)
            Floats lie in [low, high), integers in [low, high].
        count : int
        dtype : str

        Returns
        -------
        numpy.ndarray
            Shape (count,), in the storage form of ``dtype``.

        Raises
        ------
        OpenInferError
            If an argument is of another type, the seed or the count is negative or too large, there
            is no such element type, or no number of it lies between the bounds.
        """
        if type(seed) is not int or seed < 0:
            raise OpenInferError(f"seed: expected an integer of at least 0, got {shown(seed)}")
        if type(count) is not int or not 0 <= count <= MAX_TENSOR_BYTES:
            raise OpenInferError(
                f"count: expected an integer of 0 to {MAX_TENSOR_BYTES}, got {shown(count)}"
            )
        row = DTYPES[check_choice("dtype", dtype, DTYPES)]
        low, high = _bounds(bounds)
        generator = np.random.default_rng(seed)
        if row.kind == "float":
            numbers = generator.uniform(low, high, count)
            if dtype in _BITS:
                return from_float32(dtype, numbers.astype(np.float32))
            return numbers.astype(row.storage)
        if dtype == "t1":
            return generator.choice(np.array([-1, 1], row.storage), count)
        first, last = max(int(low), int(row.low)), min(int(high), int(row.high))
        if row.kind == "bool":
            return generator.integers(0, 2, count).astype(row.storage)
        return generator.integers(first, last, count, row.storage, endpoint=True)


def _bounds(bounds: object) -> tuple[float, float]:
    """Return two finite numbers in order."""
    if (
        not isinstance(bounds, tuple)
        or [type(bound) in (int, float) for bound in bounds] != [True, True]
        or not -math.inf < bounds[0] <= bounds[1] < math.inf
    ):
        raise OpenInferError(
            f"bounds: expected two finite numbers, the lower one first, got {shown(bounds)}"
        )
    return bounds


def format_truncated(array: np.ndarray | Sequence[Scalar], dtype: str | None = None) -> str:
    """Return the elements in braces; of more than four, only two from each end.

    Floats have two decimals. ``dtype`` is needed for arrays of bits (bf16, f8).

    Raises
    ------
    OpenInferError
        If there is no such element type.

    >>> format_truncated([1.0, 2.0, 3.0, 4.0, 5.0])
    '{1.00, 2.00 ... 4.00, 5.00}'
    """
    if dtype is not None:
        check_choice("dtype", dtype, DTYPES)
    flat = np.asarray(array).reshape(-1)
    ends = flat if flat.size <= 4 else np.concatenate([flat[:2], flat[-2:]])
    if dtype in _BITS:
        ends = to_float32(dtype, ends)
    words = [_word(value) for value in ends.tolist()]
    if flat.size <= 4:
        return f"{{{', '.join(words)}}}"
    return f"{{{', '.join(words[:2])} ... {', '.join(words[2:])}}}"


def _word(value: Scalar) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.2f}" if isinstance(value, float) else str(value)
