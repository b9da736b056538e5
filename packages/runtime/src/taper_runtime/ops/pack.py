"""Define PACK and UNPACK, which change a tensor's format and keep its values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.formats import PLAIN, find
from taper_runtime.ops.opdef import Attr, Attrs, OpDef, TensorType

if TYPE_CHECKING:
    from collections.abc import Sequence


def _infer_pack(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    format_ = find(attrs["format"])
    dtype, shape = format_.packs([(t.dtype, t.shape) for t in inputs])
    format_.storage(dtype, shape)  # raises OpError if the format cannot hold the tensor
    return TensorType(dtype, shape, format_.name)


def _infer_unpack(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    return inputs[0]._replace(format=PLAIN)


def _pack(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    if attrs["format"] == PLAIN:
        return _same(inputs, attrs)
    return find(attrs["format"]).encode(*inputs)


def _same(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    return np.array(inputs[0], order="C")


PACK = OpDef(
    name="PACK",
    doc="The tensor, stored in a format. A format of quantized weights is given levels, scales, "
    "perhaps zero points or offsets, and factors of these. Export folds it over constants.",
    inputs=(1, 5),
    infer=_infer_pack,
    evaluate=_pack,
    stores=True,
    attrs={"format": Attr("string")},
    native=False,
)

UNPACK = OpDef(
    name="UNPACK",
    doc="The tensor, stored plainly.",
    inputs=(1, 1),
    infer=_infer_unpack,
    evaluate=_same,
    formatted=(0,),
    native=False,
)

OPS = (PACK, UNPACK)
