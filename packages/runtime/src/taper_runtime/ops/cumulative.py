"""Define running sums, products and extremes along an axis; floats are computed in float64."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.ops.opdef import Attr, Attrs, OpDef, TensorType
from taper_runtime.ops.region import along
from taper_runtime.ops.type_rules import COMPUTED, FLOATS, REALS, check_axis, check_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_runtime.ops.opdef import Evaluate


def _infer(
    op: str, dtypes: Sequence[str], inputs: Sequence[TensorType], attrs: Attrs
) -> TensorType:
    check_dtype(op, "x", inputs[0].dtype, dtypes)
    check_axis(op, attrs["axis"], len(inputs[0].shape))
    return inputs[0]


def _infer_places(op: str, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    return TensorType("int64", _infer(op, COMPUTED, inputs, attrs).shape)


def _accumulate(function: np.ufunc, inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    (x,) = inputs
    dtype = np.result_type(x, np.float64) if x.dtype.kind in "fc" else x.dtype
    with np.errstate(all="ignore"):
        result = function.accumulate(x, attrs["axis"], dtype)
        return np.asarray(result, x.dtype, order="C")


def _log_sum(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    """Return the running log of sums of exponentials.

    Complex numbers, which np.logaddexp does not accept, are added step by step.
    """
    (x,) = inputs
    if x.dtype.kind == "f":
        return _accumulate(np.logaddexp, inputs, attrs)
    out = np.moveaxis(x.astype(np.complex128), attrs["axis"], 0)
    with np.errstate(all="ignore"):
        for i in range(1, len(out)):
            before, now = out[i - 1], out[i]
            is_larger = now.real > before.real
            large, small = np.where(is_larger, now, before), np.where(is_larger, before, now)
            added = large + np.log1p(np.exp(small - large))
            out[i] = np.where(large.real == -np.inf, large, added)
    return np.asarray(np.moveaxis(out, 0, attrs["axis"]), x.dtype, order="C")


def _extreme(op: str, inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x = np.moveaxis(inputs[0], attrs["axis"], 0)
    out = np.zeros(x.shape, np.int64)
    best = x[:1].copy()
    where = np.zeros(best.shape, np.int64)
    for i in range(1, len(x)):
        better = x[i] >= best if op == "CUMARGMAX" else x[i] <= best
        better |= x[i] != x[i]  # from the first NaN on, the position of the last NaN
        best = np.where(better, x[i], best)
        where = np.where(better, i, where)
        out[i] = where[0]
    return np.asarray(np.moveaxis(out, 0, attrs["axis"]), order="C")


def _extreme_value(op: str, inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    places = _extreme(op, inputs, attrs)
    if not places.size:
        return inputs[0].copy()
    return np.asarray(np.take_along_axis(inputs[0], places, attrs["axis"]), order="C")


def _define(op: str, doc: str, evaluate: Evaluate, dtypes: Sequence[str]) -> OpDef:
    return OpDef(
        name=op,
        doc=f"{doc} along an axis.",
        inputs=(1, 1),
        infer=partial(_infer, op, dtypes),
        evaluate=evaluate,
        attrs={"axis": Attr("int", role="axis")},
        region=along("axis"),
    )


def _define_extreme(op: str, places: str, which: str) -> OpDef:
    return OpDef(
        name=op,
        doc=f"The {which} element so far along an axis: the last of equal ones. From the first NaN "
        "on it is NaN.",
        inputs=(1, 1),
        infer=partial(_infer, op, COMPUTED),
        evaluate=partial(_extreme_value, places),
        attrs={"axis": Attr("int", role="axis")},
        region=along("axis"),
    )


def _define_extreme_place(op: str, which: str) -> OpDef:
    return OpDef(
        name=op,
        doc=f"The index of the {which} element so far along an axis: the last of equal ones.",
        inputs=(1, 1),
        infer=partial(_infer_places, op),
        evaluate=partial(_extreme, op),
        attrs={"axis": Attr("int", role="axis")},
        region=along("axis"),
    )


OPS = (
    _define("CUMSUM", "Running sum", partial(_accumulate, np.add), REALS),
    _define("CUMPROD", "Running product", partial(_accumulate, np.multiply), REALS),
    _define("LOGCUMSUMEXP", "Logarithm of the running sum of exponentials", _log_sum, FLOATS),
    _define_extreme("CUMMAX", "CUMARGMAX", "largest"),
    _define_extreme("CUMMIN", "CUMARGMIN", "smallest"),
    _define_extreme_place("CUMARGMAX", "largest"),
    _define_extreme_place("CUMARGMIN", "smallest"),
)
