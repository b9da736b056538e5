"""Define products of complex numbers, whose parts lie along a last axis of 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.ops.opdef import ALL_INPUTS, Attrs, Cost, OpDef, Shape, TensorType
from taper_runtime.ops.region import WHOLE, Region, broadcast_region
from taper_runtime.ops.type_rules import FLOATS, broadcast, check_dtype, check_same_dtype, fail

if TYPE_CHECKING:
    from collections.abc import Sequence


def check_pairs(op: str, what: str, t: TensorType) -> Shape:
    """Return the shape of the complex numbers whose parts ``t`` holds.

    Raises
    ------
    OpError
        If the last axis does not have size 2, or the dtype is not a float.
    """
    check_dtype(op, what, t.dtype, FLOATS)
    if not t.shape or t.shape[-1] != 2:
        fail(op, f"{what} with a last axis of 2", list(t.shape))
    return t.shape[:-1]


def _infer(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    shapes = [check_pairs("COMPLEX_MUL", "inputs", t) for t in inputs]
    dtype = check_same_dtype("COMPLEX_MUL", inputs)
    return TensorType(dtype, (*broadcast("COMPLEX_MUL", shapes), 2))


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    a, b = inputs
    with np.errstate(all="ignore"):
        re = a[..., 0] * b[..., 0] - a[..., 1] * b[..., 1]
        im = a[..., 1] * b[..., 0] + a[..., 0] * b[..., 1]
    return np.asarray(np.stack([re, im], -1), order="C")


def _region(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> list[Region]:
    shape = output.shape[:-1]
    return [(*broadcast_region(t.shape[:-1], shape), WHOLE) for t in inputs]


def _cost(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    return Cost(3 * output.size, output.nbytes + sum(t.nbytes for t in inputs))


COMPLEX_MUL = OpDef(
    name="COMPLEX_MUL",
    doc="a * b of complex numbers, whose real and imaginary parts are along a last axis of 2; the "
    "other axes broadcast.",
    inputs=(2, 2),
    infer=_infer,
    evaluate=_evaluate,
    region=_region,
    inplace=(0, 1),
    strided=(ALL_INPUTS,),
    cost=_cost,
)

OPS = (COMPLEX_MUL,)
