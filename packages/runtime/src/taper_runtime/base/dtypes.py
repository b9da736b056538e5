"""List the element types: names, numpy storage types and safetensors codes in one table."""

from __future__ import annotations

import numpy as np

from taper_runtime.base.records import NamedTuple


class DType(NamedTuple):
    """Storage of the elements of one dtype.

    Attributes
    ----------
    storage : numpy.dtype
        The numpy type of an array of such elements. numpy has no bfloat16: its bits are stored as
        uint16.
    code : str
        The name in a safetensors header.
    """

    storage: np.dtype
    code: str

    @property
    def size(self) -> int:
        """Return the bytes per element."""
        return self.storage.itemsize


#: ONNX Runtime's names of dtypes that differ from numpy's.
_ONNX_TYPES = {"float32": "float", "float64": "double"}


def onnx_type(dtype: str) -> str:
    """Return ONNX Runtime's name of a tensor type: "tensor(float)"."""
    return f"tensor({_ONNX_TYPES.get(dtype, dtype)})"


DTYPES: dict[str, DType] = {
    "float64": DType(np.dtype(np.float64), "F64"),
    "float32": DType(np.dtype(np.float32), "F32"),
    "float16": DType(np.dtype(np.float16), "F16"),
    "bfloat16": DType(np.dtype(np.uint16), "BF16"),
    "int64": DType(np.dtype(np.int64), "I64"),
    "int32": DType(np.dtype(np.int32), "I32"),
    "int16": DType(np.dtype(np.int16), "I16"),
    "int8": DType(np.dtype(np.int8), "I8"),
    "uint8": DType(np.dtype(np.uint8), "U8"),
    "bool": DType(np.dtype(np.bool_), "BOOL"),
}

#: Element types of safetensors files: those of plans, and some that plans lack. numpy has no 8-bit
#: floats: their bits are stored as uint8.
FILE_DTYPES: dict[str, DType] = {
    **DTYPES,
    "uint16": DType(np.dtype(np.uint16), "U16"),
    "uint32": DType(np.dtype(np.uint32), "U32"),
    "uint64": DType(np.dtype(np.uint64), "U64"),
    "float8_e5m2": DType(np.dtype(np.uint8), "F8_E5M2"),
    "float8_e4m3fn": DType(np.dtype(np.uint8), "F8_E4M3"),
}

#: For each dtype numpy's type of complex numbers with such parts. Plans store them as pairs of
#: reals; only the inputs and outputs of a session are complex.
COMPLEX = {"float32": "complex64", "float64": "complex128"}
