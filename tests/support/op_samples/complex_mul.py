"""Samples of the ops in ``ops/complex_mul.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from op_samples.sample import Sample
from taper_runtime.ops.type_rules import FLOATS

if TYPE_CHECKING:
    from collections.abc import Iterator


def _samples() -> Iterator[Sample]:
    rng = np.random.default_rng(0)
    for a, b in (
        ((5,), (5,)),
        ((2, 3, 4, 37), (3, 1, 37)),
        ((2, 3, 1), (1, 3, 33)),
        ((), (6,)),
        ((4, 1, 3), (1, 5, 1)),
        ((2, 0), (2, 1)),
        ((1,), (1,)),
    ):
        for dtype in FLOATS:
            arrays = [np.asarray(rng.standard_normal((*shape, 2)), dtype) for shape in (a, b)]
            yield Sample(arrays, native=dtype == "float32")


SAMPLES = {
    "COMPLEX_MUL": _samples,
}
