"""torch.linalg: results beside torch's, factors by what they are made of, errors by name."""

import pytest
import torch

from lowering import Call, check_lowering, lower_model, ops_of
from marks import NUMPY, some
from taper_frontend import export
from taper_frontend.errors import ExportError
from taper_runtime import InferenceSession, InputError

pytestmark = NUMPY

L = torch.linalg
DTYPES = pytest.mark.parametrize(
    "dtype", some([torch.float32, torch.float64], [torch.float32]), ids=str
)
BATCHES = ((), (3,), (2, 0), (2, 3))


def matrices(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def positive(*shape, dtype=torch.float32):
    """Symmetric matrices whose eigenvalues are 1 or more."""
    x = matrices(*shape, dtype=dtype)
    return x @ x.mT + torch.eye(shape[-1], dtype=dtype)


def plan_of(function, *args, **kwargs):
    return export(Call(function).eval(), args, verify=False, **kwargs)


def run(function, *args):
    """Export for ``args`` and run the plan on them."""
    session = InferenceSession(plan_of(function, *args))
    feed = {arg.name: x.numpy() for arg, x in zip(session.get_inputs(), args, strict=True)}
    return [torch.from_numpy(x) for x in session.run(None, feed)]


@DTYPES
def test_equations_and_determinants(dtype):
    inputs = [positive(*batch, 4, 4, dtype=dtype) for batch in BATCHES]
    inputs += [matrices(*batch, 4, 2, dtype=dtype, seed=1) for batch in BATCHES]

    def compute(a, b):
        return [
            L.inv(a),
            L.solve(a, b),
            L.solve(a, b.mT, left=False),
            L.solve(a, b[..., 0]),
            L.solve_triangular(a, b, upper=False),
            L.solve_triangular(a, b.mT, upper=True, left=False, unitriangular=True),
            L.cholesky(a),
            L.cholesky(a, upper=True),
            torch.cholesky_solve(b, L.cholesky(a)),
            torch.cholesky_solve(b, L.cholesky(a, upper=True), upper=True),
            torch.cholesky_inverse(L.cholesky(a)),
            L.det(a),
            *L.slogdet(a),
            torch.logdet(a),
            L.svdvals(b),
            L.eigvalsh(a),
            L.matrix_power(a, -2),
            L.pinv(b),
            L.matrix_exp(a / 4),
            *L.lu(b),
            *L.lu_factor(a),
        ]

    check_lowering(
        lambda *inputs: list(map(compute, inputs[: len(BATCHES)], inputs[len(BATCHES) :])),
        *inputs,
        rtol=1e-4 if dtype == torch.float32 else 1e-9,
        atol=1e-5 if dtype == torch.float32 else 1e-9,
    )


def check_identity(x):
    want = torch.eye(x.shape[-1], dtype=x.dtype).expand_as(x)
    torch.testing.assert_close(x, want, rtol=0, atol=1e-5)


@DTYPES
def test_factors_are_orthogonal_and_make_the_matrix(dtype):
    """Their signs are LAPACK's choice, which differs between builds."""
    shapes = ((4, 4), (5, 3), (3, 5))
    inputs = [matrices(*batch, *shape, dtype=dtype) for batch in BATCHES for shape in shapes]

    def decompose(*inputs):
        return [
            (*L.qr(a), *L.qr(a, "complete"), L.qr(a, "r")[1], *L.svd(a), *L.svd(a, False))
            for a in inputs
        ]

    results = iter(run(decompose, *inputs))
    for a in inputs:
        for _ in range(2):
            q, r = next(results), next(results)
            check_identity(q.mT @ q)
            assert not r.tril(-1).any()
            torch.testing.assert_close(q @ r, a, rtol=1e-5, atol=1e-5)
        assert q.shape[-1] == a.shape[-2]  # complete
        torch.testing.assert_close(next(results).abs(), L.qr(a, "r")[1].abs(), rtol=1e-4, atol=1e-5)
        for full in (True, False):
            u, s, vh = next(results), next(results), next(results)
            torch.testing.assert_close(s, L.svdvals(a), rtol=1e-5, atol=1e-5)
            check_identity(u.mT @ u)
            check_identity(vh @ vh.mT)
            k = min(a.shape[-2:])
            assert (u.shape[-1], vh.shape[-2]) == (a.shape[-2:] if full else (k, k))
            whole = (u[..., :k] * s[..., None, :]) @ vh[..., :k, :]
            torch.testing.assert_close(whole, a, rtol=1e-5, atol=1e-5)


@DTYPES
@pytest.mark.parametrize("triangle", ["L", "U"])
def test_eigenvectors_make_the_matrix(triangle, dtype):
    inputs = [matrices(*batch, 5, 5, dtype=dtype) for batch in BATCHES]  # one triangle counts
    results = iter(run(lambda *inputs: [L.eigh(a, triangle) for a in inputs], *inputs))
    for a in inputs:
        w, v = next(results), next(results)
        half = a.tril() if triangle == "L" else a.triu()
        whole = half + half.mT - torch.diag_embed(a.diagonal(dim1=-2, dim2=-1))
        torch.testing.assert_close(w, L.eigvalsh(a, triangle), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close((v * w[..., None, :]) @ v.mT, whole, rtol=1e-4, atol=1e-5)


def test_triangles_of_any_size():
    sizes = (1, 31, 32, 33, 100)
    inputs = [torch.eye(size) + matrices(size, size) / size for size in sizes]
    inputs += [matrices(size, 7, seed=1) for size in sizes]

    def solve(*inputs):
        return [
            L.solve_triangular(a, b, upper=upper)
            for a, b in zip(inputs[: len(sizes)], inputs[len(sizes) :], strict=True)
            for upper in (False, True)
        ]

    for got, want in zip(run(solve, *inputs), solve(*inputs), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


SINGULAR = torch.stack([torch.eye(3), torch.eye(3) * 2, torch.ones(3, 3), torch.eye(3)])
INDEFINITE = torch.stack([*[torch.eye(2)] * 3, torch.tensor([[1.0, 2], [2, 1]])])


@pytest.mark.parametrize(
    ("function", "x", "message"),
    [
        (
            L.inv,
            SINGULAR,
            r"\(INVERSE\): expected an invertible matrix, but matrix 2 of the batch is not one",
        ),
        (
            L.inv,
            SINGULAR[2],
            r"\(INVERSE\): expected an invertible matrix, but the matrix is not one",
        ),
        (lambda x: L.inv(x[None]), SINGULAR, "matrix 0, 2 of the batch"),
        (
            lambda x: L.solve(x, x),
            SINGULAR,
            r"\(SOLVE\): expected an invertible matrix, but matrix 2",
        ),
        (
            L.cholesky,
            INDEFINITE,
            r"\(CHOLESKY\): expected a positive definite matrix, but matrix 3 of",
        ),
        (lambda x: L.cholesky_ex(x, check_errors=True)[0], INDEFINITE, "CHOLESKY.* matrix 3 of"),
        (L.svdvals, SINGULAR * torch.nan, r"\(SVD\): expected a matrix without NaN, but matrix 0"),
        (
            L.eigvalsh,
            SINGULAR * torch.inf,
            r"\(EIGH\): expected a matrix without NaN, but matrix 0",
        ),
    ],
)
def test_what_torch_refuses_is_an_error_of_the_run(function, x, message):
    session = InferenceSession(plan_of(function, torch.eye(x.shape[-1]).expand_as(x)))
    good = torch.eye(x.shape[-1]).expand_as(x).contiguous().numpy()
    (name,) = (arg.name for arg in session.get_inputs())
    session.run(None, {name: good})
    with pytest.raises(InputError, match=message):
        session.run(None, {name: x.numpy()})
    with pytest.raises(RuntimeError):
        function(x)
    session.run(None, {name: good})  # the session lives on


def test_unchecked_factors_say_where_they_stopped():
    """The rest of the batch is right; what is not is torch's to choose, and NaN here."""
    x = SINGULAR.double()
    inverse, info = run(lambda x: L.inv_ex(x), x)
    want, torchs = L.inv_ex(x)
    good = torch.tensor([0, 1, 3])
    torch.testing.assert_close(inverse[good], want[good])
    assert inverse[2].isnan().all()
    torch.testing.assert_close(info, torchs)

    x = torch.cat([INDEFINITE, -INDEFINITE[:1]])
    factor, info = run(lambda x: L.cholesky_ex(x), x)
    torch.testing.assert_close(info, L.cholesky_ex(x)[1])
    torch.testing.assert_close(factor[:3], L.cholesky_ex(x)[0][:3])
    assert factor[3:].isnan().all()


def test_what_weights_alone_decide_is_folded():
    """Glow's determinant, a Gaussian process's Cholesky factor, an inverse."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(positive(4, 4))

        def forward(self, x):
            factor = L.cholesky(self.weight)
            return x @ L.inv(self.weight), L.slogdet(self.weight)[1] + x.sum(), x @ factor

    model, x = Model().eval(), matrices(2, 4)
    plan = export(model, (x,))
    ops = {node.op for node in plan.nodes}
    assert not ops & {"INVERSE", "SLOGDET", "CHOLESKY"}
    assert plan.metadata["fallbacks"] == []


def test_weights_that_cannot_be_factorized_stop_the_export():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(-torch.eye(3))

        def forward(self, x):
            return x @ L.cholesky(self.weight)

    with pytest.raises(ExportError, match=r"CHOLESKY: expected a positive definite .* in forward"):
        export(Model().eval(), (matrices(2, 3),))


def test_any_batch():
    """Sizes of batch and matrix may vary."""
    n, size = torch.export.Dim("n", min=1, max=9), torch.export.Dim("size", min=2, max=9)
    a = positive(2, 4, 4)
    function = Call(
        lambda a: [L.inv(a), L.slogdet(a)[1], L.qr(a)[1].abs(), L.eigh(a)[0], L.svd(a).S]
    ).eval()
    shapes = [({0: n, 1: size, 2: size},)]
    plan = export(function, (a,), dynamic_shapes=shapes, verify=False)
    session = InferenceSession(plan)
    for sizes in ((1, 2, 2), (5, 7, 7), (2, 4, 4)):
        a = positive(*sizes)
        for got, want in zip(session.run(None, {"args_0": a.numpy()}), function(a), strict=True):
            torch.testing.assert_close(torch.from_numpy(got), want, rtol=1e-4, atol=1e-4)


def test_a_kalman_step():
    """Predict and update, with the gain from a solved system."""

    class Kalman(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.f = torch.nn.Parameter(torch.tensor([[1.0, 0.1], [0, 1]]))
            self.h = torch.nn.Parameter(torch.tensor([[1.0, 0]]))
            self.q = torch.nn.Parameter(0.01 * torch.eye(2))

        def forward(self, x, p, z):
            x, p = self.f @ x, self.f @ p @ self.f.mT + self.q
            s = self.h @ p @ self.h.mT + 0.1 * torch.eye(1)
            gain = p @ self.h.mT @ L.inv(s)
            same = L.solve(s, self.h @ p).mT
            return x + gain @ (z - self.h @ x), p - same @ self.h @ p

    args = (matrices(3, 2, 1), positive(3, 2, 2), matrices(3, 1, 1))
    model = Kalman().eval()
    check_lowering(model, *args)
    session = InferenceSession(export(model, args, verify=False))
    got = session.run(None, dict(zip("xpz", [a.numpy() for a in args], strict=True)))
    for mine, want in zip(got, model(*args), strict=True):
        torch.testing.assert_close(torch.from_numpy(mine), want.detach())


def test_a_gaussian_process():
    """The predictive mean and variance; the kernel's factor depends on weights alone."""

    class Process(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.x = torch.nn.Parameter(matrices(12, 2))
            self.y = torch.nn.Parameter(matrices(12, 1, seed=1))

        def kernel(self, a, b):
            return torch.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / 2)

        def forward(self, x):
            factor = L.cholesky(self.kernel(self.x, self.x) + 0.1 * torch.eye(12))
            cross = self.kernel(self.x, x)
            v = L.solve_triangular(factor, cross, upper=False)
            return cross.mT @ torch.cholesky_solve(self.y, factor), 1 - (v * v).sum(0)

    model, x = Process().eval(), matrices(5, 2, seed=2)
    plan = export(model, (x,))
    assert {f["op"] for f in plan.metadata["fallbacks"]} == {"SOLVE_TRIANGULAR"}
    assert plan.metadata["verified"]["relative_error"] < 1e-4


def test_an_invertible_convolution():
    """Glow's 1x1 convolution, both ways, with its log-determinant."""

    class Glow(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(1.5 * L.qr(matrices(6, 6))[0])

        def forward(self, x):
            y = torch.nn.functional.conv2d(x, self.weight[:, :, None, None])
            inverse = torch.inverse(self.weight)[:, :, None, None]
            pixels = x.shape[2] * x.shape[3]
            return y, torch.slogdet(self.weight)[1] * pixels, torch.nn.functional.conv2d(y, inverse)

    plan = export(Glow().eval(), (matrices(2, 6, 5, 5),))
    assert plan.metadata["fallbacks"] == []
    assert plan.metadata["verified"]["relative_error"] < 1e-4


def test_results_nobody_reads_are_not_computed():
    """Singular values alone need no vectors."""
    graph = lower_model(lambda a: L.svd(a).S + L.eigh(a @ a.mT)[0], matrices(3, 3)).graph
    (svd,) = (node for node in graph.order() if node.op == "SVD")
    (eigh,) = (node for node in graph.order() if node.op == "EIGH")
    assert not svd.attrs["vectors"]
    assert not eigh.attrs["vectors"]
    assert "LU" not in ops_of(lower_model(L.det, matrices(3, 3)).graph)
