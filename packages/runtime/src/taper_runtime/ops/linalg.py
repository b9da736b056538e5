"""Define linear algebra by numpy's LAPACK: equations, triangular factors, determinants.

Kernels invert small matrices and solve small equations; a session leaves the others to numpy.

If LAPACK refuses a matrix, such as a singular one, an :class:`InputError` names it by its index in
the batch; an op without ``check`` returns NaN for it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.base.errors import InputError
from taper_runtime.ops.opdef import (
    ALL_INPUTS,
    Attr,
    Attrs,
    Cost,
    OpDef,
    TensorType,
)
from taper_runtime.ops.region import matrices, whole
from taper_runtime.ops.type_rules import FLOATS, broadcast, check_dtype, check_same_dtype, fail

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taper_runtime.ops.opdef import Evaluate

#: Triangular systems of up to this size are solved row by row.
_ROWS = 32


def check_matrices(op: str, inputs: Sequence[TensorType], square: bool = True) -> TensorType:
    """Return the type of the first input, if all inputs are matrices of one float dtype."""
    check_dtype(op, "matrices", check_same_dtype(op, inputs), FLOATS)
    for _, shape, _ in inputs:
        if len(shape) < 2:
            fail(op, "matrices, maybe a batch of them", list(shape))
    shape = inputs[0].shape
    if square and shape[-1] != shape[-2]:
        fail(op, "square matrices", list(shape))
    return inputs[0]


def guarded(
    op: str, expected: str, check: bool, compute: Callable[..., Any], *arrays: np.ndarray
) -> np.ndarray:
    """Compute a batch; for a matrix that LAPACK refuses, raise InputError or return NaN.

    ``arrays`` have the same batch dims. The result has the shape of the last array. LAPACK would
    walk through all matrices of a batch, even of matrices of no rows.
    """
    if not arrays[0].size:
        return np.zeros(arrays[-1].shape, arrays[-1].dtype)
    (result,) = guarded_all(op, expected, check, lambda *parts: (compute(*parts),), *arrays)
    return result


def guarded_all(
    op: str, expected: str, check: bool, compute: Callable[..., Any], *arrays: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Compute a batch like :func:`guarded`, with a ``compute`` that has several results."""
    with np.errstate(all="ignore"):
        try:
            return tuple(np.asarray(result, order="C") for result in compute(*arrays))
        except np.linalg.LinAlgError:
            pass
        batch = arrays[0].shape[:-2]
        found = []
        for index in np.ndindex(batch):
            try:
                found.append(compute(*(array[index] for array in arrays)))
            except np.linalg.LinAlgError:
                if check:
                    which = ", ".join(map(str, index))
                    place = f"matrix {which} of the batch" if index else "the matrix"
                    raise InputError(f"{op}: expected {expected}, but {place} is not one") from None
                found.append((np.full_like(arrays[-1][index], np.nan),))
    stacked = map(np.stack, zip(*found, strict=True))
    return tuple(result.reshape(*batch, *result.shape[1:]) for result in stacked)


# -- solving --------------------------------------------------------------------------------------


