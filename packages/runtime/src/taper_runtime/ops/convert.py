"""CAST, and values of dtypes that numpy has not."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.dtypes import DTYPES
from taper_runtime.ops.opdef import ALL_INPUTS, Attr, Attrs, OpDef, Sample, TensorType
from taper_runtime.ops.region import elementwise
from taper_runtime.ops.rules import COMPUTED, FLOATS, check_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Stored in half the bytes of a float32, computed in float32.
FLOATS_16_BIT = ("float16", "bfloat16")

#: What weights may be stored in: widened where a product reads them, exactly.
NARROW = (*FLOATS_16_BIT, "int8")


def is_native_cast(source: str, target: str) -> bool:
    """Whether a native kernel converts one dtype to the other: 16-bit floats, with float32 only."""
    return "float32" in (source, target) or not {source, target} & {*FLOATS_16_BIT}


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """float32 values of bfloat16 bits (uint16): the upper half of a float32."""
    return np.asarray(np.left_shift(bits, 16, dtype=np.uint32)).view(np.float32)


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """Bits (uint16) of float32 values rounded to bfloat16, to nearest even; NaN to one NaN."""
    bits = np.asarray(x, order="C").view(np.uint32)
    # Half of the last place kept, less one unit where that place is even; a carry is right.
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(x), 0x7FC0, rounded).astype(np.uint16)


def cast(x: np.ndarray, dtype: str) -> np.ndarray:
    """``x`` in ``dtype``. An array of uint16 holds bfloat16: there is no dtype uint16."""
    if x.dtype == np.uint16:
        x = from_bfloat16(x)
    with np.errstate(all="ignore"):
        if dtype == "bfloat16":
            return to_bfloat16(x.astype(np.float32))
        return np.array(x, DTYPES[dtype].storage, order="C")


def _infer(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    return TensorType(check_dtype("CAST", "dtype", attrs["dtype"], tuple(DTYPES)), inputs[0].shape)


def _samples() -> Iterator[Sample]:
    whole = np.array([[0, 1, 3, 7], [100, 25, 2, 0]])
    exact = np.array([[0.0, -0.0, 1.0, -1.5], [2.5, 100.25, -100.75, 1e-9]])
    for source, target in itertools.product(COMPUTED, repeat=2):
        values = exact if source in FLOATS else whole
        if target == "uint8":  # a negative number has no value there
            values = abs(values)
        array = values.astype(DTYPES[source].storage)
        yield Sample([array], {"dtype": target})
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 3.4e38, 1e-40], np.float32)
    for target in ("float64", "bool"):
        yield Sample([special], {"dtype": target})
    every = np.arange(2**16, dtype=np.uint16)
    yield Sample([every.view(np.float16)], {"dtype": "float32"})
    yield Sample([every], {"dtype": "float32"})  # bfloat16
    rng = np.random.default_rng(17)
    # All exponents; and what lies half way between two float16 or bfloat16, which goes to the even.
    bits = rng.integers(0, 2**32, 4096, np.uint32)
    halfway = bits & np.uint32(0xFFFFE000) | np.uint32(0x1000)
    ties = bits & np.uint32(0xFFFF0000) | np.uint32(0x8000)
    within = rng.uniform(-(2.0**-14), 2.0**-14, 4096).astype(np.float32)  # denormal as float16
    values = np.concatenate([bits.view(np.float32), halfway.view(np.float32), within, special])
    for target in FLOATS_16_BIT:
        yield Sample([values], {"dtype": target})
        yield Sample([ties.view(np.float32)], {"dtype": target})
    yield Sample([every[:60].reshape(3, 20).view(np.float16)], {"dtype": "int64"}, native=False)
    for shape in ((), (0, 3), (2, 1, 1, 2, 1, 3)):
        yield Sample([np.ones(shape, np.int32)], {"dtype": "float32"})


CAST = OpDef(
    name="CAST",
    doc="Convert to another dtype. Floats truncate toward zero to integers (what an integer cannot "
    "hold gives an unspecified one) and round to nearest even to smaller floats; to bool, anything "
    "but 0 is true.",
    inputs=(1, 1),
    infer=_infer,
    evaluate=lambda inputs, attrs: cast(inputs[0], attrs["dtype"]),
    samples=_samples,
    attrs={"dtype": Attr("string")},
    region=elementwise,
    decodes=lambda inputs, output: inputs[0].dtype in NARROW and output.dtype in FLOATS,
    strided=(ALL_INPUTS,),
)

OPS = (CAST,)
