"""Samples of the ops in ``ops/elementwise.py``."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from op_samples.sample import Sample
from taper_runtime.ops.elementwise import DIVISIONS, MICROOPS
from taper_runtime.ops.type_rules import FLOATS, INTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taper_runtime.ops.opdef import Shape

#: Ranges of floats that are not -3 to 3: what the function is defined on.
_RANGES = {
    "SQRT": (0.0, 3.0),
    "RSQRT": (0.1, 3.0),
    "RECIPROCAL": (0.1, 3.0),
    "LOG": (0.01, 3.0),
    "LOG2": (0.01, 3.0),
    "LOG10": (0.01, 3.0),
    "LOG1P": (-0.9, 3.0),
    "TAN": (-1.4, 1.4),
    "ASIN": (-1.0, 1.0),
    "ACOS": (-1.0, 1.0),
    "ACOSH": (1.0, 9.0),
    "ATANH": (-0.9, 0.9),
    "POW": (0.1, 3.0),
}

#: Shapes of the operands of one sample.
_SHAPES: list[tuple[Shape, Shape, Shape]] = [
    ((3, 5), (5,), (3, 1)),
    ((), (), ()),
    ((7,), (7,), (7,)),
    ((2, 1, 4), (3, 1), ()),
    ((2, 1, 3, 1, 2, 3), (4, 1, 2, 1, 3), (3,)),
    ((0, 3), (1, 3), (3,)),
    ((3, 700), (3, 1), (700,)),
]


_SPECIAL_FLOATS = [0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 1e-40, 3.4e38, 0.5, 2.5, -7.0]


def _values(rng: np.random.Generator, op: str, shape: Shape, dtype: str) -> np.ndarray:
    if dtype == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    if dtype in INTS:
        return np.asarray(rng.integers(0 if dtype == "uint8" else -6, 7, shape), dtype)
    return np.asarray(rng.uniform(*_RANGES.get(op, (-3.0, 3.0)), shape), dtype)


def _special_values(dtype: str) -> list[Any]:
    if dtype in FLOATS:
        return _SPECIAL_FLOATS
    limits = np.iinfo(dtype)
    return [0, 1, *(() if dtype == "uint8" else (-1,)), 2, 7, limits.min, limits.max]


def _samples(op: str) -> Iterator[Sample]:
    micro = MICROOPS[op]
    rng = np.random.default_rng(len(op))
    conditions = 1 if micro.arity == 3 else 0
    for dtype in micro.dtypes:
        dtypes = ["bool"] * conditions + [dtype] * (micro.arity - conditions)
        for shapes in _SHAPES:
            arrays = [_values(rng, op, s, d) for s, d in zip(shapes, dtypes, strict=False)]
            yield Sample(arrays)
            for index in range(micro.arity) if micro.arity > 1 else ():
                scalar = _values(rng, op, (), dtypes[index]).item()
                others = arrays[:index] + arrays[index + 1 :]
                yield Sample(others, {"scalar": scalar, "scalar_index": index})
        if dtype != "bool":
            pairs = itertools.product(_special_values(dtype), repeat=micro.arity - conditions)
            arrays = [np.array(column, dtype) for column in zip(*pairs, strict=True)]
            yield Sample([np.arange(arrays[0].size) % 3 == 0] * conditions + arrays)
    if op in DIVISIONS:
        for dtype in micro.dtypes:
            yield from _samples_of_divisors(rng, op, dtype)
    if op == "MUL":
        for factors in ((3, 1), (1,)):
            arrays = [_values(rng, op, shape, "float32") for shape in ((3, 20), factors)]
            yield Sample(arrays, formats={0: "panels.1"})
        special = np.array([[np.nan], [np.inf], [-0.0]], np.float32)
        x = _values(rng, op, (3, 20), "float32")
        yield Sample([x, special], formats={0: "panels.1"})


def _samples_of_divisors(rng: np.random.Generator, op: str, dtype: str) -> Iterator[Sample]:
    """Yield divisions whose divisor is checked, and is not 0 but where nothing is divided."""
    attrs = {"by_zero": False}
    for first, second, _ in _SHAPES:
        a, b = (_values(rng, op, shape, dtype) for shape in (first, second))
        b = np.where(b == 0, b.dtype.type(5), b)
        for dividend, divisor in ((a, b), (b, np.where(a == 0, a.dtype.type(1), a))):
            yield Sample([dividend, divisor], attrs)
        yield Sample([a], {**attrs, "scalar": 3, "scalar_index": 1})
    nothing = [np.zeros((0, 2), dtype), np.zeros((1, 2), dtype)]
    yield Sample(nothing, attrs)


SAMPLES = {op: partial(_samples, op) for op in MICROOPS}
