"""Products of quantized graphs multiply bytes, with what follows as their epilogue."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.ao.quantization.fx import _decomposed  # noqa: F401  (defines quantized_decomposed)

import taper_frontend
from taper_runtime import InferenceSession
from torchao_ops import ops as torchao

decomposed = torch.ops.quantized_decomposed


class Quantized(torch.nn.Module):
    """A weight as levels with a factor for each output, and a bias."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        levels = torch.randint(-127, 128, shape, generator=generator).to(torch.int8)
        self.register_buffer("levels", levels)
        self.register_buffer("factors", torch.rand(shape[0], generator=generator) / 50 + 1e-3)
        self.register_buffer("zeros", torch.zeros(shape[0], dtype=torch.int64))
        self.register_buffer("bias", torch.randn(shape[0], generator=generator))

    def weight(self) -> torch.Tensor:
        return decomposed.dequantize_per_channel(
            self.levels, self.factors, self.zeros, 0, -128, 127, torch.int8
        )


def fake(x: torch.Tensor, scale: float, zero: int, low: int = 0, high: int = 255) -> torch.Tensor:
    dtype = torch.uint8 if high == 255 else torch.int8
    q = decomposed.quantize_per_tensor(x, scale, zero, low, high, dtype)
    return decomposed.dequantize_per_tensor(q, scale, zero, low, high, dtype)


class StaticLinear(Quantized):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.linear(fake(x, 0.03, 130), self.weight(), self.bias)
        return fake(torch.relu(y), 0.06, 0)


class StaticConv(Quantized):
    def __init__(self, *shape: int, zero: int = 0, **options: int) -> None:
        super().__init__(*shape)
        self.zero, self.options = zero, options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = fake(x, 0.03, self.zero, *((0, 255) if self.zero else (-128, 127)))
        y = torch.nn.functional.conv2d(x, self.weight(), self.bias, **self.options)
        return fake(torch.relu(y), 0.06, 0)


class DynamicLinear(Quantized):
    """What torchao makes of Int8DynamicActivationInt8Weight on x86."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        block, int8 = [1, x.shape[-1]], torch.int8
        scale, zero = torchao.choose_qparams_affine(
            x, "SYMMETRIC", block, int8, -128, 127, 1.19e-07, torch.float32, int8, True
        )
        q = torchao.quantize_affine(x, block, scale, zero, int8, -128, 127)
        weight = self.levels.permute(1, 0)
        sums = torch._int_mm((q.to(torch.int32) + 128).to(torch.uint8), weight)
        sums = sums - weight.sum(0, keepdim=True, dtype=torch.int32) * 128
        return sums.to(torch.float32) * scale.reshape(-1, 1) * self.factors + self.bias


def check(module: torch.nn.Module, x: torch.Tensor) -> None:
    """Compare with torch, and look for one node of bytes with everything after it."""
    wanted = module(x).numpy()
    plan = taper_frontend.export(module, (x,))
    (node,) = (node for node in plan.nodes if node.op in ("MATMUL", "CONV"))
    assert node.attrs["accumulate"] == "int32"
    assert node.attrs["code"], "the node has no epilogue"
    weight = plan.tensors[node.inputs[1]]
    assert weight.dtype == "int8"
    after = plan.nodes[plan.nodes.index(node) + 1 :]
    assert all(each.op in ("MAP", "CAST", "TRANSPOSE", "PERMUTE", "COPY") for each in after)
    session = InferenceSession(plan)
    (got,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    # A number within a rounding error of the middle between two levels may be one level off.
    differs = np.abs(got - wanted) > 1e-4 * np.abs(wanted).max()
    assert differs.mean() < 0.002
    assert np.abs(got - wanted).max() <= 0.0601


@pytest.mark.parametrize("rows", [1, 5, 70])
def test_static_linear(rows: int) -> None:
    torch.manual_seed(0)
    check(StaticLinear(40, 70), torch.randn(rows, 70))
    check(StaticLinear(300, 512), torch.randn(rows, 512))


@pytest.mark.parametrize("rows", [1, 70])
def test_dynamic_linear(rows: int) -> None:
    torch.manual_seed(0)
    check(DynamicLinear(40, 72), torch.randn(rows, 72))


@pytest.mark.parametrize("zero", [0, 120])
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((24, 8, 1, 1), {}),
        ((24, 8, 3, 3), {"padding": 1}),
        ((24, 8, 3, 3), {"stride": 2, "padding": 1}),
        ((8, 1, 3, 3), {"groups": 8, "padding": 1}),
        ((24, 2, 3, 3), {"groups": 4}),
    ],
)
def test_static_convolution(zero: int, shape: tuple[int, ...], options: dict[str, int]) -> None:
    torch.manual_seed(0)
    check(StaticConv(*shape, zero=zero, **options), torch.randn(1, 8, 12, 11))


def test_int_mm_of_every_pair_of_dtypes() -> None:
    """The sums are torch's."""

    class Product(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch._int_mm(a, b)

    generator = torch.Generator().manual_seed(0)
    b = torch.randint(-128, 128, (48, 40), generator=generator).to(torch.int8)
    for low, dtype in ((-128, torch.int8), (0, torch.uint8)):
        a = torch.randint(low, low + 256, (33, 48), generator=generator).to(dtype)
        plan = taper_frontend.export(Product(), (a, b))
        session = InferenceSession(plan)
        names = [each.name for each in session.get_inputs()]
        (got,) = session.run(None, dict(zip(names, (a.numpy(), b.numpy()), strict=True)))
        wanted = a.numpy().astype(np.int64) @ b.numpy().astype(np.int64)
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, wanted)
