"""torchao's own quantizers: plans give what torch computes with the quantized module.

Run by `nox -s torchao`, which installs the version of torchao that goes with torch.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchao.quantization import quant_api
from torchao.quantization import quantize_ as apply
from torchao.quantization.granularity import PerAxis, PerGroup
from torchao.quantization.pt2e import quantize_pt2e
from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86
from torchao.quantization.quant_primitives import MappingType

import taper_frontend
from taper_runtime import InferenceSession

K, HIDDEN, N = 128, 256, 96  # larger than what an export may store as floats


class Layers(nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(K, HIDDEN), nn.Linear(HIDDEN, N)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class Image(nn.Module):
    """Convolutions with a sum, a pool and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 8)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = torch.relu(self.norm(self.second(x)) + x)
        return self.head(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


def formats_of(plan):
    """Return the formats, or dtypes, of the weights of products."""
    weights = [plan.tensors[n.inputs[1]] for n in plan.nodes if n.op in ("MATMUL", "CONV")]
    return [w.format if w.format.startswith("blocks") else w.dtype for w in weights]


def check(module, x, exported, *, atol):
    """Compare the plan of what is exported with torch's results of a module; return the plan."""
    plan = taper_frontend.export(exported, (x,) if exported is module else None)
    (name,) = plan.inputs
    (got,) = InferenceSession(plan).run(None, {name: x.numpy()})
    with torch.no_grad():
        want = module(x)
    torch.testing.assert_close(torch.from_numpy(got), want, rtol=0, atol=atol)
    return plan


def int_x(dtype, granularity, mapping=MappingType.SYMMETRIC):
    return quant_api.IntxWeightOnlyConfig(dtype, granularity, mapping)


#: torchao's configs, and the formats of both weights.
CONFIGS = {
    "int8": (quant_api.Int8WeightOnlyConfig(version=2), ["int8"] * 2),
    "int8 in groups": (
        quant_api.Int8WeightOnlyConfig(granularity=PerGroup(32), version=2),
        ["blocks.8.32.float32.symmetric"] * 2,
    ),
    "float8": (
        quant_api.Float8WeightOnlyConfig(),
        ["blocks.e4m3.128.float32.symmetric", "blocks.e4m3.256.float32.symmetric"],
    ),
    "float8 in groups": (
        quant_api.Float8WeightOnlyConfig(granularity=PerGroup(32)),
        ["blocks.e4m3.32.float32.symmetric"] * 2,
    ),
    "int2": (int_x(torch.int2, PerGroup(32)), ["blocks.2.32.float32.symmetric"] * 2),
    "int3": (int_x(torch.int3, PerGroup(32)), ["blocks.4.32.float32.symmetric"] * 2),
    "int4": (int_x(torch.int4, PerGroup(32)), ["blocks.4.32.float32.symmetric"] * 2),
    "int4, asymmetric": (
        int_x(torch.int4, PerGroup(32), MappingType.ASYMMETRIC),
        ["blocks.4.32.float32.zeros"] * 2,
    ),
    "int4 by channel": (
        int_x(torch.int4, PerAxis(0)),
        ["blocks.4.128.float32.symmetric", "blocks.4.256.float32.symmetric"],
    ),
    "int8 of many bits": (int_x(torch.int8, PerGroup(32)), ["blocks.8.32.float32.symmetric"] * 2),
    "dynamic int8": (quant_api.Int8DynamicActivationInt8WeightConfig(version=2), ["int8"] * 2),
    "dynamic int8 by int4": (
        quant_api.Int8DynamicActivationIntxWeightConfig(torch.int4, PerGroup(32)),
        ["blocks.4.32.float32.symmetric"] * 2,
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_configs_of_quantize(name):
    config, formats = CONFIGS[name]
    module, x = Layers().eval(), torch.randn(5, K)
    apply(module, config)
    plan = check(module, x, module, atol=2e-5)
    assert formats_of(plan) == formats


class Language(nn.Module):
    """A table, and a layer over its rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.table, self.head = nn.Embedding(100, 64), nn.Linear(64, 100)

    def forward(self, i):
        return self.head(self.table(i))


#: Configs of tables, and the dtype or format of what is looked up first.
TABLES = {
    "int8": (quant_api.Int8WeightOnlyConfig(version=2), "int8"),
    "int4": (int_x(torch.int4, PerGroup(32)), "blocks.4.32.float32.symmetric"),
    "float8": (quant_api.Float8WeightOnlyConfig(), "blocks.e4m3.64.float32.symmetric"),
}


@pytest.mark.parametrize("name", TABLES)
def test_quantized_tables(name):
    config, form = TABLES[name]
    module, i = Language().eval(), torch.tensor([[3, 0, 99]])
    apply(module, config, lambda layer, _: isinstance(layer, nn.Embedding))
    plan = check(module, i, module, atol=1e-5)
    first = plan.tensors[plan.nodes[0].inputs[0]]
    assert form in (first.dtype, first.format)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dynamic_activations_of_16_bits(dtype):
    module, x = Layers().eval().to(dtype), torch.randn(5, K).to(dtype)
    apply(module, quant_api.Int8DynamicActivationInt8WeightConfig(version=2))
    plan = taper_frontend.export(module, (x,))
    bits = x.view(torch.uint16) if dtype == torch.bfloat16 else x
    (got,) = InferenceSession(plan).run(None, {plan.inputs[0]: bits.numpy()})
    with torch.no_grad():
        want = module(x)
    torch.testing.assert_close(torch.from_numpy(got).to(dtype), want, rtol=2e-2, atol=2e-2)


def prepared(module, x, quantizer, *, trains=False):
    """Capture, quantize and convert as PT2E does."""
    program = torch.export.export(module, (x,)).module()
    if trains:
        ready = quantize_pt2e.prepare_qat_pt2e(program, quantizer)
    else:
        ready = quantize_pt2e.prepare_pt2e(program, quantizer)
    for _ in range(2):
        ready(x)
    return quantize_pt2e.convert_pt2e(ready)


@pytest.mark.parametrize("kind", ["static", "dynamic", "qat"])
def test_x86_quantizer(kind):
    quantizer = x86.X86InductorQuantizer().set_global(
        x86.get_default_x86_inductor_quantization_config(
            is_dynamic=kind == "dynamic", is_qat=kind == "qat"
        )
    )
    module = Layers() if kind == "dynamic" else Image()
    x = torch.randn(5, K) if kind == "dynamic" else torch.randn(2, 3, 8, 8)
    module.train(kind == "qat")
    made = prepared(module, x, quantizer, trains=kind == "qat")
    plan = check(made, x, torch.export.export(made, (x,)), atol=1e-4)
    kinds = [node.attrs.get("accumulate") for node in plan.nodes if node.op == "MATMUL"]
    assert kinds == ["int32"] * len(kinds)
    if kind != "dynamic":
        assert "int32" in [n.attrs.get("accumulate") for n in plan.nodes if n.op == "CONV"]
