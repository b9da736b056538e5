"""Samples of the ops in ``ops/matmul.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from op_samples.sample import Sample
from taper_runtime.formats import family
from taper_runtime.ops.convert import to_bfloat16

if TYPE_CHECKING:
    from collections.abc import Iterator


def _samples() -> Iterator[Sample]:
    rng = np.random.default_rng(1)

    def floats(*shape: int) -> np.ndarray:
        return np.asarray(rng.standard_normal(shape), np.float32)

    for a, b in (
        ((5, 7), (7, 9)),
        ((1, 64), (64, 33)),
        ((7,), (7,)),
        ((7,), (7, 3)),
        ((7,), (2, 7, 3)),
        ((2, 4, 7), (7,)),
        ((2, 3, 4, 5), (5, 6)),
        ((2, 1, 4, 5), (3, 5, 6)),
        ((4, 5), (3, 2, 5, 6)),
        ((2, 1, 1, 1, 3, 4), (1, 2, 1, 2, 4, 5)),
        ((17, 40), (40, 50)),
        ((3, 0), (0, 4)),
        ((0, 3), (3, 4)),
        ((2, 3), (3, 0)),
        ((0, 2, 3), (1, 3, 2)),
    ):
        yield Sample([floats(*a), floats(*b)])
    yield Sample([floats(5, 7), floats(9, 7)], {"transpose_b": True, "alpha": 0.125})
    yield Sample([floats(2, 3, 5, 7), floats(2, 3, 9, 7)], {"transpose_b": True})
    yield Sample([floats(7), floats(3, 9, 7)], {"transpose_b": True})
    packed, transposed = {1: "panels.1"}, {1: "panels.0"}
    for m, k, n in ((1, 20, 33), (6, 20, 33), (13, 5, 16), (3, 0, 5), (0, 4, 5), (2, 3, 0)):
        yield Sample([floats(m, k), floats(k, n)], formats=packed)
        yield Sample([floats(m, k), floats(n, k)], {"transpose_b": True}, formats=transposed)
    yield Sample([floats(7), floats(7, 20)], {"alpha": -2}, formats=packed)
    for m, k, n in ((1, 20, 70), (1, 0, 5), (20, 30, 70)):
        bytes_ = rng.integers(-2, 3, (k, n), np.int8)
        for narrow in (floats(k, n).astype(np.float16), to_bfloat16(floats(k, n)), bytes_):
            yield Sample([floats(m, k), narrow], formats=packed)
        rounded = {"activation_dtype": "bfloat16"}
        yield Sample([floats(m, k), to_bfloat16(floats(k, n))], rounded, formats=packed)
        rounded = {**rounded, "transpose_b": True, "alpha": 0.5}
        yield Sample([floats(m, k), to_bfloat16(floats(n, k))], rounded, formats=transposed)
    for format in family("blocks").examples:
        for m, n in ((1, 70), (3, 5), (20, 70)):
            levels = np.asarray(rng.integers(-2, 2, (512, n)) / 8, np.float32)
            yield Sample([floats(m, 512), levels], formats={1: format})
            if format.split(".")[1] in ("4", "8", "u4"):
                grouped = {"activation_group": {1: 8, 3: 32, 20: 256}[m]}
                yield Sample([floats(m, 512), levels], grouped, formats={1: format})
    # What is cut along the other axis no kernel reads.
    yield Sample([floats(3, 4), floats(4, 20)], native=False, formats=transposed)
    bias_gelu = {"code": ["ADD", "GELU"], "args": [0, 1, 2]}
    yield Sample([floats(2, 5, 7), floats(7, 9), floats(9)], bias_gelu)
    yield Sample([floats(2, 0), floats(0, 9), floats(9)], bias_gelu)
    operands = [floats(2, 5, 7), floats(7, 9), floats(9), floats(2, 5, 9)]
    bias_residual = {"code": ["ADD", "ADD"], "args": [0, 1, 3, 2]}
    yield Sample(operands, bias_residual, formats=packed)
    # A residual of the output's shape is no bias; neither is a column.
    yield Sample([floats(9, 7), floats(7, 9), floats(9, 9)], {"code": ["ADD"], "args": [0, 1]})
    yield Sample([floats(9, 7), floats(7, 9), floats(9, 1)], {"code": ["ADD"], "args": [0, 1]})
    clamp = {"code": ["MUL", "MAXIMUM"], "args": [-1, 0, 1, -2], "scalars": [2.0, 0.5]}
    yield Sample([floats(4, 7), floats(7, 5)], {**clamp, "alpha": 0.5})
    special = np.array([[1, np.nan], [np.inf, 1], [0, 0]], np.float32)
    yield Sample([special, floats(2, 3)])
    for dtype in ("int64", "int32"):
        limits = np.iinfo(dtype)

        def integers(*shape: int, dtype: str = dtype, limits: np.iinfo = limits) -> np.ndarray:
            return np.asarray(rng.integers(limits.min, limits.max, shape), dtype)

        for left, right in (
            ((3, 4), (4, 5)),
            ((7,), (7,)),
            ((7,), (2, 7, 3)),
            ((2, 4, 7), (7,)),
            ((2, 1, 4, 5), (3, 5, 6)),
            ((0, 3), (3, 4)),
            ((3, 0), (0, 4)),
            ((33, 300), (300, 140)),
        ):
            yield Sample([integers(*left), integers(*right)])
        yield Sample([integers(2, 5, 7), integers(9, 7)], {"transpose_b": True})
        bias = {"code": ["ADD"], "args": [0, 1]}
        yield Sample([integers(3, 4), integers(4, 5), integers(5)], bias)
    yield Sample([np.ones((3, 4), np.int8), np.ones((4, 5), np.int8)], native=False)
    yield from _of_bytes(rng)
    yield Sample([floats(3, 4).astype(np.float64), np.ones(4)], {"alpha": 0.1})
    infinite = np.ones((9, 5))
    infinite[-1] = np.inf  # in the last of a number of rows that is not one of whole vectors
    yield Sample([np.ones((3, 9)), infinite])
    for a, b in (((2, 9, 5), (5, 21)), ((33, 300), (300, 140)), ((3, 9), (9, 5)), ((3, 0), (0, 4))):
        doubles = [floats(*shape).astype(np.float64) for shape in (a, b, b[-1:])]
        yield Sample(doubles, bias | {"alpha": 0.5})
        yield Sample([doubles[0], np.array(doubles[1].T, order="C")], {"transpose_b": True})


def _of_bytes(rng: np.random.Generator) -> Iterator[Sample]:
    """Yield products of bytes with sums in int32, and requantized."""
    attrs = {"accumulate": "int32"}
    requantize = {
        **attrs,
        "code": ["CAST:float32", "MUL", "ROUND", "MAXIMUM", "MINIMUM", "CAST:int8"],
        "args": [0, 2, 1, 3, 4, -1, 5, -2, 6],
        "scalars": [-128.0, 127.0],
    }
    for dtype in ("int8", "uint8"):
        limits = np.iinfo(dtype)

        def left(*shape: int, dtype: str = dtype, limits: np.iinfo = limits) -> np.ndarray:
            return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)

        def right(*shape: int) -> np.ndarray:
            return rng.integers(-128, 127, shape, np.int8, endpoint=True)

        for a, b in (
            ((3, 20), (20, 33)),
            ((7,), (7, 3)),
            ((2, 4, 7), (7,)),
            ((2, 1, 4, 5), (3, 5, 6)),
        ):
            yield Sample([left(*a), right(*b)], attrs)
        yield Sample([left(2, 5, 7), right(9, 7)], {**attrs, "transpose_b": True})
        for m, k, n in ((1, 20, 33), (13, 5, 16), (3, 0, 5), (0, 4, 5), (2, 3, 0), (70, 300, 200)):
            yield Sample([left(m, k), right(k, n)], attrs, formats={1: "dots.1"})
        scales = np.asarray(rng.uniform(0, 0.1, 33), np.float32)
        for formats in ({}, {1: "dots.1"}):
            inputs = [left(5, 20), right(20, 33), scales]
            yield Sample(inputs, requantize, formats=formats)
        yield Sample([left(3, 4), left(4, 5).astype(np.uint8)], attrs, native=False)


SAMPLES = {
    "MATMUL": _samples,
}
