"""ARGSORT; what is sorted itself is a GATHER by it, the largest few a SLICE of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.ops.opdef import ALL_INPUTS, Attr, Attrs, OpDef, Sample, TensorType
from taper_runtime.ops.rules import COMPUTED, check_axis, check_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def _infer(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    dtype, shape = inputs[0]
    check_dtype("ARGSORT", "x", dtype, COMPUTED)
    check_axis("ARGSORT", attrs["axis"], len(shape))
    return TensorType("int64", shape)


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, axis = inputs[0], attrs["axis"]
    if attrs["descending"]:
        # Read backwards, what is sorted must be reversed too, for equals to keep their order.
        ascending = np.argsort(np.flip(x, axis), axis, kind="stable")
        order = x.shape[axis] - 1 - np.flip(ascending, axis)
    else:
        order = np.argsort(x, axis, kind="stable")
    return np.asarray(order, np.int64, order="C")


def _samples() -> Iterator[Sample]:
    rng = np.random.default_rng(16)
    arrays = [
        rng.integers(0, 4, (3, 9)).astype(dtype)
        for dtype in (np.float32, np.int64, np.int32, np.bool_, np.uint8)
    ]
    special = [[2, np.nan, -np.inf], [np.inf, 0, np.nan], [-0.0, 0, 1]]
    for x in (*arrays, np.array(special, np.float32), np.ones((0, 3), np.float32)):
        for axis in range(2):
            yield Sample([x], {"axis": axis}, native=False)
            yield Sample([x], {"axis": axis, "descending": True}, native=False)


ARGSORT = OpDef(
    name="ARGSORT",
    doc="Where the elements of x, sorted along an axis, stood before. Equals keep their order; NaN "
    "is larger than any number.",
    inputs=(1, 1),
    infer=_infer,
    evaluate=_evaluate,
    samples=_samples,
    attrs={"axis": Attr("int"), "descending": Attr("bool", False)},
    strided=(ALL_INPUTS,),
    native=False,
)
