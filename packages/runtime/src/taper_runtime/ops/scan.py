"""Scans that only numpy computes; CUMSUM and CUMPROD are with the reductions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.ops.opdef import ALL_INPUTS, Attr, Attrs, OpDef, Sample, TensorType
from taper_runtime.ops.rules import COMPUTED, FLOATS, check_axis, check_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def _infer_sum(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_dtype("LOGCUMSUMEXP", "x", inputs[0].dtype, FLOATS)
    check_axis("LOGCUMSUMEXP", attrs["axis"], len(inputs[0].shape))
    return inputs[0]


def _sum(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x = inputs[0]
    with np.errstate(all="ignore"):
        result = np.logaddexp.accumulate(x.astype(np.float64), attrs["axis"])
        return np.asarray(result, x.dtype, order="C")


def _infer_extreme(op: str, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    dtype, shape = inputs[0]
    check_dtype(op, "x", dtype, COMPUTED)
    check_axis(op, attrs["axis"], len(shape))
    return TensorType("int64", shape)


def _extreme(op: str, inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x = np.moveaxis(inputs[0], attrs["axis"], 0)
    out = np.zeros(x.shape, np.int64)
    best = x[:1].copy()
    where = np.zeros(best.shape, np.int64)
    for i in range(1, len(x)):
        better = x[i] >= best if op == "CUMARGMAX" else x[i] <= best
        better |= x[i] != x[i]  # from the first NaN on, the last NaN
        best = np.where(better, x[i], best)
        where = np.where(better, i, where)
        out[i] = where[0]
    return np.asarray(np.moveaxis(out, 0, attrs["axis"]), order="C")


def _samples(dtypes: Sequence[str]) -> Iterator[Sample]:
    rng = np.random.default_rng(19)
    for dtype in dtypes:
        for shape in ((5,), (3, 7), (2, 3, 4), (0, 3), (3, 0)):
            for axis in range(len(shape)):
                x = np.asarray(abs(rng.standard_normal(shape) * 3), dtype)
                yield Sample([x], {"axis": axis}, native=False)
    special = [[1, np.nan, 3, np.nan], [-np.inf, np.inf, 0, 1], [-np.inf, -np.inf, 0, 0]]
    yield Sample([np.array(special, np.float32)], {"axis": 1}, native=False)


def _define_extreme(op: str, which: str) -> OpDef:
    return OpDef(
        name=op,
        doc=f"Where the {which} element up to each place of an axis is: the last of equals.",
        inputs=(1, 1),
        infer=partial(_infer_extreme, op),
        evaluate=partial(_extreme, op),
        samples=partial(_samples, ("float32", "int64", "bool")),
        attrs={"axis": Attr("int")},
        strided=(ALL_INPUTS,),
        native=False,
    )


OPS = (
    OpDef(
        name="LOGCUMSUMEXP",
        doc="Logarithm of the running sum of exponentials along an axis.",
        inputs=(1, 1),
        infer=_infer_sum,
        evaluate=_sum,
        samples=partial(_samples, FLOATS),
        attrs={"axis": Attr("int")},
        strided=(ALL_INPUTS,),
        native=False,
    ),
    _define_extreme("CUMARGMAX", "largest"),
    _define_extreme("CUMARGMIN", "smallest"),
)
