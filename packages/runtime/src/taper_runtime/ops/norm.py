"""Define the norms. They are evaluated in float64 and rounded once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.ops.opdef import Attr, Attrs, OpDef, TensorType
from taper_runtime.ops.region import trailing
from taper_runtime.ops.type_rules import FLOATS, check_dtype, fail, row_cost

if TYPE_CHECKING:
    from collections.abc import Sequence


def _check_norm(
    op: str, x: TensorType, parameters: Sequence[TensorType | None], dims: int
) -> TensorType:
    """Check the parameters against the last ``dims`` dims of x; return the type of x."""
    check_dtype(op, "x", x.dtype, FLOATS)
    if not 1 <= dims <= len(x.shape):
        fail(op, f"dims in [1, {len(x.shape)}]", dims)
    expected = TensorType(x.dtype, x.shape[len(x.shape) - dims :])
    for parameter in parameters:
        if parameter is not None and parameter != expected:
            fail(op, f"weight and bias of {expected}", parameter)
    return x


def _infer_layer_norm(inputs: Sequence[Any], attrs: Attrs) -> TensorType:
    return _check_norm("LAYER_NORM", inputs[0], inputs[1:], attrs["dims"])


def _layer_norm(inputs: Sequence[Any], attrs: Attrs) -> np.ndarray:
    x, weight, bias = [
        None if array is None else array.astype(np.float64) for array in [*inputs, None, None][:3]
    ]
    assert x is not None
    with np.errstate(all="ignore"):
        centred = x - _mean(x, attrs["dims"])
        result = centred / np.sqrt(_mean(np.square(centred), attrs["dims"]) + attrs["eps"])
        if weight is not None:
            result = result * weight
        if bias is not None:
            result = result + bias
        return np.asarray(result, inputs[0].dtype, order="C")


def _infer_rms_norm(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    return _check_norm("RMS_NORM", inputs[0], inputs[1:], attrs["dims"])


def _rms_norm(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, *weight = (array.astype(np.float64) for array in inputs)
    with np.errstate(all="ignore"):
        result = x / np.sqrt(_mean(np.square(x), attrs["dims"]) + attrs["eps"])
        for factor in weight:
            result = result * factor
        return np.asarray(result, inputs[0].dtype, order="C")


def _mean(x: np.ndarray, dims: int) -> np.ndarray:
    """Return the mean over the last ``dims`` dims, kept with size 1; the mean of nothing is NaN."""
    axes = tuple(range(x.ndim - dims, x.ndim))
    count = np.float64(np.prod(x.shape[x.ndim - dims :]))
    return np.asarray(x.sum(axes, keepdims=True) / count)


OPS = (
    OpDef(
        name="LAYER_NORM",
        doc="(x - mean) / sqrt(variance + eps) over the last `dims` dims, times weight, plus bias; "
        "both are optional and have the shape of those dims.",
        inputs=(1, 3),
        optional=(1,),
        infer=_infer_layer_norm,
        evaluate=_layer_norm,
        attrs={"dims": Attr("int"), "eps": Attr("float")},
        region=trailing,
        weights=(1, 2),
        inplace=(0,),
        strided=(0,),
        cost=lambda inputs, output, attrs: row_cost(
            8, {"ABS": 2, "ADD": 1}, range(-attrs["dims"], 0), inputs
        ),
    ),
    OpDef(
        name="RMS_NORM",
        doc="x / sqrt(mean(x^2) + eps) over the last `dims` dims, times the optional weight.",
        inputs=(1, 2),
        infer=_infer_rms_norm,
        evaluate=_rms_norm,
        attrs={"dims": Attr("int"), "eps": Attr("float")},
        region=trailing,
        weights=(1,),
        inplace=(0,),
        strided=(0,),
        cost=lambda inputs, output, attrs: row_cost(
            4, {"ABS": 1, "ADD": 1}, range(-attrs["dims"], 0), inputs
        ),
    ),
)
