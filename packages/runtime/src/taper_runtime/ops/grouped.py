"""Define GROUPED_MATMUL: each group of rows times its own matrix, for mixtures of experts."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.errors import InputError
from taper_runtime.base.sizes import largest, smallest
from taper_runtime.ops.opdef import Attrs, Cost, OpDef, TensorType
from taper_runtime.ops.region import WHOLE, Region, Same, Window
from taper_runtime.ops.type_rules import FLOATS, INDICES, check_dtype, check_same_dtype, fail

if TYPE_CHECKING:
    from collections.abc import Sequence


def _infer(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    a, b, ends = inputs
    dtype = check_same_dtype("GROUPED_MATMUL", inputs[:2])
    check_dtype("GROUPED_MATMUL", "a and b", dtype, FLOATS)
    check_dtype("GROUPED_MATMUL", "ends", ends.dtype, INDICES)
    shapes = [list(t.shape) for t in inputs]
    if (len(a.shape), len(b.shape), len(ends.shape)) != (2, 3, 1):
        fail("GROUPED_MATMUL", "a of rank 2, b of rank 3 and ends of rank 1", shapes)
    if a.shape[1] != b.shape[1] or ends.shape[0] != b.shape[0]:
        fail("GROUPED_MATMUL", "a [M, K], b [G, K, N] and ends [G]", shapes)
    return TensorType(dtype, (a.shape[0], b.shape[2]))


def _check(inputs: Sequence[np.ndarray], attrs: Attrs) -> None:
    rows, ends = inputs[0].shape[0], inputs[2].tolist()
    if any(not low <= high for low, high in itertools.pairwise([0, *ends, rows])):
        raise InputError(
            f"GROUPED_MATMUL: expected ends that rise from 0 to at most {rows}, got {ends}"
        )


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    a, b, ends = inputs
    _check(inputs, attrs)
    output = np.zeros((a.shape[0], b.shape[2]), a.dtype)
    begin = 0
    for matrix, end in zip(b, ends.tolist(), strict=True):
        with np.errstate(all="ignore"):
            output[begin:end] = a[begin:end] @ matrix
        begin = end
    return output


def _region(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> list[Region]:
    # A row's matrix depends on its position among all rows.
    return [(Window(0), WHOLE), (WHOLE, WHOLE, Same(1)), (WHOLE,)]


def _cost(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    """Return the cost if every row is in some group, with at most as many matrices as rows."""
    a, b, ends = inputs
    read = b.nbytes // largest(1, b.shape[0]) * smallest(a.shape[0], b.shape[0])
    return Cost(
        2 * output.size * a.shape[1],
        a.nbytes + read + ends.nbytes + output.nbytes,
        sums=output.size,
    )


GROUPED_MATMUL = OpDef(
    name="GROUPED_MATMUL",
    doc="a [M, K] times b [G, K, N], one matrix for each group of rows: rows ends[g-1] to ends[g] "
    "of a (from 0 for the first group) are multiplied by b[g]. Rows beyond the last end give "
    "0.",
    inputs=(3, 3),
    infer=_infer,
    evaluate=_evaluate,
    check=_check,
    region=_region,
    weights=(1,),
    strided=(0, 1),
    cost=_cost,
)

OPS = (GROUPED_MATMUL,)
