"""Samples of the ops in ``ops/nonzero.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from op_samples.sample import Sample
from taper_runtime.ops.type_rules import REALS

if TYPE_CHECKING:
    from collections.abc import Iterator


def _samples() -> Iterator[Sample]:
    rng = np.random.default_rng(31)
    masks = [rng.random(shape) < share for shape in ((3, 5, 7), (129,)) for share in (0.1, 0.6)]
    masks += [np.zeros((4, 9), np.bool_), np.ones((4, 9), np.bool_), np.ones((0, 3), np.bool_)]
    masks += [np.array(True), np.array(False)]
    for mask in masks:
        yield Sample([mask])
    for dtype in REALS:
        yield Sample([(masks[0] * 3).astype(dtype)])
    yield Sample([np.array([0.0, -0.0, np.nan, 1e-45, -1], np.float32)])


SAMPLES = {
    "NONZERO": _samples,
}
