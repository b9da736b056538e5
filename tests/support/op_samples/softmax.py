"""Samples of the ops in ``ops/softmax.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from op_samples.sample import Sample

if TYPE_CHECKING:
    from collections.abc import Iterator


def _samples_softmax() -> Iterator[Sample]:
    rng = np.random.default_rng(3)
    for shape in ((5,), (3, 7), (2, 3, 33), (2, 0, 3), (1, 1000), (2, 1, 2, 3, 1, 2)):
        x = np.asarray(rng.standard_normal(shape) * 4, np.float32)
        for axis in range(len(shape)):
            yield Sample([x], {"axis": axis})
            yield Sample([x], {"axis": axis, "log": True})
    special = [[1, -np.inf, 2], [-np.inf] * 3, [np.nan, 0, 1], [np.inf, 0, 1], [90, 89, -90]]
    for log in (False, True):
        yield Sample([np.array(special, np.float32)], {"axis": 1, "log": log})
    yield Sample([np.array(special[4:], np.float64)], {"axis": 1}, native=False)
    yield Sample([rng.standard_normal((2, 3))], {"axis": 1}, native=False)


SAMPLES = {"SOFTMAX": _samples_softmax}
