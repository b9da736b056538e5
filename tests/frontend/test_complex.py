"""Complex numbers in models: pairs of reals in plans, numpy's complex numbers at their ends."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch

import taper_runtime
from complex_models import check, exported, numbers
from marks import NUMPY, STATE
from taper_frontend.errors import UnsupportedNodesError
from taper_runtime.base.errors import InputError
from taper_runtime.cli import main

pytestmark = [NUMPY, STATE]

torch.manual_seed(0)


def dumped(plan):
    with TemporaryDirectory() as folder:
        path = Path(folder) / "plan.taper"
        plan.save(path)
        return path.read_bytes()


X, Y = numbers(2, 3, 4), numbers(2, 3, 4)


FUNCTIONS = [
    lambda x, y: x + y - 2 * x,
    lambda x, y: x * y,
    lambda x, y: x * y.conj(),
    lambda x, y: x / y,
    lambda x, y: 1 / y + (2 + 1j) * x + 3,
    lambda x, y: x.abs() + y.angle(),
    lambda x, y: x.real * y.imag,
    lambda x, y: torch.polar(x.abs(), y.angle()),
    lambda x, y: torch.complex(x.real, y.imag),
    lambda x, y: torch.view_as_complex(torch.view_as_real(x) * 2) * y,
    lambda x, y: x.exp() * torch.cos(y) + torch.sin(x) - torch.tanh(y),
    lambda x, y: x.sqrt() + y.log() + x.square() + y.rsqrt(),
    lambda x, y: x**3 + y**0.5 + x**y,
    lambda x, y: x.sum(1) + y.mean(1, keepdim=True).sum(),
    lambda x, y: x @ y.transpose(1, 2),
    lambda x, y: torch.einsum("bij,bkj->bik", x, y),
    lambda x, y: torch.cat([x, y], 1).reshape(2, 6, 2, 2).permute(3, 0, 2, 1)[1:, :, :, ::2],
    lambda x, y: x[:, [2, 0]] + torch.roll(y, 1, 1)[:, :2].flip(2),
    lambda x, y: torch.where(x.real > 0, x, y),
    lambda x, y: (x == y) | (x != x),
    lambda x, y: torch.stack([x, y]).unsqueeze(0).expand(2, 2, 2, 3, 4).sum((0, 1)),
    lambda x, y: x.real.to(torch.complex64) * y,
    lambda x, y: torch.sgn(x) * y.sigmoid(),
    lambda x, y: torch.nn.functional.pad(x, (1, 2)) * 2j,
    lambda x, y: x.to(torch.complex128) * y,
    lambda x, y: x.cumsum(1).gather(1, torch.tensor([[[0, 1, 2, 0]], [[1, 1, 0, 2]]])),
    lambda x, y: torch.addmm(x[0], x[0], y[1, :, :3].new_ones(4, 4), alpha=2),
    lambda x, y: torch.isfinite(x) & ~torch.isnan(y) & ~torch.isinf(y),
    lambda x, y: torch.linalg.vector_norm(x, dim=-1) + y.abs().pow(2).sum(-1).sqrt(),
    lambda x, y: x.mul(y.real) / y.imag,
    lambda x, y: torch.log1p(x / 8) + torch.expm1(y / 8) + torch.nn.functional.silu(x),
    lambda x, y: x.asin() + y.acos() + x.atan() + y.asinh() + x.acosh() + y.atanh(),
    lambda x, y: x.var(1) + y.std(dim=(0, 2), keepdim=True).sum() + torch.dist(x, y),
    lambda x, y: torch.cumprod(x, -1) + torch.logcumsumexp(9 * y, 1),
    lambda x, y: torch.linspace(x[0, 0, 0], 2 - 1j, 7) * torch.linspace(-1j, y[0, 0, 0], 7),
    lambda x, y: torch.linspace(x[0, 0, 0], y[0, 0, 0], 6, dtype=x.dtype),
    lambda x, y: x.index_copy(1, torch.tensor([2, 0]), y[:, 1:]),
    lambda x, y: x.index_put((torch.tensor([1, 0]), torch.tensor([2, 2])), y[0, :2]),
    lambda x, y: torch.nn.functional.rms_norm(x, (3, 4), y[0]),
    lambda x, y: torch.nn.functional.rms_norm(x, (4,), eps=0.1),
    lambda x, y: (1e30 * x).abs() / 1e30 + (1e-30 * y).abs() * 1e30 + (0 * x).abs(),
]


def test_ops():
    """Functions of two complex tensors, captured together."""
    check(lambda x, y: [function(x, y) for function in FUNCTIONS], X, Y)


def test_running_sums_of_exponentials_of_any_size():
    x = torch.tensor([-torch.inf, -200, 1 + 2j, 1e-4j, 300, -5 + 1j, 300 + 3j], dtype=X.dtype)
    check(lambda x: torch.logcumsumexp(x, 0), x)


def test_a_product_is_one_node():
    plan = check(lambda x, y: x * y, X, Y)
    assert [node.op for node in plan.nodes] == ["COMPLEX_MUL"]


class Rotary(torch.nn.Module):
    """As LLaMA's own code has it: pairs of channels are turned by a constant angle."""

    def __init__(self, length=16, size=8):
        super().__init__()
        steps = 1.0 / 10000 ** (torch.arange(0, size, 2) / size)
        angles = torch.outer(torch.arange(length), steps)
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x):  # [batch, length, heads, size]
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        turns = self.turns[: x.shape[1]].view(1, x.shape[1], 1, -1)
        return torch.view_as_real(pairs * turns).flatten(3).type_as(x)


