"""NMS: which of boxes that overlap are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.ops.opdef import Attr, Attrs, Cost, OpDef, Sample, TensorType
from taper_runtime.ops.rules import FLOATS, check_dtype, fail

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FLOPS = 14  # of a pair of boxes


def _infer(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    (boxes,) = inputs
    check_dtype("NMS", "boxes", boxes.dtype, FLOATS)
    if len(boxes.shape) != 2 or boxes.shape[1] != 4:
        fail("NMS", "boxes [N, 4]", boxes.shape)
    return TensorType("bool", boxes.shape[:1])


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
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


def _samples() -> Iterator[Sample]:
    rng = np.random.default_rng(41)
    for dtype in FLOATS:
        for count in (0, 1, 7, 60):
            corner = rng.random((count, 2))
            boxes = np.concatenate([corner, corner + rng.random((count, 2))], -1).astype(dtype)
            for threshold in (0.0, 0.3, 1.0):
                yield Sample([boxes], {"iou_threshold": threshold}, native=dtype == "float32")
    same = np.tile(np.array([0, 0, 2, 1], np.float32), (5, 1))
    yield Sample([same], {"iou_threshold": 0.5})
    yield Sample([np.zeros((5, 4), np.float32)], {"iou_threshold": 0.5})  # they cover nothing


NMS = OpDef(
    name="NMS",
    doc="Which of boxes [N, 4], as (x1, y1, x2, y2) and the best first, are kept: those with "
    "which no kept one before shares more than iou_threshold of what both cover.",
    inputs=(1, 1),
    infer=_infer,
    evaluate=_evaluate,
    samples=_samples,
    cost=_cost,
    attrs={"iou_threshold": Attr("float")},
)

OPS = (NMS,)
