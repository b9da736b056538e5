"""Samples of the ops in ``ops/shape.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from op_samples.sample import Sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taper_runtime.ops.opdef import (
        Shape,
    )


def _arrays(*shapes: Shape) -> Iterator[np.ndarray]:
    """Yield an array per shape and element size; of integers every byte differs."""
    rng = np.random.default_rng(8)
    for dtype in (np.float32, np.int64, np.bool_, np.int16):
        for shape in shapes:
            if dtype is np.bool_:
                yield np.asarray(rng.random(shape) < 0.5)
            else:
                bits = rng.integers(-(2**62), 2**62, shape)
                yield np.asarray(bits).astype(dtype)


def _samples_reshape() -> Iterator[Sample]:
    for x in _arrays((2, 3, 4)):
        for shape in ((6, 4), (24,), (2, 1, 12), (4, 3, 2), (2, 3, 1, 2, 2, 1)):
            yield Sample([x], {"shape": shape})
    yield Sample([np.ones((), np.float32)], {"shape": (1, 1)})
    yield Sample([np.ones((1,), np.float32)], {"shape": ()})
    yield Sample([np.ones((0, 3), np.float32)], {"shape": (3, 0, 2)})


def _samples_transpose() -> Iterator[Sample]:
    for x in _arrays((3, 5), (2, 3, 4), (2, 3, 4, 5), (33, 70), (2, 1, 2, 3, 2, 3)):
        yield Sample([x], {"axis0": 0, "axis1": x.ndim - 1})
        yield Sample([x], {"axis0": x.ndim - 1, "axis1": x.ndim - 2})
    yield Sample([np.ones((3, 0, 2), np.float32)], {"axis0": 0, "axis1": 1})
    yield Sample([np.ones((3,), np.float32)], {"axis0": 0, "axis1": 0})


def _samples_permute() -> Iterator[Sample]:
    for x in _arrays((2, 3, 4), (2, 3, 4, 5, 2), (5, 1, 3)):
        axes = list(range(x.ndim))
        for permuted in (axes, axes[::-1], axes[1:] + axes[:1]):
            yield Sample([x], {"axes": permuted})
    yield Sample([np.ones((0, 3), np.float32)], {"axes": (1, 0)})
    yield Sample([np.ones((), np.float32)], {"axes": ()})


def _samples_slice() -> Iterator[Sample]:
    for x in _arrays((7,), (5, 6), (2, 5, 7)):
        for axis, size in enumerate(x.shape):
            yield Sample([x], {"axis": axis, "start": 1, "stop": size})
            yield Sample([x], {"axis": axis, "start": 0, "stop": size, "step": 3})
            yield Sample([x], {"axis": axis, "start": size - 1, "stop": size, "step": 2**40})
            yield Sample([x], {"axis": axis, "start": size, "stop": size})


def _samples_expand() -> Iterator[Sample]:
    for x in _arrays((3, 1), (1, 4), (1, 1)):
        yield Sample([x], {"shape": (max(x.shape[0], 3), max(x.shape[1], 4))})
        yield Sample([x], {"shape": (2, *x.shape)})
        yield Sample([x], {"shape": (2, 1, x.shape[0], max(x.shape[1], 4))})
    yield Sample([np.ones((), np.float32)], {"shape": (2, 3)})
    yield Sample([np.ones((1,), np.float32)], {"shape": (0,)})
    yield Sample([np.ones((0, 1), np.float32)], {"shape": (3, 0, 2)})


def _samples_flip() -> Iterator[Sample]:
    for x in _arrays((5,), (3, 4), (2, 3, 5), (1, 3)):
        yield Sample([x], {"axes": (0,)})
        yield Sample([x], {"axes": tuple(range(x.ndim))})
        yield Sample([x], {"axes": (x.ndim - 1,)})
    yield Sample([np.ones((3, 0), np.float32)], {"axes": (0, 1)})
    yield Sample([np.ones((), np.float32)], {"axes": ()})


def _samples_copy() -> Iterator[Sample]:
    for x in _arrays((), (3, 4), (0, 2), (4, 3, 5)):
        yield Sample([x])


def _samples_cat() -> Iterator[Sample]:
    for x in _arrays((3, 4), (2, 3, 5)):
        for axis in range(x.ndim):
            yield Sample([x, x.take([0], axis), x], {"axis": axis})
            yield Sample([x, x.take([], axis)], {"axis": axis})
    yield Sample([np.ones((2, 2), np.float32)], {"axis": 0})
    many = [np.full((2, i % 3), i, np.float32) for i in range(90)]  # a detector's classes
    yield Sample(many, {"axis": 1})


def _samples_pad() -> Iterator[Sample]:
    for mode in ("reflect", "replicate", "circular"):
        for x in _arrays((7,), (4, 5), (2, 3, 4, 5), (2, 3, 5, 4, 3)):
            last = x.ndim - 1
            yield Sample([x], {"axes": (last,), "low": (2,), "high": (1,), "mode": mode})
            if x.ndim > 1:
                widths = {"low": (1, 0), "high": (2, 2), "mode": mode}
                yield Sample([x], {"axes": (last - 1, last), **widths})
                yield Sample([x], {"axes": (0,), "low": (0,), "high": (1,), "mode": mode})
            if x.ndim > 3:
                widths = {"low": (2, 1, 2), "high": (0, 2, 1), "mode": mode}
                yield Sample([x], {"axes": (1, 2, 3), **widths})
        empty = np.ones((2, 0, 3), np.float32)
        yield Sample([empty], {"axes": (2,), "low": (1,), "high": (2,), "mode": mode})
        yield Sample([np.ones((), np.float32)], {"axes": (), "low": (), "high": (), "mode": mode})


SAMPLES = {
    "RESHAPE": _samples_reshape,
    "TRANSPOSE": _samples_transpose,
    "PERMUTE": _samples_permute,
    "SLICE": _samples_slice,
    "EXPAND": _samples_expand,
    "FLIP": _samples_flip,
    "COPY": _samples_copy,
    "CAT": _samples_cat,
    "PAD": _samples_pad,
}
