"""Samples of the ops in ``ops/creation.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from op_samples.sample import Sample

if TYPE_CHECKING:
    from collections.abc import Iterator


def _samples_arange() -> Iterator[Sample]:
    for start, stop, step in ((0, 5, 1), (3, 4, 1), (2, 9, 3), (9, 2, -3), (4, 4, 1), (-2, 40, 1)):
        yield Sample([], {"start": start, "stop": stop, "step": step})


SAMPLES = {
    "ARANGE": _samples_arange,
}
