"""Samples of the ops in ``ops/nms.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from op_samples.sample import Sample
from taper_runtime.ops.type_rules import FLOATS

if TYPE_CHECKING:
    from collections.abc import Iterator


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


SAMPLES = {
    "NMS": _samples,
}
