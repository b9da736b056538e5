"""Define linear algebra and scans of complex numbers, with numpy's LAPACK.

Real and imaginary parts lie along a last axis of 2. Each op derives from the op on real numbers: it
has the same attrs and errors, and the same evaluator, which gets complex arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.ops import cumulative, decompositions, linalg, reduce
from taper_runtime.ops.opdef import ALL_INPUTS, Attrs, Cost, OpDef, TensorType
from taper_runtime.ops.region import WHOLE, whole
from taper_runtime.ops.type_rules import FLOATS, check_dtype, fail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_runtime.ops.region import Region

#: The prefix of the ops' names.
PREFIX = "COMPLEX_"

#: The results that are real, by op: singular values, eigenvalues, log magnitudes, positions.
_REAL_RESULTS: dict[str, tuple[int, ...]] = {
    "SVD": (1,), "EIGH": (0,), "SLOGDET": (1,), "CHOLESKY_INFO": (0,), "LU": (1, 2, 3),
}  # fmt: skip

_SOURCES = (
    "INVERSE", "SOLVE", "SOLVE_TRIANGULAR", "CHOLESKY", "CHOLESKY_INFO", "DET", "SLOGDET", "QR",
    "SVD", "EIGH", "LU", "MATRIX_EXP", "PROD", "CUMPROD", "LOGCUMSUMEXP",
)  # fmt: skip


def _as_complex(array: np.ndarray) -> np.ndarray:
    dtype = np.complex64 if array.dtype == np.float32 else np.complex128
    return np.ascontiguousarray(array).view(dtype)[..., 0]


def _as_pairs(array: np.ndarray) -> np.ndarray:
    return np.stack([array.real, array.imag], axis=-1)


def real_results(op: str, attrs: Attrs) -> tuple[int, ...]:
    """Return the indices of the op's results that are real; without vectors, only values exist."""
    return (0,) if attrs.get("vectors") is False else _REAL_RESULTS.get(op, ())


def _define(op: OpDef) -> OpDef:
    """Derive an op on complex numbers from the op on real ones.

    Types, evaluators and regions drop the last axis of 2, call those of the real op, and add it
    again to every result that is not real.
    """
    name = PREFIX + op.name

    def infer(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType | tuple[TensorType, ...]:
        for dtype, shape, _ in inputs:
            check_dtype(name, "parts", dtype, FLOATS)
            if not shape or shape[-1] != 2:
                fail(name, "real and imaginary parts along a last axis of 2", list(shape))
        reals = [TensorType(dtype, shape[:-1]) for dtype, shape, _ in inputs]
        found = op.infer(reals, attrs)
        results = (found,) if isinstance(found, TensorType) else found
        real = real_results(op.name, attrs)
        types = tuple(
            type_ if index in real else type_._replace(shape=(*type_.shape, 2))
            for index, type_ in enumerate(results)
        )
        return types[0] if isinstance(found, TensorType) else types

    def evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray | tuple[np.ndarray, ...]:
        found = op.evaluate([_as_complex(x) for x in inputs], attrs)
        results = found if isinstance(found, tuple) else (found,)
        real = real_results(op.name, attrs)
        arrays = tuple(x if index in real else _as_pairs(x) for index, x in enumerate(results))
        return arrays if isinstance(found, tuple) else arrays[0]

    def region(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> list[Region]:
        reals = [t._replace(shape=t.shape[:-1]) for t in inputs]
        if 0 not in real_results(op.name, attrs):
            output = output._replace(shape=output.shape[:-1])
        return [(*relations, WHOLE) for relations in op.region(reals, output, attrs)]

    return OpDef(
        name=name,
        doc=f"{op.name} of complex numbers, with parts along a last axis of 2: {op.doc}",
        inputs=op.inputs,
        infer=infer,
        evaluate=evaluate,
        attrs=op.attrs,
        region=whole if op.region is whole else region,
        strided=(ALL_INPUTS,),
        cost=_cubic,
        native=False,
    )


def _cubic(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    """Return a cost of as many multiplications as a product of the matrices."""
    moved = output.nbytes + sum(t.nbytes for t in inputs)
    shape = inputs[0].shape
    return Cost(4 * inputs[0].size * (shape[-2] if len(shape) > 1 else 1), moved)


_KNOWN = {op.name: op for op in (*linalg.OPS, *decompositions.OPS, *reduce.OPS, *cumulative.OPS)}


# -- eigenvalues of matrices that are not symmetric -----------------------------------------------


def _infer_eig(inputs: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, TensorType]:
    dtype, shape, _ = linalg.check_matrices("EIG", inputs)
    return TensorType(dtype, (*shape[:-1], 2)), TensorType(dtype, (*shape, 2))


def _eig(inputs: Sequence[np.ndarray], attrs: Attrs) -> tuple[np.ndarray, ...]:
    x = inputs[0]
    dtype = np.result_type(x, np.complex64)

    def compute(x: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(part.astype(dtype) for part in np.linalg.eig(x))

    results = linalg.guarded_all("EIG", "a matrix of finite numbers", True, compute, x)
    return tuple(map(_as_pairs, results))


def _infer_complex_eig(inputs: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, TensorType]:
    dtype, shape, _ = inputs[0]
    if not shape or shape[-1] != 2:
        fail("COMPLEX_EIG", "real and imaginary parts along a last axis of 2", list(shape))
    return _infer_eig([TensorType(dtype, shape[:-1])], attrs)


_EIG = OpDef(
    name="EIG",
    doc="Eigenvalues and eigenvectors of matrices: complex numbers, whose real and imaginary parts "
    "are along a last axis of 2.",
    inputs=(1, 1),
    infer=_infer_eig,
    evaluate=_eig,
    strided=(ALL_INPUTS,),
    native=False,
)

OPS = (
    *(_define(_KNOWN[name]) for name in _SOURCES),
    _EIG,
    OpDef(
        name="COMPLEX_EIG",
        doc="Eigenvalues and eigenvectors of matrices of complex numbers, whose real and imaginary "
        "parts are along a last axis of 2.",
        inputs=(1, 1),
        infer=_infer_complex_eig,
        evaluate=lambda inputs, attrs: _eig([_as_complex(inputs[0])], attrs),
        strided=(ALL_INPUTS,),
        native=False,
    ),
)
