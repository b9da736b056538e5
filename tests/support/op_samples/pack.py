"""Samples of the ops in ``ops/pack.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from op_samples.sample import Sample
from taper_runtime.formats import family
from taper_runtime.ops.convert import cast

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
        _, _, size, scales, shift = format.split(".")
        parameters = 64 // int(size), 20
        factors, offsets = (
            cast(rng.uniform(0.5, 2, parameters).astype(np.float32), scales) for _ in range(2)
        )
        zeros = rng.integers(-8, 8, parameters).astype(np.int8)
        shifts = {"symmetric": [], "zeros": [zeros], "offsets": [offsets]}[shift]
        q = rng.integers(-8, 8, (64, 20)).astype(np.int8)
        yield Sample([q, factors, *shifts], {"format": format}, native=False)


def _samples_unpack() -> Iterator[Sample]:
    rng = np.random.default_rng(7)
    for array, format in _arrays():
        yield Sample([array], native=False, formats={0: format})
    for format in family("blocks").examples:
        array = np.asarray(rng.integers(-6, 7, (64, 20)) / 8, np.float32)
        yield Sample([array], native=False, formats={0: format})


SAMPLES = {
    "PACK": _samples_pack,
    "UNPACK": _samples_unpack,
}
