"""float16 and bfloat16: stored and moved as they are, computed in float32, rounded once per op."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import taper_frontend
import taper_runtime
from function_module import Function
from lowering import lower_model, ops_of
from marks import NUMPY
from taper_frontend.capture.tensors import to_numpy
from taper_runtime.executor.memory_use import memory_use

pytestmark = NUMPY
FLOATS_16_BIT = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


def run(model, *tensors):
    """What the plan of a model gives, as torch tensors of the model's dtypes."""
    wanted = [model(*tensors)] if isinstance(model(*tensors), torch.Tensor) else model(*tensors)
    module = model if isinstance(model, torch.nn.Module) else Function(model)
    plan = taper_frontend.export(module, tensors)
    session = taper_runtime.InferenceSession(plan)
    feed = dict(zip(plan.inputs, map(to_numpy, tensors), strict=True))
    got = [torch.from_numpy(array.copy()) for array in session.run(None, feed)]
    pairs = zip(got, wanted, strict=True)
    return plan, [x.bfloat16() if w.dtype == torch.bfloat16 else x for x, w in pairs], wanted


@FLOATS_16_BIT
def test_results_are_torchs(dtype):
    torch.manual_seed(0)

    def model(x, y):
        return [
            x + y,
            x * 0.1,
            torch.softmax(x, -1),
            F.softplus(x, 2.0),
            x @ y.T,
            F.layer_norm(x, (16,)),
            x.sum(1),
            x.amax(0),
            x < y,
            x.to(torch.int64),
            x.to(torch.bool),
            torch.sort(x)[1],
            torch.cat([x, y]).flip(0)[:, 1:],
            F.gelu(x.T),
        ]

    x, y = torch.randn(5, 16).to(dtype), torch.randn(5, 16).to(dtype)
    _, got, wanted = run(model, x, y)
    for mine, torchs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, torchs)


@FLOATS_16_BIT
@pytest.mark.parametrize("target", [torch.int64, torch.int32, torch.uint8, torch.bool], ids=str)
def test_kernels_alone_make_integers_of_halves(dtype, target):
    x = torch.tensor([0.0, -0.0, 6e-8, 0.9, 1.5, 100.0, 255.0]).to(dtype)
    plan = taper_frontend.export(Function(lambda tensor: tensor.to(target)), (x,))
    session = taper_runtime.InferenceSession(plan, strict_native())
    (got,) = session.run(None, {plan.inputs[0]: to_numpy(x)})
    torch.testing.assert_close(torch.from_numpy(got.copy()), x.to(target))


@FLOATS_16_BIT
def test_an_op_is_rounded_once(dtype):
    """A handler of several steps keeps float32 between them."""
    graph = lower_model(lambda x: F.softplus(x, 2.0), torch.randn(4).to(dtype)).graph
    ops = ops_of(graph)
    assert len(ops) > 4
    assert ops.count("CAST") == 2
    assert ops[-1] == "CAST"


@FLOATS_16_BIT
def test_movement_stays_half(dtype):
    def model(x, index):
        return torch.cat([x.T, x.T], 1)[2:, ::3], x[index]

    graph = lower_model(model, torch.randn(4, 6).to(dtype), torch.tensor([2, 0])).graph
    assert "CAST" not in ops_of(graph)


@FLOATS_16_BIT
def test_weights_stay_half_in_the_plan(dtype):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU()).to(dtype).eval()
    plan, (got,), (wanted,) = run(model, torch.randn(3, 256).to(dtype))
    torch.testing.assert_close(got, wanted)
    weight = next(c for c in plan.constants.values() if c.size == 256 * 256)
    assert weight.itemsize == 2
    session = taper_runtime.InferenceSession(plan, strict_native())
    assert session.run(None, dict(plan.samples))


@FLOATS_16_BIT
def test_products_read_halves(dtype):
    """No weight of a product is widened before it, be it a table of embeddings too."""
    torch.manual_seed(0)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(600, 128)
            self.norm = torch.nn.LayerNorm(128)
            self.mlp = torch.nn.Sequential(
                torch.nn.Linear(128, 512), torch.nn.GELU(), torch.nn.Linear(512, 128, bias=False)
            )

        def forward(self, ids):
            x = self.table(ids)
            return F.linear(x + self.mlp(self.norm(x)), self.table.weight)

    ids = torch.randint(0, 600, (2, 5))
    plan, (got,), (wanted,) = run(Model().to(dtype).eval(), ids)
    # torch's sums have another order on every CPU, and may round to the half beside
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(got, wanted, rtol=2 * unit, atol=2 * unit)
    tables = [c for c in plan.constants.values() if c.size > 512]
    assert [table.itemsize for table in tables] == [2, 2, 2]
    read = {node.op for node in plan.nodes for name in node.inputs if name in plan.constants}
    assert "CAST" not in read
    assert memory_use(plan).arena < 512 * 128 * 4


def strict_native():
    options = taper_runtime.SessionOptions()
    options.strict_native = True
    return options
