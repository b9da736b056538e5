"""Define softmax. It is evaluated in float64 and rounded once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.ops.opdef import Attr, Attrs, OpDef, TensorType
from taper_runtime.ops.region import along
from taper_runtime.ops.type_rules import FLOATS, check_axis, check_dtype, row_cost

if TYPE_CHECKING:
    from collections.abc import Sequence


def _infer_softmax(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_dtype("SOFTMAX", "x", inputs[0].dtype, FLOATS)
    check_axis("SOFTMAX", attrs["axis"], len(inputs[0].shape))
    return inputs[0]


def _softmax(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, axis = inputs[0].astype(np.float64), attrs["axis"]
    with np.errstate(all="ignore"):
        shifted = x - x.max(axis, keepdims=True, initial=-np.inf)
        total = np.exp(shifted).sum(axis, keepdims=True)
        result = shifted - np.log(total) if attrs["log"] else np.exp(shifted) / total
        return np.asarray(result, inputs[0].dtype, order="C")


OPS = (
    OpDef(
        name="SOFTMAX",
        doc="exp(x - max) / sum(exp(x - max)) along an axis, or with `log` its logarithm. NaN "
        "where all elements are -inf.",
        inputs=(1, 1),
        infer=_infer_softmax,
        evaluate=_softmax,
        attrs={"axis": Attr("int", role="axis"), "log": Attr("bool", False)},
        region=along("axis"),
        inplace=(0,),
        cost=lambda inputs, output, attrs: row_cost(
            5, {"EXP": 1, "ADD": 3}, [attrs["axis"]], inputs
        ),
    ),
)
