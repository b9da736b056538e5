"""Samples of the ops in ``ops/decompositions.py``."""

from __future__ import annotations

from functools import partial

from op_samples.linalg import (
    samples_any,
    samples_square,
)
from taper_runtime.ops.decompositions import QR_MODES

SAMPLES = {
    "QR": partial(samples_any, [{"mode": mode} for mode in QR_MODES]),
    "SVD": partial(samples_any, [{}, {"vectors": False}, {"full": True}]),
    "EIGH": partial(samples_square, vectors=(True, False), upper=(False, True)),
    "LU": partial(samples_any, [{}]),
}
