"""Samples of the op in ``ops/roi_align.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from op_samples.sample import Sample

if TYPE_CHECKING:
    from collections.abc import Iterator


def _samples() -> Iterator[Sample]:
    rng = np.random.default_rng(53)
    shapes = (
        ((2, 9, 12, 3), (2, 3), 4),
        ((1, 1, 5, 20), (1, 2), 3),
        ((3, 7, 2, 150), (3, 1), 2),
        ((2, 4, 6, 0), (2, 2), 2),
        ((2, 4, 6, 8), (2, 2), 0),
    )
    for shape, size, count in shapes:
        x = np.asarray(rng.standard_normal(shape), np.float32)
        ends = rng.uniform(-6, 26, (count, 4))  # some end before they start
        boxes = np.concatenate([rng.integers(0, shape[0], (count, 1)), ends], -1)
        for samples in (0, 1, 3):
            for aligned in (False, True):
                attrs = {"scale": 0.5, "size": size, "samples": samples, "aligned": aligned}
                yield Sample([x, boxes.astype(np.float32)], attrs)
    x, boxes = rng.standard_normal((1, 4, 5, 2)), np.array([[0.0, 1, 0, 3, 4]])
    yield Sample([x, boxes], {"scale": 1.0, "size": (2, 2)}, native=False)


SAMPLES = {
    "ROI_ALIGN": _samples,
}