@pytest.mark.filterwarnings("ignore:dimension 1 of input 'x':taper_frontend.ExportWarning")
def test_rotary():
    """One node, with lengths that vary too; real at both ends."""
    x = torch.randn(2, 5, 3, 8)
    plan = check(Rotary(), x)
    assert [node.op for node in plan.nodes if plan.is_executed(node)] == ["COMPLEX_MUL"]
    varying = check(Rotary(), x, dynamic_axes={"x": {0: "batch", 1: "length"}})
    assert [node.op for node in varying.nodes if varying.is_executed(node)] == ["COMPLEX_MUL"]
    assert not any(spec.is_complex for spec in plan.tensors.values())


def test_ends():
    """Inputs and outputs are numpy's complex64, saved and loaded, without copies where they fit."""
    plan = exported(lambda x: (2 * x, x.real), X)
    loaded = taper_runtime.InferenceSession(dumped(plan))
    (item,) = loaded.get_inputs()
    assert (item.type, item.shape) == ("tensor(complex64)", [2, 3, 4])
    assert [item.type for item in loaded.get_outputs()] == ["tensor(complex64)", "tensor(float)"]
    x = X.numpy()
    double, real = loaded.run(None, {"x": x})
    assert double.dtype == np.complex64
    np.testing.assert_array_equal(double, 2 * x)
    np.testing.assert_array_equal(real, x.real)
    (turned,) = loaded.run(["output_0"], {"x": np.asarray(x.T.copy().T)})
    np.testing.assert_array_equal(turned, 2 * x)
    mine = np.empty_like(x)
    assert loaded.run(["output_0"], {"x": x}, out={"output_0": mine})[0] is mine
    np.testing.assert_array_equal(mine, 2 * x)
    (pairs,) = loaded.run(["output_0"], {"x": x.view(np.float32).reshape(2, 3, 4, 2)})
    np.testing.assert_array_equal(pairs, 2 * x)


def test_command_line(tmp_path, capsys):
    """The command reads and writes complex arrays; in JSON a number is its two parts."""
    exported(lambda x: 2 * x, X).save(tmp_path / "m.taper")
    np.save(tmp_path / "x.npy", X.numpy())
    line = ["run", str(tmp_path / "m.taper"), "--input", f"x={tmp_path / 'x.npy'}"]
    assert main([*line, "--json"]) == 0
    (output,) = json.loads(capsys.readouterr().out)["outputs"].values()
    assert (output["dtype"], output["shape"]) == ("complex64", [2, 3, 4])
    pairs = np.array(output["values"], np.float32)
    np.testing.assert_array_equal(pairs[..., 0] + 1j * pairs[..., 1], 2 * X.numpy())
    assert main([*line, "--output", str(tmp_path / "y.npz")]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "y.npz")["output"], 2 * X.numpy())


def test_scalars_and_empty_tensors():
    check(lambda x: x * 2, numbers())
    plan = exported(lambda x: x * 2, numbers(3), dynamic_axes={"x": {0: "n"}})
    session = taper_runtime.InferenceSession(plan)
    for size in (0, 1, 5):
        x = numbers(size).numpy()
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], 2 * x)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 3, 4), np.complex128), "expected dtype complex64, got complex128"),
        (np.zeros((2, 3), np.complex64), r"expected shape \(2, 3, 4\), got \(2, 3\)"),
        (np.zeros((2, 3, 5), np.complex64), "expected shape"),
        (np.zeros((2, 3, 4), np.int64), "expected dtype complex64, got int64"),
        ([1j], "expected a numpy array, got list"),
    ],
)
def test_bad_input(array, message):
    session = taper_runtime.InferenceSession(exported(lambda x: 2 * x, X))
    with pytest.raises(InputError, match=f"input 'x': {message}"):
        session.run(None, {"x": array})


def test_state():
    """A complex buffer that the module writes to is complex to its users."""

    class Turning(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("place", torch.ones(3, dtype=torch.complex64))

        def forward(self, turn):
            self.place.mul_(turn)
            return self.place.real.clone()

    session = taper_runtime.InferenceSession(exported(Turning(), numbers(3)))
    turn = np.exp(1j * np.arange(3)).astype(np.complex64)
    for _ in range(2):
        session.run(None, {"x": turn})
    np.testing.assert_allclose(session.get_state("place"), turn**2, rtol=1e-5)
    session.set_state("place", 2 * turn)
    session.run(None, {"x": turn})
    np.testing.assert_allclose(session.get_state("place"), 2 * turn**2, rtol=1e-5)


def test_what_is_refused():
    """What complex numbers do not have is refused by name; no imaginary part is lost silently."""
    with pytest.raises(UnsupportedNodesError, match="expected real numbers"):
        exported(lambda x: x.scatter(0, torch.zeros(1, 3, 4, dtype=int), x, reduce="multiply"), X)


def test_powers_are_as_exact_as_float32_allows():
    """exp(b log a) in float32 would lose what b log a has before the point."""
    generator = torch.Generator().manual_seed(0)
    x, y = (4 * torch.randn(1000, dtype=torch.complex64, generator=generator) for _ in range(2))
    plan = exported(lambda x, y: x**y, x, y)
    (got,) = taper_runtime.InferenceSession(plan).run(None, {"x": x.numpy(), "y": y.numpy()})
    exact = x.numpy().astype(np.complex128) ** y.numpy().astype(np.complex128)
    assert np.max(np.abs(got - exact) / np.abs(exact)) < 2e-7
