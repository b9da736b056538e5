"""Samples of the ops in ``ops/map.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from op_samples.sample import Sample
from taper_runtime.ops.map import MAX_INPUTS, MAX_INSTRUCTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator


def _samples() -> Iterator[Sample]:
    rng = np.random.default_rng(0)

    def floats(*shape: int) -> np.ndarray:
        return np.asarray(rng.standard_normal(shape), np.float32)

    bias_gelu = {"code": ["ADD", "GELU"], "args": [0, 1, 2]}
    for shapes in (
        ((4, 33), (33,)),
        ((2, 3, 5), (3, 1)),
        ((2, 1, 2, 1, 2, 3), (1, 2, 1, 3)),
        ((), ()),
        ((0, 5), (5,)),
        ((1,), (3, 600)),
    ):
        yield Sample([floats(*shape) for shape in shapes], bias_gelu)
    yield Sample([floats(9)], {"code": ["MUL", "ADD"], "args": [0, -1, 1, -2], "scalars": [2.0, 1]})
    reused: dict[str, Any] = {"code": ["MUL", "ADD", "TANH", "MUL"], "args": [0, 0, 1, 0, 2, 3, 1]}
    yield Sample([floats(700)], reused)
    yield Sample([floats(5, 70)], reused)
    ids = rng.integers(0, 5, (2, 6))
    mask = {"code": ["EQ", "CAST:float32", "SUB", "MUL"], "args": [0, -1, 1, -2, 2, 3, -3]}
    yield Sample([ids], {**mask, "scalars": [0, 1.0, -1e4]})
    select = {"code": ["LT", "WHERE"], "args": [0, 1, 2, 0, -1], "scalars": [0.0]}
    yield Sample([floats(4, 5), floats(4, 1)], select)
    # A result of fewer dims than the inputs', and an input nobody reads.
    yield Sample([floats(3, 4), floats(4)], {"code": ["NEG"], "args": [1]})
    most: dict[str, Any] = {"code": ["ADD"] * MAX_INSTRUCTIONS, "args": [0, 1]}
    for j in range(1, MAX_INSTRUCTIONS):
        most["args"] += [MAX_INPUTS + j - 1, j % MAX_INPUTS]
    yield Sample([floats(2, 3) for _ in range(MAX_INPUTS)], most)
    doubled = {"code": ["MUL", "SIN"], "args": [0, -1, 1], "scalars": [2.0]}
    yield Sample([np.linspace(-1, 1, 6)], doubled)
    refusing = {"code": ["ADD", "FLOOR_DIV:nonzero", "FMOD:nonzero"], "args": [0, -1, 2, 1, 3, -2]}
    for dtype in (np.int32, np.int64):
        divisors = rng.integers(1, 9, (3, 40)).astype(dtype)
        yield Sample([divisors.T.copy(), divisors[0, :1]], {**refusing, "scalars": [7, -5]})
    # A result of one element, in whose memory a later result may lie.
    scaled: dict[str, Any] = {"code": ["RECIPROCAL", "MUL", "ROUND", "CAST:float32", "ADD"]}
    scaled["args"] = [0, 1, 3, 4, 2, 5, 6]
    one = np.array(0.03, np.float32)
    for offset in (np.array(60), np.array([60, -3], np.int32).reshape(2, 1)):
        yield Sample([one, floats(2, 333), offset], scaled)
    yield Sample(
        [np.arange(600, dtype=np.uint8).reshape(2, 300)],
        {"code": ["CAST:float32", "SQRT"], "args": [0, 1]},
    )
    # What quantizes, with bounds on both sides of ROUND: all are one step of a kernel.
    numbers = np.concatenate([40 * floats(3, 333), [[-np.inf] * 4 + [np.inf] * 4] * 3], axis=1)
    numbers[0, :8] = [0.5, 1.5, -0.5, -2.5, 99.5, -99.5, 1e30, -1e30]
    for dtype, least, most, shift in (("int8", -128.0, 127.0, 7.0), ("uint8", 0.0, 255.0, 0.0)):
        quantize = {
            "code": ["RELU", "MINIMUM", "ROUND", "ADD", "MAXIMUM", "MINIMUM", f"CAST:{dtype}"],
            "args": [0, 1, -1, 2, 3, -2, 4, -3, 5, -4, 6],
            "scalars": [98.7, shift, least, most],
        }
        yield Sample([numbers.astype(np.float32)], quantize)


SAMPLES = {
    "MAP": _samples,
}
