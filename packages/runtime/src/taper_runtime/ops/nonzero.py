"""Define NONZERO: the positions of nonzero elements, in a buffer with room for all, and a count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.ops.opdef import Attrs, OpDef, TensorType
from taper_runtime.ops.type_rules import COMPUTED, check_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence


def _infer(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_dtype("NONZERO", "x", inputs[0].dtype, COMPUTED)
    return TensorType("int64", (inputs[0].size,))


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x = inputs[0]
    found = np.flatnonzero(x)
    places = np.full(x.size, x.size, np.int64)
    places[: found.size] = found
    return places


NONZERO = OpDef(
    name="NONZERO",
    doc="The places of the elements of x that are not 0, row-major and in order, in an int64 "
    "vector with room for all elements. Entries after the last place are the number of "
    "elements, so that SEARCHSORTED can count the places.",
    inputs=(1, 1),
    infer=_infer,
    evaluate=_evaluate,
)

OPS = (NONZERO,)
