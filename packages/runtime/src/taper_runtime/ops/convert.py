"""Define CAST, and conversions of dtypes that numpy lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.dtypes import DTYPES
from taper_runtime.ops.opdef import ALL_INPUTS, Attr, Attrs, OpDef, TensorType
from taper_runtime.ops.region import elementwise
from taper_runtime.ops.rules import FLOATS, check_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Dtypes of half the size of float32, which are computed in float32.
FLOATS_16_BIT = ("float16", "bfloat16")

#: Dtypes that weights may be stored in; products widen them exactly when they read them.
NARROW = (*FLOATS_16_BIT, "int8")


def is_native_cast(source: str, target: str) -> bool:
    """Return whether a native kernel casts ``source`` to ``target``.

    16-bit floats are cast only to and from float32.
    """
    return "float32" in (source, target) or not {source, target} & {*FLOATS_16_BIT}


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


def _infer(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    return TensorType(check_dtype("CAST", "dtype", attrs["dtype"], tuple(DTYPES)), inputs[0].shape)


CAST = OpDef(
    name="CAST",
    doc="Convert to another dtype. Floats truncate toward zero to integers (the result is "
    "unspecified where it does not fit) and round to nearest even to smaller floats; as bool, "
    "all values except 0 are true.",
    inputs=(1, 1),
    infer=_infer,
    evaluate=lambda inputs, attrs: cast(inputs[0], attrs["dtype"]),
    attrs={"dtype": Attr("string")},
    region=elementwise,
    decodes=lambda inputs, output: inputs[0].dtype in NARROW and output.dtype in FLOATS,
    strided=(ALL_INPUTS,),
)

OPS = (CAST,)
