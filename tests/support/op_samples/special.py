"""Samples of the ops in ``ops/special.py``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from op_samples.sample import Sample
from taper_runtime.ops.special import SPECIALS
from taper_runtime.ops.type_rules import FLOATS

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Ranges of floats that are not -3 to 3: what the function is defined on.
_RANGES = {"ERFINV": (-1.0, 1.0), "DIGAMMA": (2.0, 9.0)}


def _samples(op: str) -> Iterator[Sample]:
    special = SPECIALS[op]
    rng = np.random.default_rng(len(op))
    for dtype in special.dtypes:
        for shapes in (((3, 5), (5,)), ((), ()), ((2, 1, 4), (3, 1)), ((0, 3), (1, 3))):
            if dtype in FLOATS:
                arrays = [
                    rng.uniform(*_RANGES.get(op, (-3.0, 3.0)), s).astype(dtype) for s in shapes
                ]
            else:
                arrays = [rng.integers(0, 7, s).astype(dtype) for s in shapes]
            yield Sample(arrays[: special.arity], native=False)
    if "float32" in special.dtypes:
        values = np.array([0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, -2.5, 0.99999], "float32")
        yield Sample([values, values[::-1].copy()][: special.arity], native=False)


SAMPLES = {op: partial(_samples, op) for op in SPECIALS}
