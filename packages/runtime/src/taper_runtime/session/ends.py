"""Convert between the arrays that users see and those that a plan has.

numpy has no bfloat16: a plan stores its bits in uint16, and users get float32, which holds every
bfloat16 exactly. A plan stores the real and imaginary parts of complex numbers along a last axis of
length 2. numpy's complex numbers have the same layout in memory, so one is a view of the other.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from taper_runtime.base.dtypes import COMPLEX, DTYPES
from taper_runtime.base.errors import InputError
from taper_runtime.ops.convert import from_bfloat16, to_bfloat16
from taper_runtime.plan.plan import is_converted

if TYPE_CHECKING:
    from taper_runtime.plan.plan import Plan, TensorSpec
    from taper_runtime.plan.replaceable import WeightSpec

    Spec: TypeAlias = TensorSpec | WeightSpec

_BITS = DTYPES["bfloat16"].storage

#: Name of the dtype that users get for bfloat16, by the value of ``SessionOptions.bfloat16``.
_BFLOAT16 = {"float32": "float32", "bits": _BITS.name, "ml_dtypes": "bfloat16"}


class Ends:
    """Converter of the inputs and outputs that users see in another form than the plan has.

    Parameters
    ----------
    plan : Plan
    bfloat16 : str
        As what users get bfloat16; see :attr:`taper_runtime.SessionOptions.bfloat16`.

    Raises
    ------
    InputError
        If ``bfloat16`` asks for the package ml_dtypes, which is not installed.
    """

    def __init__(self, plan: Plan, bfloat16: str) -> None:
        if bfloat16 == "ml_dtypes":
            _ml_dtype()
        self._bfloat16 = bfloat16
        self._inputs, self._outputs = (
            [(i, spec) for i, spec in enumerate(specs) if is_converted(spec)]
            for specs in (
                [plan.tensors[name] for name in names] for names in (plan.inputs, plan.outputs)
            )
        )

    def take(self, arrays: list[np.ndarray], out: list[np.ndarray | None] | None) -> None:
        """Replace the arrays that a run reads, or is to write, by arrays in the plan's form."""
        for i, spec in self._inputs:
            arrays[i] = to_plan(spec, arrays[i], f"input {spec.name!r}")
        for i, spec in self._outputs if out is not None else ():
            if out is not None and (array := out[i]) is not None:
                out[i] = _writable(spec, array, f"out[{spec.name!r}]")

    def give(
        self, arrays: list[np.ndarray], out: list[np.ndarray | None] | None
    ) -> list[np.ndarray]:
        """Return a run's outputs as users see them; arrays in ``out`` are returned themselves."""
        given = list(arrays)
        for i, spec in self._outputs:
            array = None if out is None else out[i]
            if array is None:
                given[i] = to_user(spec, arrays[i], self._bfloat16)
                continue
            if not spec.is_complex and array.dtype == np.float32:
                array[...] = from_bfloat16(arrays[i])
            given[i] = array
        return given


def seen_dtype(spec: Spec, bfloat16: str) -> str:
    """Return the name of the dtype that users get."""
    return _BFLOAT16[bfloat16] if spec.dtype == "bfloat16" else spec.seen.dtype


def to_plan(spec: Spec, array: object, what: str, *, copies: bool = True) -> np.ndarray:
    """Return a user's array in the form that a plan has, as a view if possible.

    bfloat16 may be given as float32 whose values bfloat16 can represent, as ml_dtypes' bfloat16, or
    as bits in uint16; complex numbers also as pairs of reals, like a plan's samples. All other
    arrays are returned unchanged, also wrong ones: the checks of the plan's arrays refuse those.

    Raises
    ------
    InputError
        If the array has another dtype, or a value that bfloat16 cannot represent, or is to be
        written (``copies=False``) and is not contiguous. The message begins with ``what``.
    """
    if not is_converted(spec):
        return array  # type: ignore[return-value]
    if isinstance(array, np.generic):
        array = np.asarray(array)
    if not isinstance(array, np.ndarray):
        raise InputError(f"{what}: expected a numpy array, got {type(array).__name__}")
    if spec.is_complex:
        return _as_pairs(spec, array, what, copies=copies)
    if array.dtype == _BITS:
        return array
    if array.dtype.name == "bfloat16":
        return array.view(_BITS)
    if array.dtype != np.float32:
        raise InputError(
            f"{what}: expected dtype float32, bfloat16 of ml_dtypes, or uint16 with the bits of "
            f"bfloat16, got {array.dtype}"
        )
    return _exact_bits(array, what)


