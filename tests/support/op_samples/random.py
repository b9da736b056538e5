"""Samples of the ops in ``ops/random.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from op_samples.sample import Sample
from taper_runtime.base.random_state import new_state
from taper_runtime.ops.random import _LAWS

if TYPE_CHECKING:
    from collections.abc import Iterator


def _calls() -> Iterator[tuple[tuple[int, ...], dict[str, object]]]:
    """Yield shapes and attrs of RANDOM."""
    for law, (dtypes, *_) in _LAWS.items():
        shapes = ((), (5,), (3, 5), (4, 4), (17,), (2, 0), (8, 9))
        for dtype in dtypes:
            for limit in (1, 10, 2**28, 2**40, 0) if law == "integer" else (0,):
                for shape in ((0,), (1,), (9,)) if law == "permutation" else shapes:
                    yield shape, {"law": law, "dtype": dtype, "limit": limit}


def _samples() -> Iterator[Sample]:
    for shape, attrs in _calls():
        yield Sample([new_state(3)], {"shape": shape, **attrs})


def _samples_next() -> Iterator[Sample]:
    for shape, attrs in _calls():
        values = np.zeros(shape, str(attrs.pop("dtype")))
        yield Sample([new_state(3), values], attrs)


SAMPLES = {
    "RANDOM": _samples,
    "RANDOM_NEXT": _samples_next,
}
