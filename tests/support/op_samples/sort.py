"""Samples of the ops in ``ops/sort.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from op_samples.sample import Sample
from taper_runtime.ops.type_rules import COMPUTED, FLOATS

if TYPE_CHECKING:
    from collections.abc import Iterator


def _samples() -> Iterator[Sample]:
    rng = np.random.default_rng(16)
    arrays = [rng.integers(0, 4, (3, 9)).astype(dtype) for dtype in COMPUTED]
    arrays += [np.asarray(rng.integers(-9, 9, (2, 70)) << 40), -np.ones((2, 3), np.int8)]
    special = np.array([[2, np.nan, -np.inf], [np.inf, 0, -np.nan], [-0.0, 0, 1]])
    arrays += [special, special.astype(np.float32), np.ones((0, 3), np.float32)]
    arrays += [np.asarray(rng.standard_normal((2, 5000)), dtype) for dtype in FLOATS]
    for x in arrays:
        for axis in range(2):
            for descending in (False, True):
                attrs = {"axis": axis, "descending": descending}
                yield Sample([x], attrs)
                yield Sample([x], {**attrs, "count": min(2, x.shape[axis])})
    falling = np.arange(5000, 0, -1, dtype=np.float32) // 2  # each before those kept
    yield Sample([falling], {"axis": 0, "count": 90})
    yield Sample([falling], {"axis": 0, "count": 0})


SAMPLES = {
    "ARGSORT": _samples,
}
