"""Define SEARCHSORTED: find positions in sorted rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from taper_runtime.ops.opdef import Attr, Attrs, OpDef, TensorType
from taper_runtime.ops.region import WHOLE, Region, Same
from taper_runtime.ops.type_rules import COMPUTED, check_dtype, check_same_dtype, fail

if TYPE_CHECKING:
    from collections.abc import Sequence


def _infer(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    rows, values = inputs
    check_dtype("SEARCHSORTED", "rows", check_same_dtype("SEARCHSORTED", inputs), COMPUTED)
    if not rows.shape or (len(rows.shape) > 1 and rows.shape[:-1] != values.shape[:-1]):
        fail("SEARCHSORTED", "one row, or one per row of values", [rows.shape, values.shape])
    return TensorType("int64", values.shape)


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    rows, values = inputs
    side: Literal["left", "right"] = "right" if attrs["right"] else "left"
    if rows.ndim == 1:
        return np.asarray(np.searchsorted(rows, values, side), np.int64)
    out = np.empty(values.shape, np.int64)
    for place in np.ndindex(rows.shape[:-1]):
        out[place] = np.searchsorted(rows[place], values[place], side)
    return out


def _region(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> list[Region]:
    rows, values = (tuple(map(Same, range(len(t.shape)))) for t in inputs)
    return [(*rows[:-1], WHOLE), values]


SEARCHSORTED = OpDef(
    name="SEARCHSORTED",
    doc="The number of elements of a sorted row that are smaller than each value; with `right`, "
    "smaller or equal. There is one row [N] for all values, or rows [..., N] for values [..., "
    "M].",
    inputs=(2, 2),
    infer=_infer,
    evaluate=_evaluate,
    region=_region,
    attrs={"right": Attr("bool", False)},
)

OPS = (SEARCHSORTED,)
