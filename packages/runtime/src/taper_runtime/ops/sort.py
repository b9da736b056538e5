"""Define ARGSORT; a GATHER by it sorts, and its first positions are the largest few."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.ops.opdef import ALL_INPUTS, Attr, Attrs, OpDef, TensorType
from taper_runtime.ops.region import along
from taper_runtime.ops.type_rules import COMPUTED, check_axis, check_dtype, fail, replace

if TYPE_CHECKING:
    from collections.abc import Sequence


def _infer(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    dtype, shape, _ = inputs[0]
    check_dtype("ARGSORT", "x", dtype, COMPUTED)
    axis, count = check_axis("ARGSORT", attrs["axis"], len(shape)), attrs["count"]
    if count == -1:
        return TensorType("int64", shape)
    if not 0 <= count <= shape[axis]:
        fail("ARGSORT", f"a count of -1 or in [0, {shape[axis]}]", count)
    return TensorType("int64", replace(shape, axis, count))


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, axis = inputs[0], attrs["axis"]
    if attrs["descending"]:
        # The result is reversed, so the input is reversed too: then equal elements keep their
        # order.
        ascending = np.argsort(np.flip(x, axis), axis, kind="stable")
        order = x.shape[axis] - 1 - np.flip(ascending, axis)
    else:
        order = np.argsort(x, axis, kind="stable")
    if attrs["count"] != -1:
        order = order[(slice(None),) * axis + (slice(attrs["count"]),)]
    return np.asarray(order, np.int64, order="C")


ARGSORT = OpDef(
    name="ARGSORT",
    doc="The places in x of its elements sorted along an axis; only the first `count` of them "
    "unless it is -1. Equal elements keep their order; NaN is larger than any number.",
    inputs=(1, 1),
    infer=_infer,
    evaluate=_evaluate,
    attrs={
        "axis": Attr("int", role="axis"),
        "descending": Attr("bool", False),
        "count": Attr("int", -1, sized=True),
    },
    region=along("axis"),
    strided=(ALL_INPUTS,),
)

OPS = (ARGSORT,)
