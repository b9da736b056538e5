"""View a dense tensor of torch in the bytes of its storage."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.checks import MAX_RANK, MAX_TENSOR_BYTES, fail
from taper_runtime.base.dtypes import COMPLEX, DTYPES

if TYPE_CHECKING:
    from collections.abc import Sequence


def view_tensor(
    record: np.ndarray,
    dtype: str,
    shape: Sequence[int],
    strides: Sequence[int],
    offset: int,
    field: str,
) -> np.ndarray:
    """Return a read-only view of a tensor in its storage.

    Parameters
    ----------
    record : numpy.ndarray
        The bytes of the storage.
    dtype : str
        As plans name it; bfloat16 is viewed as uint16.
    shape, strides : sequence of int
        Sizes, and strides in elements, of at least 0.
    offset : int
        The first element in the storage.
    field : str
        The tensor's path in errors.

    Raises
    ------
    PlanFormatError
        If the tensor is larger than plans allow, or does not lie in the storage.
    """
    storage = np.dtype(dtype) if dtype in COMPLEX.values() else DTYPES[dtype].storage
    if len(shape) > MAX_RANK:
        fail(f"{field}.sizes", f"expected at most {MAX_RANK} dims", len(shape))
    if prod(n or 1 for n in shape) * storage.itemsize > MAX_TENSOR_BYTES:
        fail(f"{field}.sizes", f"expected at most {MAX_TENSOR_BYTES} bytes", [*shape])
    if len(strides) != len(shape):
        fail(f"{field}.strides", f"expected {len(shape)} strides, one per dim", len(strides))
    reach = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    last = offset + reach if 0 not in shape else 0
    stop = (last + (0 not in shape)) * storage.itemsize
    if stop > record.nbytes:
        fail(field, f"expected a tensor within the {record.nbytes} bytes of its record", stop)
    if 0 in shape:
        return _frozen(np.zeros(shape, storage))
    # the stride of a dim of 1 has no meaning, and may be larger than numpy accepts
    steps = [
        stride * storage.itemsize if n > 1 else 0 for n, stride in zip(shape, strides, strict=True)
    ]
    return _frozen(np.ndarray(shape, storage, record, offset * storage.itemsize, steps))


def _frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array
