"""Define NMS: select boxes so that no two selected ones overlap too much."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.ops.opdef import Attr, Attrs, Cost, OpDef, TensorType
from taper_runtime.ops.type_rules import FLOATS, check_dtype, fail

if TYPE_CHECKING:
    from collections.abc import Sequence

_FLOPS = 14  # the overlap of a pair of boxes


def _infer(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    (boxes,) = inputs
    check_dtype("NMS", "boxes", boxes.dtype, FLOATS)
    if len(boxes.shape) != 2 or boxes.shape[1] != 4:
        fail("NMS", "boxes [N, 4]", boxes.shape)
    return TensorType("bool", boxes.shape[:1])


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    """Take the boxes by descending score, and drop those that overlap a box taken before."""
    boxes, threshold = inputs[0], float(attrs["iou_threshold"])
    start, end = boxes[:, :2], boxes[:, 2:]
    with np.errstate(all="ignore"):
        area = np.prod(end - start, -1)
        kept = np.ones(len(boxes), np.bool_)
        for i in range(len(boxes)):
            if not kept[i]:
                continue
            later = slice(i + 1, None)
            sides = np.minimum(end[i], end[later]) - np.maximum(start[i], start[later])
            shared = np.prod(np.maximum(sides, 0), -1, dtype=boxes.dtype)
            share = shared / (area[i] + area[later] - shared)
            kept[later] &= ~(share.astype(np.float64) > threshold)
    return kept


def _cost(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    count = output.size
    return Cost(_FLOPS * count * count // 2, inputs[0].nbytes + output.nbytes)


NMS = OpDef(
    name="NMS",
    doc="Non-maximum suppression: indicates which of boxes [N, 4], (x1, y1, x2, y2) with the best "
    "first, are kept: a box is kept unless its intersection over union with a kept box before "
    "it is above iou_threshold.",
    inputs=(1, 1),
    infer=_infer,
    evaluate=_evaluate,
    cost=_cost,
    attrs={"iou_threshold": Attr("float")},
)

OPS = (NMS,)
