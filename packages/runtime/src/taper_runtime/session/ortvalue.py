"""Define OrtValue: ONNX Runtime's handle of a tensor, over a numpy array."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.base.checks import MAX_RANK, MAX_TENSOR_BYTES, describe
from taper_runtime.base.dtypes import onnx_type
from taper_runtime.base.errors import InputError
from taper_runtime.base.text import is_one_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

#: ONNX's number of each element type, by numpy's name; bfloat16 is ml_dtypes'.
_ELEMENT_TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9,
    "float16": 10, "float64": 11, "complex64": 14, "complex128": 15, "bfloat16": 16,
}  # fmt: skip
#: Memory of bfloat16 is read as its bits: numpy alone has no such dtype.
_DTYPES = {number: name for name, number in _ELEMENT_TYPES.items()} | {16: "uint16"}


class OrtValue:
    """Tensor in the memory of a numpy array, which it shares.

    :meth:`ortvalue_from_numpy` and :meth:`ortvalue_from_shape_and_type` make one.
    """

    def __init__(self, array: np.ndarray) -> None:
        self._array = _checked(array)

    @staticmethod
    def ortvalue_from_numpy(
        numpy_obj: np.ndarray, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """Return a value over an array, in the array's own memory if that is C-contiguous.

        Raises
        ------
        InputError
            If it is not a numpy array of numbers, or the device is not "cpu".
        """
        check_device(device_type)
        value = OrtValue(numpy_obj)
        value._array = np.ascontiguousarray(numpy_obj).reshape(numpy_obj.shape)
        return value

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int],
        element_type: npt.DTypeLike | int,
        device_type: str = "cpu",
        device_id: int = 0,
    ) -> OrtValue:
        """Return a value with memory of its own, not initialized.

        Parameters
        ----------
        shape : sequence of int
        element_type : dtype or int
            A numpy dtype, or ONNX's number of the type.
        device_type : str
            "cpu".
        device_id : int
            It has no effect.

        Raises
        ------
        InputError
            If there is no such type, or no such shape, or the device is not "cpu".
        MemoryError
            If there is not enough memory.
        """
        check_device(device_type)
        dtype = element_dtype(element_type)
        return OrtValue(np.empty(checked_shape(shape, dtype), dtype))

    def numpy(self) -> np.ndarray:
        """Return the array whose memory this value uses, without a copy."""
        return self._array

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._array, dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()

    def update_inplace(self, data: np.ndarray | OrtValue) -> None:
        """Copy an array of the same dtype and shape into the memory.

        Raises
        ------
        InputError
            If it has another dtype or shape, or the memory cannot be written.
        """
        array = data.numpy() if isinstance(data, OrtValue) else OrtValue(data).numpy()
        if (array.dtype, array.shape) != (self._array.dtype, self._array.shape):
            raise InputError(
                f"update_inplace: expected {self._array.dtype} of shape {self._array.shape}, got "
                f"{array.dtype} of shape {array.shape}"
            )
        if not self._array.flags.writeable:
            raise InputError("update_inplace: expected memory that can be written")
        self._array[...] = array

    def shape(self) -> list[int]:
        """Return the sizes of all dims."""
        return list(self._array.shape)

    def data_type(self) -> str:
        """Return the type as ONNX Runtime spells it: "tensor(float)"."""
        return onnx_type(self._array.dtype.name)

    def element_type(self) -> int:
        """Return ONNX's number of the element type."""
        return _ELEMENT_TYPES[self._array.dtype.name]

    def device_name(self) -> str:
        """Return "cpu"."""
        return "cpu"

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        return self._array.ctypes.data

    def tensor_size_in_bytes(self) -> int:
        """Return the bytes of all elements."""
        return self._array.nbytes

    def has_value(self) -> bool:
        """Return True."""
        return True

    def is_tensor(self) -> bool:
        """Return True: there are no sequences, maps or sparse tensors."""
        return True

    def is_tensor_sequence(self) -> bool:
        """Return False."""
        return False

    def is_sparse_tensor(self) -> bool:
        """Return False."""
        return False

    def __repr__(self) -> str:
        return f"OrtValue({self.data_type()}, {self.shape()})"


def arrays_of(values: Mapping[str, OrtValue]) -> dict[str, np.ndarray]:
    """Return the arrays of a mapping of values by name.

    Raises
    ------
    InputError
        If one is not an OrtValue, or they are not given as a mapping.
    """
    if not isinstance(values, Mapping):
        raise InputError(f"expected a dict of OrtValues by name, got {type(values).__name__}")
    for name, value in values.items():
        if not isinstance(value, OrtValue):
            raise InputError(f"{name!r}: expected an OrtValue, got {type(value).__name__}")
    return {name: value.numpy() for name, value in values.items()}


def _checked(array: object) -> np.ndarray:
    if isinstance(array, np.ndarray) and array.dtype.name in _ELEMENT_TYPES:
        return array
    got = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
    raise InputError(f"expected a numpy array of {', '.join(_ELEMENT_TYPES)}; got {got}")


def checked_shape(shape: object, dtype: np.dtype) -> tuple[int, ...]:
    """Return the shape as a tuple, if numpy can make an array of ``dtype`` with it.

    Raises
    ------
    InputError
        If it is not a sequence of integers of at least 0, or has too many elements.
    """
    try:
        sizes = tuple(map(index, shape))  # type: ignore[call-overload]
    except TypeError:
        sizes = (-1,)
    if len(sizes) > MAX_RANK or min(sizes, default=0) < 0:
        raise InputError(
            f"shape: expected at most {MAX_RANK} integers of at least 0, got {describe(shape)}"
        )
    if dtype.itemsize * prod(size or 1 for size in sizes) > MAX_TENSOR_BYTES:
        raise InputError(f"shape: expected at most {MAX_TENSOR_BYTES} bytes, got {sizes}")
    return sizes


def check_device(device_type: object) -> None:
    """Raise an error for devices other than the CPU."""
    if not is_one_of(device_type, ("cpu",)):
        raise InputError(f"device_type: expected 'cpu', got {device_type!r}")


def element_dtype(element_type: npt.DTypeLike | int | None) -> np.dtype:
    """Return the numpy dtype of an element type, given as for numpy or as ONNX's number.

    Raises
    ------
    InputError
        If there is no such type here.
    """
    try:
        known = _DTYPES[element_type] if isinstance(element_type, int) else element_type
        dtype = None if known is None else np.dtype(known)  # numpy takes None for float64
    except (KeyError, TypeError, ValueError, SyntaxError):  # numpy parses texts as Python does
        dtype = None
    if dtype is None or dtype.name not in _ELEMENT_TYPES:
        raise InputError(
            f"element_type: expected numpy's dtype or ONNX's number of {', '.join(_ELEMENT_TYPES)}"
            f"; got {element_type!r}"
        )
    return dtype
