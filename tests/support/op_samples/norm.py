"""Samples of the ops in ``ops/norm.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from op_samples.sample import Sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taper_runtime.ops.opdef import Shape


#: Shape of x, and how many dims are normalised.
_NORMALISED: list[tuple[Shape, int]] = [
    ((4, 33), 1),
    ((2, 3, 16), 1),
    ((2, 3, 5), 2),
    ((7,), 1),
    ((3, 1000), 1),
    ((2, 1, 2, 2, 1, 3), 3),
    ((0, 4), 1),
    ((4, 0), 1),
    ((5, 1), 1),
]


def _samples_norm() -> Iterator[tuple[np.ndarray, list[np.ndarray], int, bool]]:
    """x, weight and bias, dims, and whether it is native."""
    rng = np.random.default_rng(4)
    for shape, dims in _NORMALISED:
        x, *parameters = (
            np.asarray(rng.standard_normal(s), np.float32) for s in (shape, *2 * [shape[-dims:]])
        )
        yield x, parameters, dims, True
    # A mean far from zero: the variance must not be computed by cancellation.
    far = np.asarray(rng.standard_normal((3, 64)) + 1e4, np.float32)
    yield far, [np.ones(64, np.float32), np.zeros(64, np.float32)], 1, True
    special = np.array([[1, np.nan, 2], [np.inf, 0, 1], [0, 0, 0], [1e30, 1e30, -1e30]], np.float32)
    yield special[:3], [np.ones(3, np.float32), np.zeros(3, np.float32)], 1, True
    yield rng.standard_normal((2, 3)), [np.ones(3), np.zeros(3)], 1, False


#: Elements whose deviation, or its reciprocal, no normal float32 is; the eps beside them.
_BEYOND_FLOATS = [
    (np.array([[1, -2, 3]], np.float32), 1e308),
    (np.array([[1e-3, -2e30, 3e38]], np.float32), 1e-6),
    (np.array([[3e-42, -2e-44, 1e-45]], np.float32), 0.0),
]


def _samples_beyond_floats() -> Iterator[tuple[list[np.ndarray], float]]:
    """x and weight, eps."""
    for x, eps in _BEYOND_FLOATS:
        for weight in ([2, 0.5, -1], [np.inf, -np.inf, 3e38]):
            yield [x, np.array(weight, np.float32)], eps


def _samples_layer_norm() -> Iterator[Sample]:
    for x, (weight, bias), dims, native in _samples_norm():
        base = {"dims": dims, "eps": 1e-5}
        for parameters in ((weight, bias), (weight,), (None, bias), ()):
            yield Sample([x, *parameters], base, native)
    for inputs, eps in _samples_beyond_floats():
        yield Sample(inputs, {"dims": 1, "eps": eps})


def _samples_rms_norm() -> Iterator[Sample]:
    for x, (weight, _), dims, native in _samples_norm():
        yield Sample([x, weight], {"dims": dims, "eps": 1e-6}, native)
        yield Sample([x], {"dims": dims, "eps": 1e-6}, native)
    for inputs, eps in _samples_beyond_floats():
        yield Sample(inputs, {"dims": 1, "eps": eps})


SAMPLES = {
    "LAYER_NORM": _samples_layer_norm,
    "RMS_NORM": _samples_rms_norm,
}
