"""Samples of the ops in ``ops/reduce.py``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from op_samples.sample import Sample
from taper_runtime.ops.type_rules import (
    COMPUTED,
    FLOATS,
    REALS,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taper_runtime.ops.opdef import Shape

#: Shape of x, and the axes reduced.
_SAMPLED: list[tuple[Shape, Shape]] = [
    ((5,), (0,)),
    ((3, 33), (1,)),
    ((33, 3), (0,)),
    ((2, 3, 4, 5), (1, 3)),
    ((2, 3, 4, 5), (0, 1)),
    ((2, 1, 2, 3, 1, 2), (0, 2, 4, 5)),
    ((4, 300), (0, 1)),
    ((3, 4), ()),
    ((), ()),
    ((0, 4), (1,)),
    ((4, 0), (1,)),
    ((0, 3), (0,)),
]


_SPECIAL = [[1, np.nan, 3], [-np.inf, np.inf, 0], [-0.0, 0, -0.0], [np.inf, 1, 2], [-np.inf, 1, 2]]


def _values(rng: np.random.Generator, shape: Shape, dtype: str) -> np.ndarray:
    scale = 100 if dtype == "int64" else 3
    values = np.asarray(rng.standard_normal(shape) * scale)
    return np.asarray(abs(values) if dtype == "uint8" else values).astype(dtype)


def _reduction_samples(
    dtypes: Sequence[str], native: Sequence[str], of_nothing: bool
) -> Iterator[Sample]:
    rng = np.random.default_rng(5)
    for dtype in dtypes:
        for shape, axes in _SAMPLED if dtype in native else _SAMPLED[:4]:
            if of_nothing or all(shape[axis] for axis in axes):
                x = _values(rng, shape, dtype)
                yield Sample([x], {"axes": axes}, dtype in native)
                yield Sample([x], {"axes": axes, "keepdim": True}, dtype in native)
        if dtype in FLOATS:
            for axes in ((0,), (1,)):
                yield Sample([np.array(_SPECIAL, dtype)], {"axes": axes}, dtype in native)


def _samples_var() -> Iterator[Sample]:
    yield from _reduction_samples(FLOATS, ("float32",), of_nothing=True)
    rng = np.random.default_rng(6)
    # A mean far from zero: the variance must not be computed by cancellation.
    x = np.asarray(rng.standard_normal((3, 33)) + 1000, np.float32)
    for correction in (0.0, 1, 2.5, 33, 40):
        yield Sample([x], {"axes": (1,), "correction": correction})
    yield Sample([x[:, :0]], {"axes": (1,), "correction": -1.5})


def _samples_along(dtypes: Sequence[str], native: Sequence[str], **attrs: Any) -> Iterator[Sample]:
    """Yield samples for ops over one axis that is not empty."""
    rng = np.random.default_rng(7)
    for dtype in dtypes:
        for shape in ((5,), (3, 40), (2, 3, 4), (2, 1, 1, 3, 1, 2)):
            for axis in range(len(shape)):
                x = _values(rng, shape, dtype)
                yield Sample([x], {"axis": axis, **attrs}, dtype in native)
    for dtype in [dtype for dtype in FLOATS if dtype in dtypes]:
        for axis in range(2):
            x = np.array(_SPECIAL, dtype)
            yield Sample([x], {"axis": axis, **attrs}, dtype in native)
    yield Sample([_values(rng, (0, 3), "float32")], {"axis": 1, **attrs}, "float32" in native)


def _samples_arg() -> Iterator[Sample]:
    native = ("float32", "float64", "int64", "int32")
    yield from _samples_along(REALS, native)
    yield from _samples_along(("float32",), native, keepdim=True)


#: The dtypes that kernels add, and those that they compare.
_SUMMED = (*FLOATS, "int64")
_COMPARED = (*FLOATS, "int64", "int32", "uint8", "int8", "bool")

SAMPLES = {
    "SUM": partial(_reduction_samples, REALS, _SUMMED, of_nothing=True),
    "MEAN": partial(_reduction_samples, FLOATS, FLOATS, of_nothing=True),
    "PROD": partial(_reduction_samples, REALS, _SUMMED, of_nothing=True),
    **dict.fromkeys(
        ("AMAX", "AMIN"),
        partial(_reduction_samples, COMPUTED, _COMPARED, of_nothing=False),
    ),
    **dict.fromkeys(
        ("ANY", "ALL"), partial(_reduction_samples, ("bool",), ("bool",), of_nothing=True)
    ),
    **dict.fromkeys(("ARGMAX", "ARGMIN"), _samples_arg),
    "VAR": _samples_var,
}
