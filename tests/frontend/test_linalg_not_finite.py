"""Linear algebra on matrices that hold infinities or NaN: at once what torch gives.

LAPACK's iterations may never end on an infinity, and nothing can interrupt them.
"""

import math
from itertools import product

import numpy as np
import pytest
import torch

from taper_runtime.base.errors import InputError
from taper_runtime.ops import REGISTRY

L = torch.linalg

#: The op, its attrs, and torch's function.
ITERATED = {
    "SVD": ("SVD", {"vectors": True}, lambda x: L.svd(x, full_matrices=False)),
    "SVD full": ("SVD", {"full": True}, L.svd),
    "SVD values": ("SVD", {"vectors": False}, L.svdvals),
    "EIGH": ("EIGH", {}, L.eigh),
    "EIGH upper": ("EIGH", {"upper": True}, lambda x: L.eigh(x, UPLO="U")),
    "EIG": ("EIG", {}, L.eig),
}

DIRECT = {
    "INVERSE": ("INVERSE", {}, L.inv),
    "CHOLESKY": ("CHOLESKY", {"check": False}, lambda x: L.cholesky_ex(x)[0]),
    "CHOLESKY_INFO": ("CHOLESKY_INFO", {}, lambda x: L.cholesky_ex(x)[1]),
    "DET": ("DET", {}, L.det),
    "SLOGDET": ("SLOGDET", {}, L.slogdet),
    "QR": ("QR", {}, L.qr),
    "LU": ("LU", {}, lambda x: L.lu_factor(x)[0]),
    "MATRIX_EXP": ("MATRIX_EXP", {}, L.matrix_exp),
}

VALUES = [math.inf, -math.inf, math.nan, 1e308]
PLACES = [(0, 0), (0, 1), (1, 0), (3, 2)]


def matrices(value, place, is_complex):
    """Two that are positive definite, the second but for an element."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 4, 4))
    x = x + 1j * rng.standard_normal(x.shape) if is_complex else x
    x = x @ np.conj(np.swapaxes(x, -1, -2)) + np.eye(4)
    x[1][place] = value
    with np.errstate(over="ignore"):
        return x.astype(np.complex64 if is_complex else np.float32)


def evaluated(name, attrs, x):
    """All results; None where the op refuses the matrix. None of complex numbers is a pair."""
    if np.iscomplexobj(x):
        name = "COMPLEX_" + name
        x = np.stack([x.real, x.imag], -1)
    op = REGISTRY[name]
    try:
        return op.evaluate_all([x], op.complete(attrs))
    except InputError:
        return None


def given(function, x):
    """What torch gives; None where it raises."""
    try:
        found = function(torch.from_numpy(x))
    except RuntimeError:
        return None
    return [part.numpy() for part in (found if isinstance(found, tuple) else (found,))]


@pytest.mark.parametrize("name", [*ITERATED, *DIRECT])
@pytest.mark.parametrize("is_complex", [False, True])
def test_what_is_not_finite_gives_nan_or_an_error_as_in_torch(name, is_complex):
    op, attrs, function = (ITERATED | DIRECT)[name]
    for value, place in product(VALUES, PLACES):
        x = matrices(value, place, is_complex)
        got, want = evaluated(op, attrs, x), given(function, x)
        assert (got is None) == (want is None), (value, place)
        if got is None:
            continue
        first, second = [[part[i] for part in want] for i in range(2)]
        assert not any(np.isnan(part).any() for part in first)
        assert not any(np.isnan(part[0]).any() for part in got), "the other matrix has its result"
        if name not in ITERATED:
            continue
        failed = any(np.isnan(part).any() for part in second)
        complex_parts = [i for i, part in enumerate(want) if np.iscomplexobj(part)]
        for i, part in enumerate(got):
            undefined = np.isnan(part[1])
            undefined = undefined.any(-1) if i in complex_parts else undefined
            assert undefined.all() == failed, (value, place)


@pytest.mark.parametrize("place", [(0, 1), (2, 32), (1, 0)])
@pytest.mark.parametrize("shape", [(3, 33), (33, 3), (33, 33)])
def test_the_svd_of_an_infinity_ends(shape, place):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x[place if place[0] < shape[0] and place[1] < shape[1] else (0, 1)] = np.inf
    for attrs in ({}, {"vectors": False}, {"full": True}):
        assert all(np.isnan(part).all() for part in evaluated("SVD", attrs, x))


@pytest.mark.parametrize("largest", [3e38, 1e308])
@pytest.mark.parametrize("name", [*ITERATED, *DIRECT])
def test_the_largest_numbers_end(name, largest):
    op, attrs, _ = (ITERATED | DIRECT)[name]
    dtype = np.float32 if largest < 1e39 else np.float64
    for shape in ((4, 4), (33, 33)):
        x = (np.random.default_rng(0).uniform(-1, 1, shape) * largest).astype(dtype)
        evaluated(op, attrs, x)
