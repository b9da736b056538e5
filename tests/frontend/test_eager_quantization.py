"""Modules of torch's eager quantization, whose parameters torch has packed, and fp16 products."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import taper_frontend
import taper_runtime

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch.ao.quantization is deprecated
    from torch.ao import quantization

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.ao"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.fixture(autouse=True)
def engine(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(torch.backends.quantized, "engine", "x86")


def run(module, x, **options):
    """The plan, its result and torch's."""
    plan = taper_frontend.export(module, (x,), **options)
    (got,) = taper_runtime.InferenceSession(plan).run(None, {plan.inputs[0]: x.numpy()})
    with torch.no_grad():
        return plan, got, module(x).numpy()


def integer_products(plan):
    return [node.op for node in plan.nodes if node.attrs.get("accumulate")]


def two_layers():
    return nn.Sequential(nn.Linear(32, 300), nn.ReLU(), nn.Linear(300, 8)).eval()


@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16])
def test_dynamic_layers(dtype):
    module = quantization.quantize_dynamic(two_layers(), {nn.Linear}, dtype=dtype)
    plan, got, want = run(module, torch.randn(4, 32))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert integer_products(plan) == ["MATMUL"] * (2 * (dtype == torch.qint8))
    (told,) = plan.metadata["quantized"]["distance"].values()
    assert told["relative_error"] < 1e-6


class Static(nn.Module):
    def __init__(self):
        super().__init__()
        self.quant, self.dequant = quantization.QuantStub(), quantization.DeQuantStub()
        self.first, self.relu = nn.Conv2d(3, 16, 3, padding=1), nn.ReLU()
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.sum = torch.ao.nn.quantized.FloatFunctional()
        self.head = nn.Linear(16 * 36, 10)

    def forward(self, x):
        y = self.relu(self.first(self.quant(x)))
        y = self.sum.add(y, self.second(y))
        return self.dequant(self.head(y.flatten(1)))


def test_static_layers():
    module, batches = Static().eval(), [torch.randn(2, 3, 6, 6) for _ in range(3)]
    module.qconfig = quantization.get_default_qconfig("x86")
    module = quantization.prepare(quantization.fuse_modules(module, [["first", "relu"]]))
    for batch in batches:
        module(batch)
    module = quantization.convert(module)
    plan, got, want = run(module, batches[0])
    assert integer_products(plan) == ["CONV", "CONV", "MATMUL"]
    step = float(module.head.scale)
    assert abs(got - want).max() < 1.01 * step  # torch rounds a few sums to the other side
    assert (abs(got - want) > step / 2).mean() < 0.1


def test_tables():
    module = nn.Sequential(nn.Embedding(50, 32)).eval()
    module.qconfig = quantization.float_qparams_weight_only_qconfig
    module = quantization.convert(quantization.prepare(module))
    plan, got, want = run(module, torch.arange(10).reshape(2, 5))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    assert "uint8" in {plan.tensors[name].dtype for name in plan.constants}


class Half(nn.Module):
    """NativeRT's products by weights rounded to float16, with numbers that it cannot hold."""

    def __init__(self, form):
        super().__init__()
        weight = torch.randn(96, 320)
        weight[0, :4] = torch.tensor([1e6, -1e6, 65519.0, 2e-8])
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.randn(96))
        self.form = form

    def forward(self, x):
        ops = torch.ops.quantized
        if self.form == "unpacked":
            return ops.linear_dynamic_fp16_unpacked_weight(x, self.weight, self.bias)
        packed = ops.linear_prepack_fp16(self.weight, self.bias)
        if self.form == "relu":
            return ops.linear_relu_dynamic_fp16(x, packed)
        return ops.linear_dynamic_fp16(x, packed)


@pytest.mark.parametrize("form", ["packed", "relu", "unpacked"])
def test_products_by_float16(form):
    plan, got, want = run(Half(form).eval(), torch.randn(3, 320))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    (node,) = (node for node in plan.nodes if node.op == "MATMUL")
    weight = plan.tensors[node.inputs[1]]
    assert (weight.dtype, weight.format) == ("float16", "panels.1")  # packed once, at export


def test_a_nan_becomes_the_least_number_as_in_torch():
    module = Half("unpacked").eval()
    module.weight.data[1, 1] = torch.nan
    _, got, want = run(module, torch.randn(3, 320))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert np.isfinite(got).all()
