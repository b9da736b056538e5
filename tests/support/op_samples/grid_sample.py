"""Samples of the op in ``ops/grid_sample.py``."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from op_samples.sample import Sample
from taper_runtime.ops.grid_sample import PADDINGS, TAPS

if TYPE_CHECKING:
    from collections.abc import Iterator


def _samples() -> Iterator[Sample]:
    rng = np.random.default_rng(33)
    shapes = (
        ((2, 5, 6, 3), (4, 7)),
        ((1, 1, 4, 20), (9, 1)),
        ((2, 3, 4, 5, 2), (2, 3, 3)),
        ((1, 3, 2, 0), (2, 2)),
        ((0, 3, 2, 4), (2, 2)),
        ((1, 12, 9, 17), (10, 13)),
        *(((1, 6, 5, channels), (5, 14)) for channels in (1, 6, 9)),
    )
    ways = itertools.product(shapes, TAPS, PADDINGS, (False, True))
    for (shape, out), mode, padding, align_corners in ways:
        if mode == "cubic" and len(out) == 3:
            continue
        x = np.asarray(rng.standard_normal(shape), np.float32)
        grid = np.asarray(rng.uniform(-1.7, 1.7, (shape[0], *out, len(out))), np.float32)
        attrs = {"mode": mode, "padding": padding, "align_corners": align_corners}
        yield Sample([x, grid], attrs)
        if len(out) == 2 and shape[1:] in ((5, 6, 3), (12, 9, 17), (6, 5, 1)):
            x = np.ascontiguousarray(np.moveaxis(x, -1, 1))
            yield Sample([x, grid], {**attrs, "channels_first": True})
    wide = rng.standard_normal((1, 3, 4, 2)), rng.uniform(-1, 1, (1, 2, 2, 2))
    yield Sample([*wide], {"mode": "linear", "padding": "zeros"}, native=False)


SAMPLES = {
    "GRID_SAMPLE": _samples,
}
