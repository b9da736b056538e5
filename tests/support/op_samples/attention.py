"""Samples of the ops in ``ops/attention.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from op_samples.sample import Sample
from taper_runtime.ops.convert import to_bfloat16

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taper_runtime.ops.opdef import Shape


def _samples() -> Iterator[Sample]:
    rng = np.random.default_rng(2)

    def qkv(b: int, h: int, hkv: int, lq: int, lk: int, d: int, dv: int) -> list[np.ndarray]:
        shapes = ((b, h, lq, d), (b, hkv, lk, d), (b, hkv, lk, dv))
        return [np.asarray(rng.standard_normal(shape), np.float32) for shape in shapes]

    base: dict[str, Any] = {"scale": 0.25}
    causal = {**base, "causal": True}
    yield Sample(qkv(2, 3, 3, 5, 7, 8, 8), base)
    yield Sample([x[:, 0].copy() for x in qkv(2, 3, 3, 5, 7, 8, 6)], base)
    yield Sample([x[:, 0].copy() for x in qkv(2, 3, 3, 5, 5, 8, 6)], causal)
    yield Sample(qkv(1, 4, 2, 6, 6, 9, 5), causal)
    yield Sample(qkv(1, 2, 2, 4, 9, 8, 8), {**causal, "diagonal": 5})
    yield Sample(qkv(1, 2, 2, 9, 4, 8, 8), causal)
    # The first three queries attend nothing.
    yield Sample(qkv(1, 2, 1, 9, 4, 8, 8), {**causal, "diagonal": -3})
    yield Sample(qkv(1, 2, 1, 9, 4, 8, 8), {**causal, "diagonal": -3, "safe_softmax": False})
    yield Sample(qkv(2, 4, 4, 5, 7, 8, 8), {**base, "transpose_output": True})
    for shape in ((2, 4, 4, 5, 0, 8, 8), (0, 4, 4, 5, 3, 8, 8), (2, 4, 2, 0, 3, 8, 8)):
        yield Sample(qkv(*shape), base)
        yield Sample(qkv(*shape), {**base, "safe_softmax": False, "transpose_output": True})
    yield Sample(qkv(1, 2, 2, 5, 7, 0, 8), base)
    yield Sample(qkv(1, 2, 2, 5, 7, 8, 0), base)
    yield Sample(qkv(1, 2, 2, 70, 300, 32, 32), {"scale": 0.2})
    masks: tuple[Shape, ...] = ((5, 7), (7,), (), (2, 1, 1, 7), (1, 3, 5, 7))
    for mask_shape in masks:
        keep = np.asarray(rng.random(mask_shape) < 0.7)
        yield Sample([*qkv(2, 3, 3, 5, 7, 8, 8), keep], base)
        mask = np.where(keep, 0, -1e4).astype(np.float32)
        yield Sample([*qkv(2, 3, 3, 5, 7, 8, 8), mask], {**causal, "diagonal": 4})
    for narrow in (np.float16, to_bfloat16):
        for shape in ((2, 6, 3, 5, 40, 9, 8), (2, 6, 3, 1, 300, 16, 5), (1, 2, 2, 40, 70, 32, 32)):
            q, k, v = qkv(*shape)
            stored = [x.astype(narrow) if narrow is np.float16 else to_bfloat16(x) for x in (k, v)]
            keep = np.asarray(rng.random((shape[3], shape[4])) < 0.7)
            yield Sample([q, *stored, keep], base)
    for shape in ((2, 6, 3, 5, 40, 9, 8), (2, 6, 3, 1, 300, 64, 5), (1, 2, 2, 40, 70, 32, 32)):
        q, *floats = qkv(*shape)
        largest = [np.abs(x).max(-1, keepdims=True) for x in floats]
        scales = [(x / 127).astype(np.float32) for x in largest]
        stored = [np.rint(x / s).astype(np.int8) for x, s in zip(floats, scales, strict=True)]
        keep = np.asarray(rng.random((shape[3], shape[4])) < 0.7)
        yield Sample([q, *stored, keep, *scales], base)
    masked = np.ones((5, 7), np.bool_)
    masked[2] = False
    for safe in (True, False):
        attrs = {**base, "safe_softmax": safe}
        yield Sample([*qkv(1, 1, 1, 5, 7, 8, 8), masked], attrs)
        additive = np.where(masked, 0, -np.inf).astype(np.float32)
        yield Sample([*qkv(1, 2, 1, 5, 7, 8, 8), additive], attrs)
    yield Sample([x.astype(np.float64) for x in qkv(1, 2, 2, 5, 7, 8, 8)], base, native=False)


SAMPLES = {
    "ATTENTION": _samples,
}
