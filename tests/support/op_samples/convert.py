"""Samples of the ops in ``ops/convert.py``."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from op_samples.sample import Sample
from taper_runtime.base.dtypes import DTYPES
from taper_runtime.ops.convert import FLOATS_16_BIT
from taper_runtime.ops.type_rules import COMPUTED, FLOATS

if TYPE_CHECKING:
    from collections.abc import Iterator


def _samples() -> Iterator[Sample]:
    whole = np.array([[0, 1, 3, 7], [100, 25, 2, 0]])
    exact = np.array([[0.0, -0.0, 1.0, -1.5], [2.5, 100.25, -100.75, 1e-9]])
    for source, target in itertools.product(COMPUTED, repeat=2):
        values = exact if source in FLOATS else whole
        if target == "uint8":  # a negative number has no value there
            values = abs(values)
        array = values.astype(DTYPES[source].storage)
        yield Sample([array], {"dtype": target})
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 3.4e38, 1e-40], np.float32)
    for target in ("float64", "bool"):
        yield Sample([special], {"dtype": target})
    every = np.arange(2**16, dtype=np.uint16)
    yield Sample([every.view(np.float16)], {"dtype": "float32"})
    yield Sample([every], {"dtype": "float32"})  # bfloat16
    rng = np.random.default_rng(17)
    # All exponents; and what lies half way between two float16 or bfloat16, which goes to the even.
    bits = rng.integers(0, 2**32, 4096, np.uint32)
    halfway = bits & np.uint32(0xFFFFE000) | np.uint32(0x1000)
    ties = bits & np.uint32(0xFFFF0000) | np.uint32(0x8000)
    within = rng.uniform(-(2.0**-14), 2.0**-14, 4096).astype(np.float32)  # denormal as float16
    values = np.concatenate([bits.view(np.float32), halfway.view(np.float32), within, special])
    for target in FLOATS_16_BIT:
        yield Sample([values], {"dtype": target})
        yield Sample([ties.view(np.float32)], {"dtype": target})
    yield Sample([every[:60].reshape(3, 20).view(np.float16)], {"dtype": "int64"}, native=False)
    for shape in ((), (0, 3), (2, 1, 1, 2, 1, 3)):
        yield Sample([np.ones(shape, np.int32)], {"dtype": "float32"})


SAMPLES = {
    "CAST": _samples,
}
