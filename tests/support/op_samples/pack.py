"""Samples of the ops in ``ops/pack.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import blocks_of
from op_samples.sample import Sample
from taper_runtime.formats import family

if TYPE_CHECKING:
    from collections.abc import Iterator


def _arrays() -> Iterator[tuple[np.ndarray, str]]:
    rng = np.random.default_rng(5)
    for format, shape in (
        ("plain", (2, 3)),
        ("panels.0", (20, 3)),
        ("panels.1", (3, 20)),
        ("grouped_panels.2", (3, 3, 2, 40)),
        ("winograd.2", (3, 3, 4, 18)),
        ("winograd.4", (3, 3, 4, 18)),
    ):
        yield np.asarray(rng.standard_normal(shape), np.float32), format


def _samples_pack() -> Iterator[Sample]:
    rng = np.random.default_rng(6)
    for array, format in _arrays():
        yield Sample([array], {"format": format}, native=False)
    for format in family("blocks").examples:
        operands = blocks_of.draw(format, rng, 256)
        yield Sample(operands, {"format": format}, native=False)


def _samples_unpack() -> Iterator[Sample]:
    rng = np.random.default_rng(7)
    for array, format in _arrays():
        yield Sample([array], native=False, formats={0: format})
    for format in family("blocks").examples:
        array = np.asarray(rng.integers(-2, 2, (256, 20)) / 8, np.float32)
        yield Sample([array], native=False, formats={0: format})


SAMPLES = {
    "PACK": _samples_pack,
    "UNPACK": _samples_unpack,
}
