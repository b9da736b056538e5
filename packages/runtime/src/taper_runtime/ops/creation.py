"""Define ARANGE, which reads no tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.ops.opdef import Attr, Attrs, Cost, OpDef, TensorType
from taper_runtime.ops.type_rules import fail

if TYPE_CHECKING:
    from collections.abc import Sequence


def _infer_arange(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    start, stop, step = attrs["start"], attrs["stop"], attrs["step"]
    if step == 0:
        fail("ARANGE", "a step other than 0", step)
    size = (stop - start + step - 1) // step if step > 0 else (start - stop - step - 1) // -step
    if size < 0:
        fail("ARANGE", "a stop that is not before the start", (start, stop, step))
    return TensorType("int64", (size,))


def _arange(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    (size,) = _infer_arange((), attrs).shape
    return attrs["start"] + attrs["step"] * np.arange(size, dtype=np.int64)


ARANGE = OpDef(
    name="ARANGE",
    doc="start, start + step, ... before stop, as int64.",
    inputs=(0, 0),
    infer=_infer_arange,
    evaluate=_arange,
    attrs={
        "start": Attr("int", 0, sized=True),
        "stop": Attr("int", sized=True),
        "step": Attr("int", 1),
    },
    cost=lambda inputs, output, attrs: Cost(0, output.nbytes),
)

OPS = (ARANGE,)
