"""Decompositions of matrices by numpy's LAPACK.

An op has one output. These have several results and give them side by side, each matrix flattened,
as the last axis: the results are of one dtype, and each is a SLICE.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from taper_runtime.ops.linalg import (
    check_matrices,
    define,
    guarded,
    pack,
    samples_any,
    samples_square,
)
from taper_runtime.ops.opdef import Attr, Attrs, Shape, TensorType
from taper_runtime.ops.rules import fail
from taper_runtime.sizes import smallest

if TYPE_CHECKING:
    from collections.abc import Sequence

QR_MODES = ("reduced", "complete", "r")


def _infer_qr(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    dtype, shape, _ = check_matrices("QR", inputs, square=False)
    if attrs["mode"] not in QR_MODES:
        fail("QR", f"a mode of {', '.join(QR_MODES)}", attrs["mode"])
    return TensorType(dtype, (*shape[:-2], sum(map(math.prod, qr_shapes(shape, attrs["mode"])))))


def qr_shapes(shape: Shape, mode: str) -> tuple[Shape, ...]:
    """Return the shapes of the matrices that QR gives for one of ``shape``."""
    rows, columns = shape[-2:]
    inner = rows if mode == "complete" else smallest(rows, columns)
    return ((inner, columns),) if mode == "r" else ((rows, inner), (inner, columns))


def _qr(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, mode = inputs[0], attrs["mode"]
    results = np.linalg.qr(x, mode)
    return pack(*((results,) if mode == "r" else results), batch=x.ndim - 2)


def _infer_svd(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    dtype, shape, _ = check_matrices("SVD", inputs, square=False)
    parts = svd_shapes(shape, attrs["vectors"], attrs["full"])
    return TensorType(dtype, (*shape[:-2], sum(map(math.prod, parts))))


def svd_shapes(shape: Shape, vectors: bool, full: bool) -> tuple[Shape, ...]:
    """Return the shapes of what SVD gives for a matrix of ``shape``: U, S and the transpose of V.

    S alone without ``vectors``.
    """
    rows, columns = shape[-2:]
    inner = smallest(rows, columns)
    if not vectors:
        return ((inner,),)
    return (rows, rows if full else inner), (inner,), (columns if full else inner, columns)


def _svd(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    def compute(x: np.ndarray) -> np.ndarray:
        if not attrs["vectors"]:
            return np.linalg.svd(x, compute_uv=False)
        return pack(*np.linalg.svd(x, full_matrices=attrs["full"]), batch=x.ndim - 2)

    return guarded("SVD", "matrices of finite numbers", True, compute, inputs[0])


def _infer_eigh(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    dtype, shape, _ = check_matrices("EIGH", inputs)
    parts = eigh_shapes(shape, attrs["vectors"])
    return TensorType(dtype, (*shape[:-2], sum(map(math.prod, parts))))


def eigh_shapes(shape: Shape, vectors: bool) -> tuple[Shape, ...]:
    """Return the shapes of what EIGH gives for a matrix of ``shape``: values, then vectors."""
    size = shape[-1]
    return ((size,), (size, size)) if vectors else ((size,),)


def _eigh(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    triangle: Literal["U", "L"] = "U" if attrs["upper"] else "L"

    def compute(x: np.ndarray) -> np.ndarray:
        if not np.isfinite(x).all():
            raise np.linalg.LinAlgError
        if not attrs["vectors"]:
            return np.linalg.eigvalsh(x, triangle)
        return pack(*np.linalg.eigh(x, triangle), batch=x.ndim - 2)

    return guarded("EIGH", "matrices of finite numbers", True, compute, inputs[0])


def lu_shapes(shape: Shape) -> tuple[Shape, ...]:
    """Return the shapes of what LU gives for a matrix of ``shape``.

    Both triangles in one matrix; the row that each was exchanged with, counted from 1; which row
    of the matrix is where; the first column without a pivot, counted from 1, or 0.
    """
    rows, columns = shape[-2:]
    return (rows, columns), (smallest(rows, columns),), (rows,), ()


def _infer_lu(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    dtype, shape, _ = check_matrices("LU", inputs, square=False)
    return TensorType(dtype, (*shape[:-2], sum(map(math.prod, lu_shapes(shape)))))


def _lu(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    """Eliminate column by column, the largest element of each first."""
    x = np.array(inputs[0], order="C")
    *batch, rows, columns = x.shape
    steps = min(rows, columns)
    pivots = np.zeros((*batch, steps), np.int64)
    order = np.broadcast_to(np.arange(rows), (*batch, rows)).copy()
    info = np.zeros((*batch, 1), np.int64)
    with np.errstate(all="ignore"):
        for index in np.ndindex(*batch):
            matrix = x[index]
            for i in range(steps):
                pivot = i + int(np.argmax(np.abs(matrix[i:, i])))
                pivots[index][i] = pivot + 1
                matrix[[i, pivot]] = matrix[[pivot, i]]
                order[index][[i, pivot]] = order[index][[pivot, i]]
                if matrix[i, i] == 0:
                    info[index] = info[index] or i + 1
                    continue
                matrix[i + 1 :, i] /= matrix[i, i]
                matrix[i + 1 :, i + 1 :] -= np.outer(matrix[i + 1 :, i], matrix[i, i + 1 :])
    packed = pack(x, pivots, order, info, batch=len(batch))
    return packed.astype(x.dtype)


OPS = (
    define(
        name="QR",
        doc="Q and R of matrices, side by side; with the mode r, R alone.",
        inputs=(1, 1),
        infer=_infer_qr,
        evaluate=_qr,
        samples=partial(samples_any, [{"mode": mode} for mode in QR_MODES]),
        attrs={"mode": Attr("string", "reduced")},
    ),
    define(
        name="SVD",
        doc="U, singular values and the transpose of V, side by side; or the values alone.",
        inputs=(1, 1),
        infer=_infer_svd,
        evaluate=_svd,
        samples=partial(samples_any, [{}, {"vectors": False}, {"full": True}]),
        attrs={"vectors": Attr("bool", True), "full": Attr("bool", False)},
    ),
    define(
        name="EIGH",
        doc="Eigenvalues, which rise, and eigenvectors of symmetric matrices, of which one "
        "triangle is read, side by side; or the values alone.",
        inputs=(1, 1),
        infer=_infer_eigh,
        evaluate=_eigh,
        samples=partial(samples_square, vectors=(True, False), upper=(False, True)),
        attrs={"vectors": Attr("bool", True), "upper": Attr("bool", False)},
    ),
    define(
        name="LU",
        doc="Factors of matrices with their rows exchanged, and what was exchanged, side by side.",
        inputs=(1, 1),
        infer=_infer_lu,
        evaluate=_lu,
        samples=partial(samples_any, [{}]),
    ),
)
