"""NONZERO: where elements lie. What reads the found ones reads that many of a full buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.ops.opdef import Attrs, OpDef, Sample, TensorType
from taper_runtime.ops.rules import COMPUTED, REALS, check_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def _infer(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_dtype("NONZERO", "x", inputs[0].dtype, COMPUTED)
    return TensorType("int64", (inputs[0].size,))


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x = inputs[0]
    found = np.flatnonzero(x)
    places = np.full(x.size, x.size, np.int64)
    places[: found.size] = found
    return places


def _samples() -> Iterator[Sample]:
    rng = np.random.default_rng(31)
    masks = [rng.random(shape) < share for shape in ((3, 5, 7), (129,)) for share in (0.1, 0.6)]
    masks += [np.zeros((4, 9), np.bool_), np.ones((4, 9), np.bool_), np.ones((0, 3), np.bool_)]
    masks += [np.array(True), np.array(False)]
    for mask in masks:
        yield Sample([mask])
    for dtype in REALS:
        yield Sample([(masks[0] * 3).astype(dtype)])
    yield Sample([np.array([0.0, -0.0, np.nan, 1e-45, -1], np.float32)])


NONZERO = OpDef(
    name="NONZERO",
    doc="The places of the elements of x that are not 0, row-major and in order, in an int64 "
    "vector with room for all elements. Behind the last one found each place is the number of "
    "elements, which is none: so SEARCHSORTED tells how many were found.",
    inputs=(1, 1),
    infer=_infer,
    evaluate=_evaluate,
    samples=_samples,
)

OPS = (NONZERO,)
