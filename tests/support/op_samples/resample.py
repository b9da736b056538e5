"""Samples of the ops in ``ops/resample.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from op_samples.sample import Sample
from taper_runtime.ops.opdef import TensorType
from taper_runtime.ops.resample import MODES, NEAREST, RESAMPLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taper_runtime.ops.opdef import Shape


def _attrs(mode: str, axes: Shape, sizes: Shape, scales: tuple[float, ...] = ()) -> dict[str, Any]:
    scales = scales or (0.0,) * len(axes)
    return {"axes": axes, "sizes": sizes, "mode": mode, "scales": scales}


def _part(x: np.ndarray, attrs: dict[str, Any], cuts: dict[int, tuple[int, int]]) -> Sample:
    """Return the sample that computes ranges of the output's axes from what they need of x."""
    types = [TensorType(x.dtype.name, x.shape)]
    whole = RESAMPLE.complete(attrs)
    part = RESAMPLE.part(types, RESAMPLE.infer_type(types, whole), whole, cuts)
    assert part is not None
    return Sample([x[tuple(slice(*cut) for cut in part.inputs[0])].copy()], part.attrs)


def _samples() -> Iterator[Sample]:
    rng = np.random.default_rng(15)
    shapes: tuple[tuple[Shape, Shape, Shape], ...] = (
        ((2, 5, 3, 20), (1,), (10,)),
        ((2, 5, 3, 20), (2,), (7,)),
        ((1, 9, 33), (1,), (4,)),
        ((3, 7), (1,), (12,)),
        ((3, 7), (1,), (7,)),
        ((6, 1, 2), (1,), (3,)),
        ((6, 4, 2), (1,), (1,)),
        ((0, 3, 2), (1,), (5,)),
        ((2, 31, 5), (1,), (3,)),
        ((2, 3, 9, 8), (2, 3), (18, 16)),
        ((2, 3, 9, 40), (2, 3), (4, 13)),
        ((1, 7, 5, 17), (1, 2), (15, 6)),
        ((1, 6, 11, 3), (1, 2), (4, 25)),
        ((1, 24, 31, 4), (1, 2), (9, 8)),
        ((5, 3, 6, 2), (0, 2), (8, 3)),
    )
    for mode in MODES:
        for shape, axes, sizes in shapes:
            x = np.asarray(rng.standard_normal(shape), np.float32)
            ways = [_attrs(mode, axes, sizes)]
            # an antialiasing kernel needs taps for each output, so scales end behind the last one
            scales = (2.3, 2.3) if mode.endswith("antialias") else (1.7, 0.4)
            if sizes[0] != shape[axes[0]]:  # torch then ignores the scale in some modes
                ways.append(_attrs(mode, axes, sizes, scales[: len(axes)]))
            if mode not in NEAREST:
                ways.append(_attrs(mode, axes, sizes) | {"align_corners": True})
            yield from (Sample([x], attrs) for attrs in ways)
            whole = rng.integers(0, 256, shape).astype(np.uint8)
            yield from (Sample([whole], attrs) for attrs in ways)
    for mode in ("nearest", "linear", "cubic"):
        for channels in (3, 20):
            image = np.asarray(rng.standard_normal((2, 9, 8, channels)), np.float32)
            attrs = _attrs(mode, (1, 2), (23, 17))
            yield _part(image, attrs, {1: (9, 15)})
            yield _part(image, attrs, {1: (0, 4), 2: (6, 17)})
            yield _part(rng.integers(0, 256, image.shape).astype(np.uint8), attrs, {1: (9, 15)})
    special = np.array([[1, np.nan, 2, np.inf, 3, 4, -np.inf, 5]], np.float32)
    for mode in (*NEAREST, "linear"):
        yield Sample([special], _attrs(mode, (1,), (11,)))
    for mode in ("linear-antialias", "cubic-antialias"):  # the scale leads past the infinite end
        yield Sample([special[:, :7]], _attrs(mode, (1,), (20,), (1.7,)), native=False)
    wide = rng.standard_normal((2, 5))
    yield Sample([wide], _attrs("cubic", (1,), (8,)), native=False)
    for dtype in (np.int16, np.int64, np.float64, np.bool_):
        yield Sample([(wide > 0).astype(dtype)], _attrs("nearest", (0, 1), (3, 9)))


SAMPLES = {
    "RESAMPLE": _samples,
}
