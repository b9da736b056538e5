"""Samples of the ops in ``ops/quant.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from op_samples.sample import Sample
from taper_runtime.ops.convert import cast
from taper_runtime.ops.quant import SCALES
from taper_runtime.ops.type_rules import FLOATS, INTS

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The shapes of x and of its scales: per tensor, channel and token, groups of 2 and of 3.
_SHAPES = [((5,), ()), ((2, 3, 4), (3, 1)), ((3, 4), (3, 1)), ((3, 8), (3, 4)), ((6, 4), (2, 2))]


def _quantize_samples() -> Iterator[Sample]:
    rng = np.random.default_rng(61)
    for shape, scales in _SHAPES:
        for dtype in FLOATS:
            x = (rng.standard_normal(shape) * 40).astype(dtype)
            scale = np.asarray(rng.uniform(0.1, 1, scales)).astype(dtype)
            zero = np.asarray(rng.integers(-9, 9, scales)).astype(np.int8)
            attrs = {"dtype": "int8", "low": -128, "high": 127}
            yield Sample([x, scale], attrs, native=False)
            yield Sample([x, scale, zero], attrs, native=False)
            yield Sample([x, scale, zero], {**attrs, "shift_first": True}, native=False)
    for dtype in INTS:
        x = np.array([-3, 0.5, 1.5, 2.5, 100, -0.0], np.float32)  # halves go to the even
        attrs = {"dtype": dtype, "low": 0, "high": 15}
        yield Sample([x, np.float32(1).reshape(()), np.int64(1).reshape(())], attrs, native=False)


def _dequantize_samples() -> Iterator[Sample]:
    rng = np.random.default_rng(62)
    for shape, scales in _SHAPES:
        for dtype in SCALES:
            x = rng.integers(-128, 128, shape).astype(np.int8)
            scale = cast(np.asarray(rng.uniform(0.1, 1, scales)), dtype)
            zero = np.asarray(rng.integers(-9, 9, scales)).astype(np.int32)
            yield Sample([x, scale], {"dtype": dtype}, native=False)
            yield Sample([x, scale, zero], native=False)
    for dtype in INTS:
        x = rng.integers(0, 100, (2, 4)).astype(dtype)
        scale, zero = np.array([[0.5], [0.25]], np.float32), np.array([[3], [0]], np.uint8)
        yield Sample([x, scale, zero], {"dtype": "float16"}, native=False)


SAMPLES = {
    "QUANTIZE": _quantize_samples,
    "DEQUANTIZE": _dequantize_samples,
}
