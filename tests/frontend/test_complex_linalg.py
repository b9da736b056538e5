"""torch.linalg on complex numbers: results beside torch's, factors by what they are made of."""

import numpy as np
import pytest
import torch

from lowering import Call
from marks import NUMPY
from taper_frontend import export
from taper_runtime import InferenceSession, InputError

pytestmark = NUMPY

L = torch.linalg
DTYPES = pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)


def numbers(*shape, dtype=torch.complex64, seed=0):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def hermitian(*shape, dtype=torch.complex64):
    """Positive definite matrices."""
    x = numbers(*shape, dtype=dtype)
    return x @ x.mH + 2 * torch.eye(shape[-1])


def run(function, *args):
    session = InferenceSession(export(Call(function).eval(), args, verify=False))
    feed = {arg.name: x.numpy() for arg, x in zip(session.get_inputs(), args, strict=True)}
    return [torch.from_numpy(x) for x in session.run(None, feed)]


def close(got, want, dtype):
    tolerance = 1e-11 if dtype == torch.complex128 else 1e-4
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


@DTYPES
def test_equations_and_determinants(dtype):
    a, b = hermitian(3, 4, 4, dtype=dtype), numbers(3, 4, 2, dtype=dtype, seed=1)

    def compute(a, b):
        return [
            L.inv(a),
            L.solve(a, b),
            L.solve(a, b.mT, left=False),
            L.solve_triangular(a, b, upper=False),
            L.solve_triangular(a, b.mT, upper=True, left=False),
            L.cholesky(a),
            L.cholesky(a, upper=True),
            torch.cholesky_solve(b, L.cholesky(a)),
            torch.cholesky_solve(b, L.cholesky(a, upper=True), upper=True),
            torch.cholesky_inverse(L.cholesky(a)),
            L.det(a),
            *L.slogdet(a),
            L.svdvals(a),
            L.eigvalsh(a),
            L.eigvalsh(a, UPLO="U"),
        ]

    for got, want in zip(run(compute, a, b), compute(a, b), strict=True):
        assert got.dtype == want.dtype
        close(got, want, dtype)


@DTYPES
def test_factors(dtype):
    """Their product is the matrix; what is unitary times its adjoint is the identity."""
    x = numbers(2, 5, 3, dtype=dtype)
    q, r = run(lambda x: [*L.qr(x)], x)
    close(q @ r, x, dtype)
    close(q.mH @ q, torch.eye(3, dtype=dtype).expand(2, 3, 3), dtype)
    assert not r.tril(-1).any()
    u, s, vh = run(lambda x: [*L.svd(x, full_matrices=False)], x)
    assert s.dtype == x.real.dtype
    close(u * s[:, None].to(dtype) @ vh, x, dtype)
    h = hermitian(2, 4, 4, dtype=dtype)
    values, vectors = run(lambda x: [*L.eigh(x)], h)
    close(vectors * values[:, None].to(dtype) @ vectors.mH, h, dtype)


@DTYPES
@pytest.mark.parametrize("shape", [(4, 4), (2, 5, 3), (2, 3, 5), (0, 3, 3)])
def test_lu(dtype, shape):
    """Pivots and all: LAPACK compares the sums of the parts' magnitudes."""
    x = numbers(*shape, dtype=dtype)

    def compute(x):
        return [*L.lu(x), *L.lu_factor_ex(x)]

    for got, want in zip(run(compute, x), compute(x), strict=True):
        assert got.dtype == want.dtype
        close(got, want, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.complex128], ids=str)
def test_solutions_with_their_factors(dtype):
    a, b = numbers(2, 3, 3, dtype=dtype), numbers(2, 3, 2, dtype=dtype, seed=1)

    def compute(a, b):
        return [
            *L.inv_ex(a),
            *torch._linalg_solve_ex(a, b),
            *torch._linalg_solve_ex(a, b.mT, left=False),
            torch.matrix_exp(4 * a),
        ]

    for got, want in zip(run(compute, a, b), compute(a, b), strict=True):
        assert got.dtype == want.dtype
        close(got, want, dtype)


@DTYPES
def test_pseudoinverse(dtype):
    x = numbers(5, 3, dtype=dtype)
    (got,) = run(lambda x: [L.pinv(x)], x)
    close(got, L.pinv(x), dtype)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128], ids=str
)
def test_eigenvalues_of_any_matrix(dtype):
    x = numbers(2, 5, 5, dtype=dtype)
    values, vectors, alone = run(lambda x: [*L.eig(x), L.eigvals(x)], x)
    is_single = dtype in (torch.float32, torch.complex64)
    wide = torch.complex64 if is_single else torch.complex128
    assert (values.dtype, vectors.dtype) == (wide, wide)
    close(x.to(wide) @ vectors, vectors * values[:, None], wide)
    close(vectors.abs().square().sum(1), torch.ones(2, 5, dtype=values.real.dtype), wide)
    for got in (values, alone):  # in whatever order
        for mine, theirs in zip(got, L.eigvals(x), strict=True):
            distances = (mine[:, None] - theirs).abs()
            close(distances.amin(0), torch.zeros(5, dtype=distances.dtype), wide)
            close(distances.amin(1), torch.zeros(5, dtype=distances.dtype), wide)


@DTYPES
def test_products_of_elements(dtype):
    x = numbers(2, 3, 4, dtype=dtype)

    def compute(x):
        return [x.prod(), x.prod(1), x.prod(-1, keepdim=True)]

    for got, want in zip(run(compute, x), compute(x), strict=True):
        close(got, want, dtype)


def test_errors_name_the_matrix():
    a = hermitian(2, 3, 3)
    session = InferenceSession(export(Call(L.inv).eval(), (a,)))
    broken = a.numpy().copy()
    broken[1] = 0
    with pytest.raises(InputError, match="INVERSE: expected an invertible matrix, but matrix 1 of"):
        session.run(None, {session.get_inputs()[0].name: broken})
    eig = InferenceSession(export(Call(L.eig).eval(), (torch.eye(3),), verify=False))
    with pytest.raises(InputError, match=r"\(EIG\): expected a matrix of finite numbers"):
        eig.run(None, {eig.get_inputs()[0].name: np.full((3, 3), np.nan, np.float32)})
