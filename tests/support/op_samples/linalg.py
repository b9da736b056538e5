"""Samples of the ops in ``ops/linalg.py``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from op_samples.sample import Sample
from taper_runtime.ops.type_rules import FLOATS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taper_runtime.ops.opdef import (
        Attrs,
        Shape,
    )


def _matrices(*shapes: Shape) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(61)
    for dtype in FLOATS:
        for shape in shapes:
            yield rng.standard_normal(shape).astype(dtype)


_SQUARE = ((1, 1), (4, 4), (2, 3, 5, 5), (0, 3, 3), (0, 0))


#: Rows of the largest matrices that kernels compute.
_MOST = 32


_ANY = ((4, 4), (5, 3), (2, 3, 5), (0, 3, 2))


def samples_square(native: bool = False, **attrs: Sequence[Any]) -> Iterator[Sample]:
    """Yield symmetric, positive definite matrices with each value of each attr."""
    for x in _matrices(*_SQUARE):
        matrix = x @ np.swapaxes(x, -1, -2) + np.eye(x.shape[-1], dtype=x.dtype)
        yield Sample([matrix], {name: values[0] for name, values in attrs.items()}, native=native)
        for name, values in attrs.items():
            for value in values[1:]:
                yield Sample([matrix], {name: value}, native=native)


def samples_any(choices: Sequence[Attrs]) -> Iterator[Sample]:
    """Yield matrices of several shapes, each with each choice of attrs."""
    for x in _matrices(*_ANY):
        for attrs in choices:
            yield Sample([x], attrs, native=False)


def _samples_solve(choices: Sequence[Attrs], native: bool = False) -> Iterator[Sample]:
    rng = np.random.default_rng(62)
    for x in _matrices(*_SQUARE, (50, 50)):
        matrix = x / 9 + np.eye(x.shape[-1], dtype=x.dtype)
        for attrs in choices:
            yield Sample(
                [matrix, rng.standard_normal((*x.shape[:-1], 2)).astype(x.dtype)],
                attrs,
                native=native and x.shape[-1] <= _MOST,
            )
    a, b = np.eye(3) + np.zeros((2, 1, 3, 3)), np.ones((4, 3, 2))
    yield Sample([a, b], choices[0], native=native)


_CHECKS = ({"check": True}, {"check": False})


SAMPLES = {
    "INVERSE": partial(samples_square, native=True, check=(True, False)),
    "SOLVE": partial(_samples_solve, _CHECKS, native=True),
    "SOLVE_TRIANGULAR": partial(_samples_solve, ({}, {"upper": True}, {"unit": True})),
    "CHOLESKY": partial(samples_square, check=(True, False)),
    "DET": samples_square,
    "SLOGDET": samples_square,
    "CHOLESKY_INFO": samples_square,
    "MATRIX_EXP": samples_square,
}
