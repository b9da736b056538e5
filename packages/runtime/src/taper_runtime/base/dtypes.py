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


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """Convert bfloat16 bits (uint16) to float32: they are the upper half of a float32."""
    return np.asarray(np.left_shift(bits, 16, dtype=np.uint32)).view(np.float32)


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """Round float32 values to bfloat16 bits (uint16), to nearest even; all NaNs become one NaN."""
    bits = np.asarray(x, order="C").view(np.uint32)
    # Add half a unit of the last kept bit, minus one if that bit is 0: ties round to even. A carry
    # into the exponent is right.
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(x), 0x7FC0, rounded).astype(np.uint16)


def cast(x: np.ndarray, dtype: str) -> np.ndarray:
    """Convert an array to ``dtype``. An array of uint16 holds bfloat16: plans have no uint16."""
    if x.dtype == np.uint16:
        x = from_bfloat16(x)
    with np.errstate(all="ignore"):
        if dtype == "bfloat16":
            return to_bfloat16(x.astype(np.float32))
        return np.array(x, DTYPES[dtype].storage, order="C")
