"""Samples of the ops in ``ops/cumulative.py``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from op_samples.sample import Sample
from taper_runtime.ops.type_rules import COMPUTED, FLOATS, REALS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def _samples(dtypes: Sequence[str]) -> Iterator[Sample]:
    rng = np.random.default_rng(19)
    for dtype in dtypes:
        for shape in ((5,), (3, 40), (2, 3, 4), (2, 1, 1, 3, 1, 2), (0, 3), (3, 0), (2, 0, 3)):
            for axis in range(len(shape)):
                x = np.asarray(rng.standard_normal(shape) * 3)
                x = abs(x) if dtype == "uint8" else x
                yield Sample([x.astype(dtype)], {"axis": axis})
    special = [[1, np.nan, 3, np.nan], [-np.inf, np.inf, 0, 1], [-np.inf, -np.inf, 0, -0.0]]
    for axis in range(2):
        yield Sample([np.array(special, np.float32)], {"axis": axis})


SAMPLES = {
    **dict.fromkeys(("CUMSUM", "CUMPROD"), partial(_samples, REALS)),
    "LOGCUMSUMEXP": partial(_samples, FLOATS),
    **dict.fromkeys(("CUMMAX", "CUMMIN", "CUMARGMAX", "CUMARGMIN"), partial(_samples, COMPUTED)),
}
