"""Samples of the ops in ``ops/pool.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from op_samples.sample import Sample
from taper_runtime.ops.type_rules import REALS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taper_runtime.ops.opdef import Shape


def _sampled() -> Iterator[tuple[np.ndarray, dict[str, Any]]]:
    rng = np.random.default_rng(13)
    cases: list[tuple[Shape, Shape, dict[str, Any]]] = [
        ((2, 9, 5), (3,), {"stride": [2]}),
        ((2, 9, 8, 35), (3, 3), {"stride": [2, 2], "padding": [1, 1, 1, 1]}),
        ((1, 7, 7, 64), (2, 2), {"stride": [2, 2]}),
        ((1, 7, 6, 3), (3, 2), {"padding": [1, 2, 0, 1]}),
        ((1, 4, 5, 6, 3), (2, 3, 2), {"stride": [2, 1, 2], "padding": [1, 0, 1, 1, 0, 1]}),
        ((1, 7, 7, 1), (7, 7), {}),
        ((2, 8, 15, 131), (7, 6), {"stride": [1, 5], "padding": [1, 0, 2, 1]}),
        ((0, 5, 5, 3), (3, 3), {}),
        ((2, 5, 5, 0), (3, 3), {}),
    ]
    for shape, kernel, given in cases:
        n = len(kernel)
        plain = {"kernel": list(kernel), "stride": [1] * n, "padding": [0] * 2 * n}
        yield np.asarray(rng.standard_normal(shape), np.float32), plain | given
    x = np.asarray(rng.standard_normal((1, 5, 5, 4)), np.float32)
    x[0, 1, 2, :3] = [np.nan, np.inf, -np.inf]
    x[0, 3:, 3:] = -np.inf
    yield x, {"kernel": [3, 3], "stride": [1, 1], "padding": [1, 1, 1, 1]}


def _samples_max() -> Iterator[Sample]:
    for x, attrs in _sampled():
        ones = [1] * len(attrs["kernel"])
        yield Sample([x], attrs | {"dilation": ones})
    x = np.arange(2 * 9 * 8 * 3).reshape(2, 9, 8, 3) * 37 % 101
    dilated = {"kernel": [3, 2], "stride": [1, 2], "padding": [1, 1, 0, 1], "dilation": [2, 3]}
    for dtype in REALS:
        offset = 0 if dtype == "uint8" else -50
        native = dtype in ("float32", "float64", "int64", "int32", "uint8")
        yield Sample([np.asarray(x + offset, dtype)], dilated, native)
    x = np.array([[[-np.inf], [2.0], [np.nan], [0.5], [-np.inf], [-np.inf]]])
    attrs = {"kernel": [2], "stride": [1], "padding": [1, 0], "dilation": [1]}
    yield Sample([x], attrs)


def _samples_avg() -> Iterator[Sample]:
    for x, attrs in _sampled():
        n = len(attrs["padding"])
        yield Sample([x], attrs | {"counted": attrs["padding"]})
        yield Sample([x], attrs | {"counted": [0] * n})
        yield Sample([x], attrs | {"counted": [0] * n, "divisor": -5})
    x = np.linspace(-1, 1, 2 * 8 * 3).reshape(2, 8, 3)
    some = {"kernel": [3], "stride": [2], "padding": [1, 2], "counted": [1, 1]}
    yield Sample([x.astype(np.float32)], some)
    yield Sample([x], some, native=False)


def _samples_adaptive() -> Iterator[Sample]:
    rng = np.random.default_rng(14)
    cases: list[tuple[Shape, Shape]] = [
        ((2, 7, 3), (3,)),
        ((1, 7, 5, 4), (3, 9)),
        ((1, 4, 5, 6, 2), (2, 5, 4)),
        ((0, 3, 2), (2,)),
        ((1, 3, 2), (0,)),
        ((2, 25, 13, 150), (3, 2)),  # large windows of many channels
        ((1, 70, 131), (2,)),
    ]
    for shape, sizes in cases:
        x = np.asarray(rng.standard_normal(shape), np.float32)
        yield Sample([x], {"sizes": list(sizes)})
    x = np.array([[[1], [np.nan], [3], [np.inf], [-np.inf]]], np.float32)
    yield Sample([x], {"sizes": [3]})
    yield Sample([np.linspace(-1, 1, 20).reshape(1, 5, 4)], {"sizes": [3]}, native=False)


SAMPLES = {
    "MAX_POOL": _samples_max,
    "ARGMAX_POOL": _samples_max,
    "AVG_POOL": _samples_avg,
    "ADAPTIVE_MAX_POOL": _samples_adaptive,
    "ADAPTIVE_AVG_POOL": _samples_adaptive,
}
