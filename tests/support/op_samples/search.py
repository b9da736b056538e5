"""Samples of the ops in ``ops/search.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from op_samples.sample import Sample
from taper_runtime.ops.type_rules import REALS

if TYPE_CHECKING:
    from collections.abc import Iterator


def _samples() -> Iterator[Sample]:
    rng = np.random.default_rng(20)
    for dtype in REALS:
        row = np.sort(rng.integers(0, 9, 7).astype(dtype))
        rows = np.sort(rng.integers(0, 9, (2, 3, 5)).astype(dtype), -1)
        for right in (False, True):
            for shape in ((), (4,), (2, 3)):
                values = np.asarray(rng.integers(0, 10, shape)).astype(dtype)
                yield Sample([row, values], {"right": right})
            values = rng.integers(0, 10, (2, 3, 4)).astype(dtype)
            yield Sample([rows, values], {"right": right})
    special = np.array([np.nan, np.inf, -np.inf], np.float32)
    for right in (False, True):
        yield Sample([np.array([-1, 1, np.inf], np.float32), special], {"right": right})
    yield Sample([np.ones(0, np.float32), special])


SAMPLES = {
    "SEARCHSORTED": _samples,
}
