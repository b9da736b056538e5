"""Samples of the ops in ``ops/scatter.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from op_samples.sample import Sample
from taper_runtime.ops.scatter import _COMBINE
from taper_runtime.ops.type_rules import (
    COMPUTED,
    replace,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def _samples() -> Iterator[Sample]:
    rng = np.random.default_rng(14)
    for dtype in COMPUTED:
        x = (rng.standard_normal((4, 5)) * 9).astype(dtype)
        for axis, size in enumerate(x.shape):
            # Each place is written once: which of several would stay is not defined.
            once = [rng.permutation(size)[:3] - size for _ in range(3)]
            index = np.stack(once, axis=1 - axis)
            src = (rng.standard_normal((3, 3)) * 9).astype(dtype)
            yield Sample([x, index, src], {"axis": axis})
            index = np.asarray(rng.integers(-size, size, (3, 3)), np.int32)
            for reduce in _COMBINE:
                attrs = {"axis": axis, "reduce": reduce}
                yield Sample([x, index, src], attrs)
                yield Sample([x, index % size, src], attrs | {"wrap": False})
    flags = rng.random((4, 5)) < 0.5
    index = np.zeros((4, 5), np.int64)
    yield Sample([flags, index[:0], flags[:0]], {"axis": 0})
    narrow = flags.astype(np.float16)
    yield Sample([narrow, np.zeros((4, 1), np.int64), narrow[:, :1].copy()], {"axis": 1})
    yield from _samples_of_rows(rng)


def _samples_of_rows(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield rows sent to the same places, one index for all columns; and special shapes."""

    def floats(*shape: int) -> np.ndarray:
        return np.asarray(rng.standard_normal(shape), np.float32)

    for shape, count, axis in (((9, 40), 70, 0), ((3, 6, 5, 4), 11, 1), ((70000,), 90, 0)):
        spot = (*shape[:axis], count, *shape[axis + 1 :])
        one = rng.integers(0, shape[axis], (count, *[1] * (len(shape) - axis - 1)))
        for reduce in _COMBINE:
            attrs = {"axis": axis, "reduce": reduce}
            index = np.array(np.broadcast_to(one, spot), order="C")
            yield Sample([floats(*shape), index, floats(*spot)], attrs)
    special = np.array([np.nan, np.inf, -np.inf, 1, 0, 2], np.float32)
    for reduce in _COMBINE:
        places = np.array([1, 1, 2, 0, 3, 3])
        yield Sample([np.ones(5, np.float32), places, special], {"axis": 0, "reduce": reduce})
    for x, spot, axis in (((0, 3), (0, 3), 0), ((3, 0), (7, 0), 0), ((3, 4), (3, 0), 1)):
        arrays = [floats(*x), np.zeros(spot, np.int64), floats(*spot)]
        yield Sample(arrays, {"axis": axis, "reduce": "sum"})
    narrow = rng.integers(0, 2, (2, 4, 2))
    yield Sample([floats(3, 2, 5), narrow, floats(2, 4, 2)], {"axis": 1, "reduce": "sum"})


def _samples_write() -> Iterator[Sample]:
    rng = np.random.default_rng(15)
    for dtype in (np.float32, np.int64, np.bool_, np.float16):
        for shape, axis in (
            ((6,), 0),
            ((4, 5), 0),
            ((4, 5), 1),
            ((2, 6, 3), 1),
            ((1, 3, 40, 4), 2),
        ):
            x = (rng.standard_normal(shape) * 9).astype(dtype)
            for count, kind in ((0, np.int64), (1, np.int32), (3, np.int64), (9, np.int64)):
                src = (rng.standard_normal(replace(shape, axis, count)) * 9).astype(dtype)
                places = np.asarray(rng.integers(-shape[axis], shape[axis], count), kind)
                yield Sample([x, places, src], {"axis": axis})
                yield Sample([x, places % shape[axis], src], {"axis": axis, "wrap": False})
    x = np.asarray(rng.standard_normal((4, 5, 2)), np.float32)
    for spot in ((), (2, 3), (3, 0), (2, 1, 2)):
        for axis in (0, 1):
            places = np.asarray(rng.integers(0, x.shape[axis], spot))
            src = rng.standard_normal(replace(x.shape, axis, *spot)).astype(np.float32)
            yield Sample([x, places, src], {"axis": axis})
    empty = np.ones((0, 3), np.float32)
    yield Sample([empty, np.zeros(0, np.int64), empty], {"axis": 0})
    yield Sample([empty, np.zeros(2, np.int64), empty[:, :2].copy()], {"axis": 1})


SAMPLES = {
    "WRITE": _samples_write,
    "SCATTER": _samples,
}
