"""Samples of the ops in ``ops/gather.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from op_samples.sample import Sample
from taper_runtime.formats import family
from taper_runtime.ops.gather import _MODES
from taper_runtime.ops.type_rules import (
    replace,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taper_runtime.ops.opdef import Shape


def _tables(*shapes: Shape) -> Iterator[np.ndarray]:
    """Yield an array per shape and element size."""
    rng = np.random.default_rng(9)
    for dtype in (np.float32, np.int64, np.int32, np.bool_, np.int16):
        for shape in shapes:
            yield np.asarray(rng.standard_normal(shape) * 99).astype(dtype)


def _samples_embedding() -> Iterator[Sample]:
    rng = np.random.default_rng(10)
    for weight in _tables((7, 5), (7,), (7, 2, 3), (3, 0)):
        for shape in ((), (4,), (2, 3), (0,)):
            for dtype in (np.int64, np.int32):
                yield Sample([weight, np.asarray(rng.integers(0, len(weight), shape), dtype)])
    yield Sample([np.ones((0, 3), np.float32), np.ones((2, 0), np.int64)])
    for table in _tables((1, 3), (16, 1), (37, 5), (20, 0)):
        for shape in ((), (2, 3), (0,)):
            indices = np.asarray(rng.integers(0, len(table), shape), np.int64)
            yield Sample([table, indices], formats={0: "panels.0"})


def _samples_embedding_bag() -> Iterator[Sample]:
    rng = np.random.default_rng(13)
    counts = ((0, 3, 1, 9), (5,), (4, 4, 0), (0, 0), ())
    for dtype, of_index in (("float32", "int64"), ("float64", "int32")):
        for cols in (1, 5, 37, 0):
            table = np.asarray(rng.standard_normal((7, cols)), dtype)
            for sizes in counts:
                ends = np.cumsum(sizes, dtype=of_index)
                indices = np.asarray(rng.integers(0, 7, sum(sizes)), of_index)
                inputs = [table, indices, np.append([0], ends[:-1])[: len(sizes)].astype(of_index)]
                for mode in _MODES:
                    yield Sample(inputs, {"mode": mode, "padding": int(rng.integers(-1, 7))})
                weights = np.asarray(rng.standard_normal(indices.size), dtype)
                yield Sample([*inputs, weights], {"mode": "sum", "padding": 3})
    odd = np.array([[np.nan, -np.inf, -0.0], [1, -np.inf, 0.0]], np.float32)
    for mode in _MODES:
        yield Sample([odd, np.array([0, 1, 1, 1]), np.array([0, 2])], {"mode": mode})


def _samples_index_select() -> Iterator[Sample]:
    rng = np.random.default_rng(11)
    for x in _tables((4, 5, 3), (6,)):
        for axis, size in enumerate(x.shape):
            for shape in ((), (6,), (2, 2), (0,)):
                for dtype in (np.int64, np.int32):
                    index = np.asarray(rng.integers(-size, size, shape), dtype)
                    yield Sample([x, index], {"axis": axis})
                    inside = np.asarray(index % size)
                    yield Sample([x, inside], {"axis": axis, "wrap": False})
    yield Sample([np.ones((2, 0), np.float32), np.ones((0,), np.int64)], {"axis": 1})
    columns = np.array([[69, -70], [15, 16]])
    for format in family("blocks").examples:
        levels = np.asarray(rng.integers(-2, 2, (512, 70)) / 8, np.float32)
        yield Sample([levels, columns], {"axis": 1}, formats={0: format})
        inside = np.asarray(columns % 70, np.int32)
        yield Sample([levels, inside], {"axis": 1, "wrap": False}, formats={0: format})
    rows = {"formats": {0: format}, "native": False}
    yield Sample([levels, np.array([3])], {"axis": 0}, **rows)


def _samples_gather() -> Iterator[Sample]:
    rng = np.random.default_rng(12)
    for x in _tables((4, 5, 3), (6,)):
        for axis, size in enumerate(x.shape):
            for more in (0, 4):
                shape = replace(tuple(n - 1 for n in x.shape), axis, size + more)
                for dtype in (np.int64, np.int32):
                    index = np.asarray(rng.integers(-size, size, shape), dtype)
                    yield Sample([x, index], {"axis": axis})
                    inside = np.asarray(index % size)
                    yield Sample([x, inside], {"axis": axis, "wrap": False})
    yield Sample([np.ones((0, 3), np.float32), np.ones((0, 3), np.int64)], {"axis": 0})
    yield Sample([np.ones((2, 3), np.float32), np.ones((2, 0), np.int64)], {"axis": 1})


SAMPLES = {
    "EMBEDDING": _samples_embedding,
    "EMBEDDING_BAG": _samples_embedding_bag,
    "INDEX_SELECT": _samples_index_select,
    "GATHER": _samples_gather,
}
