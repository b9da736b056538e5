"""Count the values of a plan's constants for the page of ``taper report``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.formats import PLAIN, decode
from taper_runtime.ops.convert import from_bfloat16

if TYPE_CHECKING:
    from taper_runtime.plan.plan import Plan

#: The bins of a histogram, and the most values that are counted for one.
_BINS, _COUNTED = 32, 1 << 16

#: The largest packed constant that is decoded for its histogram.
_MOST_DECODED = 1 << 26


def histogram(plan: Plan, name: str) -> list[Any]:
    """Return the least and the largest value of a constant, and how many values each bin has.

    Large constants are represented by values at equal distances. NaN and infinities are left out.
    """
    spec, stored = plan.tensors[name], plan.constants[name]
    if spec.format != PLAIN and stored.nbytes > _MOST_DECODED:
        return [None, None, []]
    values = decode(stored, spec.type).reshape(-1)
    values = values[:: max(len(values) // _COUNTED, 1)]
    if spec.dtype == "bfloat16":
        values = from_bfloat16(values)
    values = values.astype(np.float64)
    values = values[np.isfinite(values)]
    if not len(values):
        return [None, None, []]
    least, largest = float(values.min()), float(values.max())
    counts, _ = np.histogram(values, _BINS, (least, largest) if least < largest else None)
    return [float(f"{least:.3g}"), float(f"{largest:.3g}"), counts.tolist()]
