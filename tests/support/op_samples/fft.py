"""Samples of the ops in ``ops/fft.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from op_samples.sample import Sample

if TYPE_CHECKING:
    from collections.abc import Iterator

_LENGTHS = (1, 2, 3, 4, 5, 8, 12, 15, 16, 21, 30, 31, 37, 49, 64, 74, 100, 144)


def _given(*shape: int) -> list[np.ndarray]:
    rng = np.random.default_rng(sum(shape))
    return [rng.standard_normal(shape).astype(np.float32)]


def _samples_fft() -> Iterator[Sample]:
    for n in _LENGTHS:
        yield Sample(_given(3, n, 2), {"axis": 1})
    for shape, axis in (((2, 6, 5, 2), 1), ((37, 19, 2), 0), ((256, 2), 0)):
        yield Sample(_given(*shape), {"axis": axis, "inverse": True, "norm": "length"})
    yield Sample(_given(2, 8, 2), {"axis": 1, "norm": "root"})
    yield Sample(_given(0, 8, 2), {"axis": 1})
    yield Sample([np.ones((2, 6, 2))], {"axis": 1}, native=False)


def _samples_rfft() -> Iterator[Sample]:
    for n in _LENGTHS:
        yield Sample(_given(19, n), {"axis": 1})
    for shape, axis, norm in (
        ((2, 6, 5), 1, "length"),
        ((37, 19), 0, "root"),
        ((512,), 0, "length"),
        ((3, 22), 1, "root"),
    ):
        yield Sample(_given(*shape), {"axis": axis, "norm": norm})
    yield Sample([np.ones((2, 7))], {"axis": 1}, native=False)


def _samples_irfft() -> Iterator[Sample]:
    for n in _LENGTHS:
        yield Sample(_given(19, n // 2 + 1, 2), {"axis": 1, "size": n})
    for n, shape, axis, norm in (
        (6, (2, 4, 5, 2), 1, "length"),
        (37, (19, 19, 2), 0, "root"),
        (512, (257, 2), 0, "length"),
    ):
        yield Sample(_given(*shape), {"axis": axis, "size": n, "norm": norm})
    yield Sample([np.ones((2, 4, 2))], {"axis": 1, "size": 7}, native=False)


SAMPLES = {
    "FFT": _samples_fft,
    "RFFT": _samples_rfft,
    "IRFFT": _samples_irfft,
}