def to_user(spec: Spec, array: np.ndarray, bfloat16: str) -> np.ndarray:
    """Return a C-contiguous array of a plan as users see it: a view, except for float32."""
    if spec.is_complex:
        numbers = array.reshape(-1).view(COMPLEX[spec.dtype])
        return numbers.reshape(array.shape[:-1])
    if spec.dtype != "bfloat16" or bfloat16 == "bits":
        return array
    return array.view(_ml_dtype()) if bfloat16 == "ml_dtypes" else from_bfloat16(array)


def round_to_bfloat16(array: object) -> np.ndarray:
    """Round float32 to the nearest bfloat16, ties to even, as torch does.

    Parameters
    ----------
    array : numpy.ndarray
        float32.

    Returns
    -------
    numpy.ndarray
        float32 of the same shape, which an input of bfloat16 takes. A NaN stays a NaN.

    Raises
    ------
    InputError
        If ``array`` is not an array of float32.
    """
    if not isinstance(array, np.ndarray) or array.dtype != np.float32:
        got = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise InputError(f"round_to_bfloat16: expected an array of float32, got {got}")
    return from_bfloat16(to_bfloat16(array))


def _writable(spec: Spec, array: object, what: str) -> np.ndarray:
    """Return the array of the plan's form through which a run writes an output into ``array``."""
    if spec.is_complex or not isinstance(array, np.ndarray) or array.dtype != np.float32:
        return to_plan(spec, array, what, copies=False)
    if not (array.flags.c_contiguous and array.flags.writeable):
        raise InputError(f"{what}: expected a C-contiguous, aligned, writable array")
    return np.empty(array.shape, _BITS)


def _as_pairs(spec: Spec, array: np.ndarray, what: str, *, copies: bool) -> np.ndarray:
    """Return complex numbers as pairs, as a view if C-contiguous; return pairs as they are."""
    if array.dtype == spec.dtype:
        return array
    if array.dtype != COMPLEX[spec.dtype]:
        raise InputError(f"{what}: expected dtype {COMPLEX[spec.dtype]}, got {array.dtype}")
    if array.ndim + 1 != len(spec.shape):
        expected = ", ".join(map(str, spec.shape[:-1]))
        raise InputError(f"{what}: expected shape ({expected}), got {array.shape}")
    if not (array.flags.c_contiguous and array.flags.aligned):
        if not copies:
            raise InputError(f"{what}: expected a C-contiguous, aligned, writable array")
        array = np.array(array, order="C")
    return array.reshape(-1).view(spec.dtype).reshape(*array.shape, 2)


def _exact_bits(array: np.ndarray, what: str) -> np.ndarray:
    """Return the bits of float32 values, all of which bfloat16 must represent exactly."""
    bits = to_bfloat16(array)
    lost = from_bfloat16(bits) != array
    if lost.any() and (lost := lost & ~np.isnan(array)).any():
        place = tuple(map(int, np.argwhere(lost)[0]))
        raise InputError(
            f"{what}: expected values that bfloat16 can represent, got {array[place]!s} at "
            f"{list(place)}, near {from_bfloat16(bits)[place]!s}; taper_runtime.round_to_bfloat16 "
            "rounds it"
        )
    return bits


def _ml_dtype() -> np.dtype:
    """Return the bfloat16 dtype of the package ml_dtypes."""
    try:
        dtype: np.dtype = np.dtype(import_module("ml_dtypes").bfloat16)
    except ImportError:
        raise InputError(
            "bfloat16='ml_dtypes': expected the package ml_dtypes, which is not installed"
        ) from None
    return dtype
