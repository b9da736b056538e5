"""Define decompositions of matrices, by numpy's LAPACK, with one output per factor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from taper_runtime.base.sizes import smallest
from taper_runtime.ops.linalg import (
    check_matrices,
    define,
    guarded_all,
)
from taper_runtime.ops.opdef import Attr, Attrs, TensorType
from taper_runtime.ops.region import whole
from taper_runtime.ops.type_rules import fail

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

QR_MODES = ("reduced", "complete", "r")


Types = tuple[TensorType, ...]
Arrays = tuple[np.ndarray, ...]


def _infer_qr(inputs: Sequence[TensorType], attrs: Attrs) -> Types:
    dtype, shape, _ = check_matrices("QR", inputs, square=False)
    if attrs["mode"] not in QR_MODES:
        fail("QR", f"a mode of {', '.join(QR_MODES)}", attrs["mode"])
    batch, (rows, columns) = shape[:-2], shape[-2:]
    inner = rows if attrs["mode"] == "complete" else smallest(rows, columns)
    r = TensorType(dtype, (*batch, inner, columns))
    return (r,) if attrs["mode"] == "r" else (TensorType(dtype, (*batch, rows, inner)), r)


def _qr(inputs: Sequence[np.ndarray], attrs: Attrs) -> Arrays:
    with np.errstate(all="ignore"):
        factors: Any = np.linalg.qr(inputs[0], attrs["mode"])
    factors = (factors,) if attrs["mode"] == "r" else factors
    return tuple(np.asarray(factor, order="C") for factor in factors)


def _compute_finite(
    compute: Callable[[np.ndarray], Arrays], x: np.ndarray, read: np.ndarray
) -> Arrays:
    """Decompose a batch of matrices; a matrix with an infinity gets factors of NaN.

    LAPACK's iterations may never end on an infinity. ``read`` is the part of x that is read; the
    rest of it is 0.

    Raises
    ------
    numpy.linalg.LinAlgError
        If a matrix contains NaN, as in torch.
    """
    if np.isnan(read).any():
        raise np.linalg.LinAlgError
    infinite = np.isinf(read).any((-2, -1))
    if not infinite.any():
        return compute(x)
    factors = compute(np.where(infinite[..., None, None], x.dtype.type(0), x))
    for factor in factors:
        factor[infinite] = np.nan
    return factors


def _infer_svd(inputs: Sequence[TensorType], attrs: Attrs) -> Types:
    dtype, shape, _ = check_matrices("SVD", inputs, square=False)
    batch, (rows, columns) = shape[:-2], shape[-2:]
    inner = smallest(rows, columns)
    values = TensorType(dtype, (*batch, inner))
    if not attrs["vectors"]:
        return (values,)
    full = attrs["full"]
    u = TensorType(dtype, (*batch, rows, rows if full else inner))
    return u, values, TensorType(dtype, (*batch, columns if full else inner, columns))


def _svd(inputs: Sequence[np.ndarray], attrs: Attrs) -> Arrays:
    def compute(x: np.ndarray) -> Arrays:
        if not attrs["vectors"]:
            return (np.linalg.svd(x, compute_uv=False),)
        return tuple(np.linalg.svd(x, full_matrices=attrs["full"]))

    return guarded_all(
        "SVD",
        "a matrix without NaN",
        True,
        lambda x: _compute_finite(compute, x, x),
        inputs[0],
    )


def _infer_eigh(inputs: Sequence[TensorType], attrs: Attrs) -> Types:
    matrices = check_matrices("EIGH", inputs)
    values = matrices._replace(shape=matrices.shape[:-1])
    return (values, matrices) if attrs["vectors"] else (values,)


def _eigh(inputs: Sequence[np.ndarray], attrs: Attrs) -> Arrays:
    """Decompose symmetric matrices, of which one triangle is read."""
    triangle: Literal["U", "L"] = "U" if attrs["upper"] else "L"

    def compute(x: np.ndarray) -> Arrays:
        if not attrs["vectors"]:
            return (np.linalg.eigvalsh(x, triangle),)
        return tuple(np.linalg.eigh(x, triangle))

    return guarded_all(
        "EIGH",
        "a matrix without NaN",
        True,
        lambda x: _compute_finite(compute, x, np.triu(x) if attrs["upper"] else np.tril(x)),
        inputs[0],
    )


def _infer_lu(inputs: Sequence[TensorType], attrs: Attrs) -> Types:
    dtype, shape, _ = check_matrices("LU", inputs, square=False)
    batch, (rows, columns) = shape[:-2], shape[-2:]
    return (
        TensorType(dtype, shape),
        TensorType("int32", (*batch, smallest(rows, columns))),
        TensorType("int64", (*batch, rows)),
        TensorType("int32", batch),
    )


def _lu(inputs: Sequence[np.ndarray], attrs: Attrs) -> Arrays:
    """Eliminate column by column, with the largest element of the column as pivot.

    Complex elements are compared by the sum of their parts' magnitudes, as in LAPACK.
    """
    x = np.array(inputs[0], order="C")
    *batch, rows, columns = x.shape
    steps = min(rows, columns)
    pivots = np.zeros((*batch, steps), np.int32)
    order = np.broadcast_to(np.arange(rows), (*batch, rows)).copy()
    info = np.zeros(batch, np.int32)
    with np.errstate(all="ignore"):
        for index in np.ndindex(*batch):
            matrix = x[index]
            for i in range(steps):
                below = matrix[i:, i]
                pivot = i + int(np.argmax(np.abs(below.real) + np.abs(below.imag)))
                pivots[index][i] = pivot + 1
                matrix[[i, pivot]] = matrix[[pivot, i]]
                order[index][[i, pivot]] = order[index][[pivot, i]]
                if matrix[i, i] == 0:
                    info[index] = info[index] or i + 1
                    continue
                matrix[i + 1 :, i] /= matrix[i, i]
                matrix[i + 1 :, i + 1 :] -= np.outer(matrix[i + 1 :, i], matrix[i, i + 1 :])
    return x, pivots, order, info


OPS = (
    define(
        name="QR",
        doc="Q and R of matrices; with the mode r, only R.",
        inputs=(1, 1),
        region=whole,
        infer=_infer_qr,
        evaluate=_qr,
        attrs={"mode": Attr("string", "reduced")},
    ),
    define(
        name="SVD",
        doc="U, singular values and the transpose of V; or only the values.",
        inputs=(1, 1),
        region=whole,
        infer=_infer_svd,
        evaluate=_svd,
        attrs={"vectors": Attr("bool", True), "full": Attr("bool", False)},
    ),
    define(
        name="EIGH",
        doc="Eigenvalues in rising order, and eigenvectors of symmetric matrices, of which one "
        "triangle is read; or only the values.",
        inputs=(1, 1),
        region=whole,
        infer=_infer_eigh,
        evaluate=_eigh,
        attrs={"vectors": Attr("bool", True), "upper": Attr("bool", False)},
    ),
    define(
        name="LU",
        doc="LU decomposition of matrices with exchanged rows: both triangles in one matrix; for "
        "each row the one that it was exchanged with, counted from 1; the resulting order of "
        "the rows; the first column without a pivot, counted from 1, or 0.",
        inputs=(1, 1),
        region=whole,
        infer=_infer_lu,
        evaluate=_lu,
    ),
)
