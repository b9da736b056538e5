"""Calls of ATen ops that an export keeps, and regions that it gives to delegates."""

import json
import warnings

import numpy as np
import pytest
import torch

import taper_frontend
import taper_runtime
from models import seeded
from taper_frontend.delegates import elementwise_regions, register_backend, unregister_backend


class Net(torch.nn.Module):
    """Two products with activations, a norm, and a softmax."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.second = torch.nn.Linear(16, 4)

    def forward(self, x):
        hidden = torch.nn.functional.gelu(self.first(torch.relu(x)), approximate="tanh")
        return torch.softmax(torch.relu(self.second(hidden)), dim=-1)


ARGS = (torch.linspace(-1, 1, 24).reshape(3, 8),)


def calls(plan):
    return [node for node in plan.nodes if node.op == "CALL"]


def arguments(node):
    return json.loads(node.attrs.get("arguments", "{}"))


@pytest.fixture
def net():
    return seeded(Net).eval()


def test_every_call_of_a_kept_op_is_a_node(net):
    plan = taper_frontend.export(
        net, ARGS, keep=["aten.relu.default", "torch.ops.aten.gelu.default"]
    )
    assert [node.targets for node in calls(plan)] == [
        ("aten.relu.default",),
        ("aten.gelu.default",),
        ("aten.relu.default",),
    ]
    assert [arguments(node) for node in calls(plan)] == [{}, {"approximate": "tanh"}, {}]
    assert all("test_keep.py" in node.source for node in calls(plan))
    assert plan.metadata["verified"]["relative_error"] < 1e-5
    assert plan.metadata["fallbacks"] == []
    plain = taper_frontend.export(net, ARGS)
    assert not calls(plain)
    feed = {"x": ARGS[0].numpy()}
    got, expected = (
        taper_runtime.InferenceSession(each).run(None, feed)[0] for each in (plan, plain)
    )
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_a_call_has_the_tensors_of_the_aten_op_in_order(net):
    (target,) = {
        str(node.target)
        for node in torch.export.export(net, ARGS).graph.nodes
        if "linear" in str(node.target)
    }
    plan = taper_frontend.export(net, ARGS, keep=[target])
    first, second = calls(plan)
    assert first.inputs[1:] == ("first.weight", "first.bias")
    assert [plan.tensors[name].format for name in second.reads] == ["plain"] * 3
    assert plan.metadata["verified"]["relative_error"] < 1e-5


def test_sizes_that_vary_pass_a_kept_call(net):
    plan = taper_frontend.export(
        net, ARGS, dynamic_shapes=({0: torch.export.Dim("n", max=50)},), keep=["aten.relu.default"]
    )
    session = taper_runtime.InferenceSession(plan)
    for size in (1, 7):
        x = torch.randn(size, 8)
        np.testing.assert_allclose(
            session.run(None, {"x": x.numpy()})[0], net(x).detach().numpy(), rtol=1e-4, atol=1e-6
        )


def test_halves_and_several_results_are_kept():
    class Halves(torch.nn.Module):
        def forward(self, x):
            values, places = torch.topk(torch.sigmoid(x), 2)
            return values, places

    x = torch.linspace(-2, 2, 6).to(torch.float16).reshape(1, 6)
    plan = taper_frontend.export(Halves(), (x,), keep=["aten.sigmoid.default", "aten.topk.default"])
    sigmoid, topk = calls(plan)
    assert [plan.tensors[name].dtype for name in (*sigmoid.inputs, *sigmoid.outputs)] == [
        "float16"
    ] * 2
    assert len(topk.outputs) == 2
    assert arguments(topk) == {"k": 2, "dim": -1, "largest": True, "sorted": True}


def test_calls_in_a_branch_are_kept():
    class Branch(torch.nn.Module):
        def forward(self, x):
            return torch.cond(x.max() > 0, lambda x: torch.relu(x) + 1, lambda x: x - 1, (x,))

    plan = taper_frontend.export(Branch(), ARGS, keep=["aten.relu.default"])
    (branch,) = (node for node in plan.nodes if node.op == "IF")
    assert [node.op for node in branch.blocks[0].nodes].count("CALL") == 1
    (y,) = taper_runtime.InferenceSession(plan).run(None, {"x": np.ones((3, 8), np.float32)})
    np.testing.assert_array_equal(y, 2.0)


def test_what_cannot_be_kept_is_refused(net):
    with pytest.raises(taper_frontend.ExportError, match=r"no aten.tanh.default; it calls .*relu"):
        taper_frontend.export(net, ARGS, keep=["aten.tanh.default"])
    with pytest.raises(taper_frontend.ExportError, match="keep: expected a list"):
        taper_frontend.export(net, ARGS, keep="aten.relu.default")

    class Draws(torch.nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x)

    with pytest.raises(taper_frontend.UnsupportedOpError, match="draws random numbers"):
        taper_frontend.export(Draws(), ARGS, keep=["aten.rand_like.default"])


class Wave(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(8))

    def forward(self, x):
        return torch.sin(x * self.scale) + 1


def test_an_export_verifies_what_a_delegate_computes():
    class Wrong(taper_runtime.Delegate):
        def run(self, inputs, outputs):
            outputs[0][...] = 0

    register_backend("wrong", lambda graph: b"", Wrong)
    try:
        with pytest.raises(taper_frontend.VerificationError):
            taper_frontend.export(Wave(), ARGS, partition=elementwise_regions, delegate="wrong")
    finally:
        unregister_backend("wrong")


def test_a_region_that_stays_is_a_warning(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.warns(
        taper_frontend.ExportWarning, match=r"(?s)1 region.*'c'.*no compiler"
    ) as caught:
        plan = taper_frontend.export(Wave(), ARGS, partition=elementwise_regions, delegate="c")
    assert caught[0].message.kind == "delegate"
    assert plan.metadata["warnings"][0]["kind"] == "delegate"
    taper_runtime.InferenceSession(plan)


def test_partition_and_delegate_go_together():
    for more in ({"partition": elementwise_regions}, {"delegate": "c"}):
        with pytest.raises(taper_frontend.ExportError, match="expected both or none"):
            taper_frontend.export(Wave(), ARGS, **more)
    with pytest.raises(taper_frontend.ExportError, match="unknown delegate 'd'"):
        taper_frontend.export(Wave(), ARGS, partition=elementwise_regions, delegate="d")


def test_plain_exports_are_as_before(net):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = taper_frontend.export(net, ARGS)
    assert not any(node.blocks for node in plan.nodes)
