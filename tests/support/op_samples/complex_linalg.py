"""Samples of the ops in ``ops/complex_linalg.py``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from op_samples import cumulative, decompositions, linalg, reduce
from op_samples.sample import Sample
from taper_runtime.ops.complex_linalg import OPS, PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def _samples(reals: Callable[[], Iterable[Sample]]) -> Iterator[Sample]:
    """Yield the samples of the op on reals, the first made Hermitian where it was symmetric."""
    rng = np.random.default_rng(7)
    for sample in reals():
        arrays = [np.asarray(x) for x in sample.inputs]
        if any(x.dtype not in (np.float32, np.float64) for x in arrays):
            continue
        parts = [rng.standard_normal(x.shape).astype(x.dtype) / 9 for x in arrays]
        first = arrays[0]
        if first.ndim > 1 and np.array_equal(first, np.swapaxes(first, -1, -2)):
            parts[0] = parts[0] - np.swapaxes(parts[0], -1, -2)
        pairs = [np.stack(pair, axis=-1) for pair in zip(arrays, parts, strict=True)]
        yield Sample(pairs, sample.attrs, native=False)


_OF_REALS = {
    **linalg.SAMPLES,
    **decompositions.SAMPLES,
    **reduce.SAMPLES,
    **cumulative.SAMPLES,
    "EIG": linalg.samples_square,
}

SAMPLES = {
    "EIG": linalg.samples_square,
    **{
        op.name: partial(_samples, _OF_REALS[op.name.removeprefix(PREFIX)])
        for op in OPS
        if op.name.startswith(PREFIX)
    },
}