def _infer_inverse(op: str, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    return check_matrices(op, inputs)


def _inverse(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    return guarded("INVERSE", "an invertible matrix", attrs["check"], np.linalg.inv, inputs[0])


def _infer_solve(op: str, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    dtype, shape, _ = check_matrices(op, inputs)
    sides = inputs[1].shape
    if sides[-2] != shape[-1]:
        fail(op, f"right-hand sides of {shape[-1]} rows", list(sides))
    return TensorType(dtype, (*broadcast(op, [shape[:-2], sides[:-2]]), *sides[-2:]))


def _broadcast_batches(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return (
        np.broadcast_to(a, (*batch, *a.shape[-2:])),
        np.broadcast_to(b, (*batch, *b.shape[-2:])),
    )


def _solve(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    a, b = _broadcast_batches(*inputs)
    if not b.size:
        guarded("SOLVE", "an invertible matrix", attrs["check"], np.linalg.inv, inputs[0])
        return np.zeros(b.shape, b.dtype)
    return guarded("SOLVE", "an invertible matrix", attrs["check"], np.linalg.solve, a, b)


def _check_invertible(evaluate: Evaluate, inputs: Sequence[np.ndarray], attrs: Attrs) -> None:
    """Raise InputError for a singular matrix, unless `check` is off."""
    evaluate(inputs, attrs)


def _solve_triangular(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    a, b = _broadcast_batches(*inputs)
    with np.errstate(all="ignore"):
        if attrs["upper"]:  # reversed, an upper triangle is a lower one
            a, b = a[..., ::-1, ::-1], b[..., ::-1, :]
        x = _solve_lower(a, b, attrs["unit"])
    return np.ascontiguousarray(x[..., ::-1, :] if attrs["upper"] else x)


def _solve_lower(a: np.ndarray, b: np.ndarray, unit: bool) -> np.ndarray:
    """Solve by forward substitution, recursively by halves, so that most work is a product."""
    size = a.shape[-1]
    if size > _ROWS:
        half = size // 2
        first = _solve_lower(a[..., :half, :half], b[..., :half, :], unit)
        rest = b[..., half:, :] - a[..., half:, :half] @ first
        second = _solve_lower(a[..., half:, half:], rest, unit)
        return np.concatenate([first, second], axis=-2)
    x = np.array(b, order="C")
    for row in range(size):
        x[..., row : row + 1, :] -= a[..., row : row + 1, :row] @ x[..., :row, :]
        if not unit:
            x[..., row, :] /= a[..., row, row, None]
    return x


# -- factors --------------------------------------------------------------------------------------


def _cholesky(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    expected = "a positive definite matrix"
    return guarded("CHOLESKY", expected, attrs["check"], np.linalg.cholesky, inputs[0])


# -- determinants and others ----------------------------------------------------------------------


def _infer_det(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    dtype, shape, _ = check_matrices("DET", inputs)
    return TensorType(dtype, shape[:-2])


def _det(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(np.linalg.det(inputs[0]), inputs[0].dtype, order="C")


def _infer_slogdet(inputs: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, TensorType]:
    dtype, shape, _ = check_matrices("SLOGDET", inputs)
    return TensorType(dtype, shape[:-2]), TensorType(dtype, shape[:-2])


def _slogdet(inputs: Sequence[np.ndarray], attrs: Attrs) -> tuple[np.ndarray, ...]:
    with np.errstate(all="ignore"):
        return tuple(np.asarray(part, order="C") for part in np.linalg.slogdet(inputs[0]))


def _infer_cholesky_info(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    _, shape, _ = check_matrices("CHOLESKY_INFO", inputs)
    return TensorType("int32", shape[:-2])


def _cholesky_info(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x = inputs[0]
    out = np.zeros(x.shape[:-2], np.int32)
    for index in np.ndindex(out.shape):
        sizes = range(1, x.shape[-1] + 1)
        first = bisect_left(sizes, True, key=lambda size: _is_indefinite(x[index][:size, :size]))
        out[index] = sizes[first] if first < len(sizes) else 0
    return out


def _is_indefinite(x: np.ndarray) -> bool:
    try:
        with np.errstate(all="ignore"):
            np.linalg.cholesky(x)
    except np.linalg.LinAlgError:
        return True
    return False


#: The coefficients of the diagonal Pade approximant of degree 13, and the 1-norm up to which its
#: error is below the rounding of float64: N. Higham, "The scaling and squaring method for the
#: matrix exponential revisited", 2005.
_PADE = [
    math.factorial(26 - k) * math.factorial(13) / (math.factorial(k) * math.factorial(13 - k))
    for k in range(14)
]
_PADE_NORM = 5.37


def _matrix_exp(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    """Scale each matrix by a power of 2, apply the Pade approximant, and square the result."""
    x = inputs[0].astype(np.result_type(inputs[0], np.float64))
    with np.errstate(all="ignore"):
        norms = np.asarray(np.abs(x).sum(-2).max(-1, initial=0))
        infinite = ~np.isfinite(norms)
        x[infinite] = 0
        norm = float(norms[~infinite].max(initial=0))
        squarings = max(0, math.ceil(math.log2(norm / _PADE_NORM))) if norm else 0
        x = x / 2**squarings
        powers = [np.broadcast_to(np.eye(x.shape[-1]), x.shape)]
        for _ in range(13):
            powers.append(powers[-1] @ x)
        terms = [factor / _PADE[13] * power for factor, power in zip(_PADE, powers, strict=True)]
        even, odd = sum(terms[::2]), sum(terms[1::2])
        result = np.linalg.solve(even - odd, even + odd)
        for _ in range(squarings):
            result = result @ result
        result[infinite] = np.nan
        return np.asarray(result, inputs[0].dtype, order="C")


def _cubic(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    """Return a cost of as many multiplications as a product of the matrices."""
    moved = output.nbytes + sum(t.nbytes for t in inputs)
    return Cost(2 * inputs[0].size * inputs[0].shape[-1], moved)


define = partial(OpDef, region=matrices, strided=(ALL_INPUTS,), cost=_cubic, native=False)
_CHECK = {"check": Attr("bool", True)}

OPS = (
    define(
        name="INVERSE",
        doc="Inverses of matrices. A singular matrix is an error; without `check` it gives NaN.",
        inputs=(1, 1),
        infer=partial(_infer_inverse, "INVERSE"),
        evaluate=_inverse,
        check=partial(_check_invertible, _inverse),
        attrs=_CHECK,
        native=True,
    ),
    define(
        name="SOLVE",
        doc="The x of a @ x = b. A singular a is an error; without `check` it gives NaN.",
        inputs=(2, 2),
        infer=partial(_infer_solve, "SOLVE"),
        evaluate=_solve,
        check=partial(_check_invertible, _solve),
        attrs=_CHECK,
        native=True,
    ),
    define(
        name="SOLVE_TRIANGULAR",
        doc="The x of a @ x = b for a lower or upper triangle a; elements outside of the triangle, "
        "or a diagonal of ones, are not read.",
        inputs=(2, 2),
        infer=partial(_infer_solve, "SOLVE_TRIANGULAR"),
        evaluate=_solve_triangular,
        attrs={"upper": Attr("bool", False), "unit": Attr("bool", False)},
    ),
    define(
        name="CHOLESKY",
        doc="The lower triangles l of a = l @ transpose(l); only the lower triangle of a is read. "
        "A matrix that is not positive definite is an error; without `check` it gives NaN.",
        inputs=(1, 1),
        infer=partial(_infer_inverse, "CHOLESKY"),
        evaluate=_cholesky,
        attrs=_CHECK,
    ),
    define(
        name="DET",
        doc="Determinants.",
        inputs=(1, 1),
        infer=_infer_det,
        evaluate=_det,
    ),
    define(
        name="SLOGDET",
        doc="Signs of determinants, and logarithms of their magnitudes.",
        inputs=(1, 1),
        region=whole,
        infer=_infer_slogdet,
        evaluate=_slogdet,
    ),
    define(
        name="CHOLESKY_INFO",
        doc="The size of the first leading block that is not positive definite, or 0.",
        inputs=(1, 1),
        infer=_infer_cholesky_info,
        evaluate=_cholesky_info,
    ),
    define(
        name="MATRIX_EXP",
        doc="Exponentials of matrices.",
        inputs=(1, 1),
        infer=partial(_infer_inverse, "MATRIX_EXP"),
        region=whole,  # the largest norm of a batch decides the scaling of all its matrices
        evaluate=_matrix_exp,
    ),
)
