"""Samples of the ops in ``ops/resample.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from op_samples.sample import Sample
from taper_runtime.ops.resample import MODES, NEAREST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taper_runtime.ops.opdef import Shape


def _samples() -> Iterator[Sample]:
    rng = np.random.default_rng(15)
    shapes: tuple[tuple[Shape, int, int], ...] = (
        ((2, 5, 3, 20), 1, 10),
        ((2, 5, 3, 20), 2, 7),
        ((1, 9, 33), 1, 4),
        ((3, 7), 1, 12),
        ((3, 7), 1, 7),
        ((6, 1, 2), 1, 3),
        ((6, 4, 2), 1, 1),
        ((0, 3, 2), 1, 5),
        ((2, 31, 5), 1, 3),
    )
    for mode in MODES:
        for shape, axis, size in shapes:
            x = np.asarray(rng.standard_normal(shape), np.float32)
            attrs = {"axis": axis, "size": size, "mode": mode}
            yield Sample([x], attrs)
            if size != shape[axis]:  # torch then ignores the scale in some modes, not in others
                yield Sample([x], attrs | {"scale": 1.7})
            if mode not in NEAREST:
                yield Sample([x], attrs | {"align_corners": True})
    special = np.array([[1, np.nan, 2, np.inf, 3, 4, -np.inf, 5]], np.float32)
    for mode in (*NEAREST, "linear"):
        yield Sample([special], {"axis": 1, "size": 11, "mode": mode})
    wide = rng.standard_normal((2, 5))
    yield Sample([wide], {"axis": 1, "size": 8, "mode": "cubic"}, native=False)
    whole = np.arange(6, dtype=np.uint8).reshape(2, 3)
    yield Sample([whole], {"axis": 1, "size": 5, "mode": "nearest"}, native=False)


SAMPLES = {
    "RESAMPLE": _samples,
}
