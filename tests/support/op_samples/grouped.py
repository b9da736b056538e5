"""Samples of the ops in ``ops/grouped.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from op_samples.sample import Sample

if TYPE_CHECKING:
    from collections.abc import Iterator


def _samples() -> Iterator[Sample]:
    rng = np.random.default_rng(2)

    def floats(*shape: int) -> np.ndarray:
        return np.asarray(rng.standard_normal(shape), np.float32)

    for m, k, n, ends in (
        (9, 20, 33, [2, 2, 9]),
        (40, 7, 5, [40]),
        (6, 12, 16, [1, 3, 4, 6]),
        (8, 5, 40, [3, 6]),  # rows beyond the last end are 0
        (4, 0, 3, [1, 4]),
        (0, 3, 4, [0, 0]),
        (3, 4, 0, [1, 3]),
    ):
        b = floats(len(ends), k, n)
        yield Sample([floats(m, k), b, np.array(ends, np.int32)])
        yield Sample([floats(m, k), b, np.array(ends)])
    yield Sample([np.ones((2, 3)), np.ones((1, 3, 2)), np.array([2])], native=False)


SAMPLES = {
    "GROUPED_MATMUL": _samples,
}
