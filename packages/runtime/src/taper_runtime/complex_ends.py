"""Complex numbers at the ends of a session: numpy's arrays of them, and the pairs that plans have.

A plan has real and imaginary part along a last axis of 2, which is how numpy's complex numbers lie
in memory: the one is a view of the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.dtypes import COMPLEX
from taper_runtime.errors import InputError

if TYPE_CHECKING:
    from taper_runtime.plan.plan import Plan, TensorSpec


class ComplexEnds:
    """Which of a plan's inputs and outputs are complex.

    Attributes
    ----------
    inputs, outputs : list of int
        Their places.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan.without_values()
        self.inputs, self.outputs = (
            [i for i, name in enumerate(names) if plan.tensors[name].is_complex]
            for names in (plan.inputs, plan.outputs)
        )

    def take(self, arrays: list[np.ndarray], out: list[np.ndarray | None] | None) -> None:
        """Replace the complex arrays that a run reads, or is to write, by their pairs."""
        tensors = self._plan.tensors
        for i in self.inputs:
            name = self._plan.inputs[i]
            arrays[i] = as_pairs(tensors[name], arrays[i], f"input {name!r}")
        for i in self.outputs if out is not None else ():
            name = self._plan.outputs[i]
            if out is not None and (array := out[i]) is not None:
                out[i] = as_pairs(tensors[name], array, f"out[{name!r}]", copies=False)

    def give(
        self, arrays: list[np.ndarray], out: list[np.ndarray | None] | None
    ) -> list[np.ndarray]:
        """Return what a run gives: arrays of ``out`` as they are, pairs as complex numbers."""
        given = list(arrays)
        for i in self.outputs:
            array = None if out is None else out[i]
            given[i] = as_complex(arrays[i]) if array is None else array
        return given


def as_pairs(spec: TensorSpec, array: object, what: str, *, copies: bool = True) -> np.ndarray:
    """Return complex numbers as pairs, a view where they lie C-contiguous.

    Pairs, such as a plan's samples, are left as they are: what else is wrong, those who check
    arrays of reals say.

    Raises
    ------
    InputError
        If the array has other complex numbers than the tensor, or is to be written and has gaps.
    """
    if not isinstance(array, np.ndarray):
        raise InputError(f"{what}: expected a numpy array, got {type(array).__name__}")
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


def as_complex(array: np.ndarray) -> np.ndarray:
    """View C-contiguous pairs as complex numbers."""
    numbers = array.reshape(-1).view(COMPLEX[array.dtype.name])
    return numbers.reshape(array.shape[:-1])
