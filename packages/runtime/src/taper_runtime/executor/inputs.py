"""What a good input array is: the one check both executors make."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.dtypes import DTYPES
from taper_runtime.errors import InputError

if TYPE_CHECKING:
    from taper_runtime.plan.plan import TensorSpec


def check_input(spec: TensorSpec, array: np.ndarray) -> np.ndarray:
    """``array`` as a contiguous, aligned array of the input's dtype and shape.

    Raises
    ------
    InputError
        If it is not an array of that dtype and shape; nothing is converted.
    """
    storage = DTYPES[spec.dtype].storage
    if not isinstance(array, np.ndarray):
        raise InputError(f"input {spec.name!r}: expected a numpy array, got {type(array).__name__}")
    if array.dtype != storage:
        raise InputError(f"input {spec.name!r}: expected dtype {storage}, got {array.dtype}")
    if array.shape != spec.shape:
        raise InputError(f"input {spec.name!r}: expected shape {spec.shape}, got {array.shape}")
    if array.flags.c_contiguous and array.flags.aligned:
        return array
    return np.array(array, order="C")
