"""Calls of ATen ops that an export keeps, and subgraphs that it gives to delegates."""

import json
import warnings

import numpy as np
import pytest
import torch

import taper_frontend
import taper_runtime
from models import seeded
from taper_frontend.delegates import elementwise_subgraphs, register_backend, unregister_backend


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
    with pytest.raises(taper_frontend.ExportError, match=r".*relu.*, got aten.tanh.default"):
        taper_frontend.export(net, ARGS, keep=["aten.tanh.default"])
    with pytest.raises(taper_frontend.ExportError, match="keep: expected a list"):
        taper_frontend.export(net, ARGS, keep="aten.relu.default")

    class Draws(torch.nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x)

    with pytest.raises(taper_frontend.UnsupportedNodesError, match="draws random numbers"):
        taper_frontend.export(Draws(), ARGS, keep=["aten.rand_like.default"])


class Layers(torch.nn.Module):
    """Ops that torch decomposes."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.batch = torch.nn.BatchNorm2d(8)
        self.group = torch.nn.GroupNorm(2, 8)

    def forward(self, x):
        y = torch.nn.functional.max_pool2d(self.group(self.batch(self.conv(x)).relu_()), 2)
        y = torch.log_softmax(y.mean((2, 3)), -1)
        a, b = torch.chunk(torch.softmax(y, -1), 2, -1)
        return a + b * y.std(-1, keepdim=True) + torch.zeros(4)


def test_the_ops_of_the_exported_program_are_kept():
    layers, x = seeded(Layers).eval(), torch.randn(2, 3, 8, 8)
    names = {
        str(node.target)
        for node in torch.export.export(layers, (x,)).graph.nodes
        if node.op == "call_function" and "getitem" not in str(node.target)
    }
    assert {"aten.batch_norm.default", "aten.softmax.int", "aten.chunk.default"} < names
    for name in sorted(names):
        kept = name.replace("relu_", "relu")
        plan = taper_frontend.export(layers, (x,), keep=[name], verify="outputs")
        assert {node.targets for node in calls(plan)} == {(kept,)}, name
        targets = {target for node in plan.nodes for target in node.targets}
        assert targets <= {each.replace("relu_", "relu") for each in names}
    plan = taper_frontend.export(layers, (x,), keep=sorted(names))
    assert {node.op for node in plan.nodes if plan.is_executed(node)} == {"CALL"}


@torch.library.custom_op("test_keep::halves", mutates_args=())
def halves(x: torch.Tensor, by: int) -> tuple[torch.Tensor, torch.Tensor]:
    return x / by, (x + by).sum(0)


@halves.register_fake
def _(x, by):
    return torch.empty_like(x), x.new_empty(x.shape[1:])


class Halves(torch.nn.Module):
    def forward(self, x):
        first, second = halves(torch.sin(x), 2)
        return first + second


def compute_halves(inputs, outputs, attrs):
    outputs[0][...] = inputs[0] / attrs["by"]
    outputs[1][...] = (inputs[0] + attrs["by"]).sum(0)


def test_an_op_without_a_handler_is_kept_for_a_kernel(tmp_path):
    name, x = "test_keep.halves.default", torch.randn(3, 4)
    with pytest.raises(taper_frontend.ExportError, match=f"no kernel is registered for {name}"):
        taper_frontend.export(Halves(), (x,), keep=[name])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = taper_frontend.export(Halves(), (x,), keep=[name], verify=False)
    plan.save(tmp_path / "halves.taper")
    for providers in (None, ["CPUExecutionProvider"], ["Numpy"]):
        with pytest.raises(taper_runtime.UnsupportedOpError, match=f"{name}: .*register_kernel"):
            taper_runtime.InferenceSession(tmp_path / "halves.taper", providers=providers)
    taper_runtime.register_kernel(name, compute_halves, name="halves")
    try:
        free = {0: torch.export.Dim("n", max=50)}
        plan = taper_frontend.export(Halves(), (x,), keep=[name], dynamic_shapes=(free,))
        assert plan.metadata["verified"]["relative_error"] < 1e-5
        assert plan.metadata["fallbacks"] == []
        for executor in ("compiled", "interpreted"):
            options = taper_runtime.SessionOptions()
            options.executor = executor
            session = taper_runtime.InferenceSession(plan, options)
            y = torch.randn(7, 4)
            np.testing.assert_allclose(
                session.run(None, {"x": y.numpy()})[0], Halves()(y).numpy(), rtol=1e-5
            )
        with pytest.raises(taper_runtime.UnsupportedOpError, match=name):
            taper_runtime.InferenceSession(plan, providers=["CPUExecutionProvider"])
    finally:
        taper_runtime.unregister_kernel("halves")


class Chain(torch.nn.Module):
    """Calls that stay alone, a call of several nodes, and a call that is fused."""

    def forward(self, x):
        hidden = torch.softmax(torch.relu(x), -1)
        return hidden.sum(-1), hidden.std(0), torch.relu(x + 1)


KERNELS = {
    "aten.relu.default": lambda i, o, a: np.maximum(i[0], 0, out=o[0]) is None or None,
    "aten.softmax.int": lambda i, o, a: o[0].__setitem__(
        ..., torch.softmax(torch.tensor(i[0].copy()), a["dim"]).numpy()
    ),
    "aten.sum.dim_IntList": lambda i, o, a: o[0].__setitem__(..., i[0].sum(tuple(a["dim"]))),
    "aten.std.dim": lambda i, o, a: o[0].fill(np.nan),
    "aten.add.Tensor": lambda i, o, a: o[0].fill(np.nan),
}


@pytest.mark.parametrize("target", KERNELS)
@pytest.mark.parametrize("executor", ["compiled", "interpreted"])
def test_a_kernel_serves_the_whole_calls_of_its_target_in_any_file(target, executor, tmp_path):
    x = torch.linspace(-1, 1, 20).reshape(4, 5)
    taper_frontend.export(Chain(), (x,)).save(tmp_path / "chain.taper")
    taper_runtime.register_kernel(target, KERNELS[target], name="mine")
    options = taper_runtime.SessionOptions()
    options.executor = executor
    served = target not in ("aten.std.dim", "aten.add.Tensor")  # two nodes, and part of one
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error" if served else "ignore")
            session = taper_runtime.InferenceSession(tmp_path / "chain.taper", options)
        if not served:
            with pytest.warns(UserWarning, match=rf"{target}.*keep=\['{target}'\]") as caught:
                taper_runtime.InferenceSession(tmp_path / "chain.taper", options)
            assert caught[0].filename == __file__
    finally:
        taper_runtime.unregister_kernel("mine")
    assert len(session.kernel_kinds()["user"]) == served
    for got, expected in zip(session.run(None, {"x": x.numpy()}), Chain()(x), strict=True):
        np.testing.assert_allclose(got, expected.numpy(), rtol=1e-5, atol=1e-6)


def test_a_kernel_of_a_target_never_writes_to_its_inputs():
    """The plan computes the ReLU in the memory of the product; the kernel writes first."""

    class InPlace(torch.nn.Module):
        def forward(self, x):
            return torch.softmax(torch.softmax(x @ x, -1), -1) @ x

    def clears(inputs, outputs, attrs):
        outputs[0].fill(0)
        outputs[0][...] = torch.softmax(torch.tensor(inputs[0].copy()), attrs["dim"]).numpy()

    x = torch.randn(6, 6)
    plan = taper_frontend.export(InPlace(), (x,))
    roots = [
        {plan.placements[name].root for name in (node.inputs[0], node.output)}
        for node in plan.nodes
        if node.op == "SOFTMAX"
    ]
    assert any(len(both) == 1 for both in roots)  # the case that is tested
    taper_runtime.register_kernel("aten.softmax.int", clears, name="clears")
    try:
        session = taper_runtime.InferenceSession(plan)
    finally:
        taper_runtime.unregister_kernel("clears")
    assert len(session.kernel_kinds()["user"]) == 2
    (y,) = session.run(None, {"x": x.numpy()})
    np.testing.assert_allclose(y, InPlace()(x).numpy(), rtol=1e-4, atol=1e-5)


def test_a_misspelled_target_is_told_with_the_nearest_of_the_plan():
    plan = taper_frontend.export(Chain(), (torch.ones(4, 5),))
    taper_runtime.register_kernel("aten.rellu.default", KERNELS["aten.relu.default"], name="mine")
    try:
        with pytest.warns(UserWarning, match=r"has none; did you mean 'aten\.relu\.default'\?"):
            taper_runtime.InferenceSession(plan)
    finally:
        taper_runtime.unregister_kernel("mine")


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
            taper_frontend.export(Wave(), ARGS, partition=elementwise_subgraphs, delegate="wrong")
    finally:
        unregister_backend("wrong")


def test_a_subgraph_that_stays_is_a_warning(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.warns(
        taper_frontend.ExportWarning, match=r"(?s)1 subgraph.*'c'.*expected the compiler"
    ) as caught:
        plan = taper_frontend.export(Wave(), ARGS, partition=elementwise_subgraphs, delegate="c")
    assert caught[0].message.kind == "delegate"
    assert plan.metadata["warnings"][0]["kind"] == "delegate"
    taper_runtime.InferenceSession(plan)


class Sorts(torch.nn.Module):
    """The module's outputs are in another order than the nodes."""

    def forward(self, x):
        first = torch.sin(x)
        last = torch.cos(first) + 1
        return last, first


@pytest.mark.parametrize("by_name", [True, False])
def test_a_whole_delegate_has_the_modules_order(by_name):
    seen = []

    class Whole(taper_runtime.Delegate):
        def run(self, inputs, outputs):
            outputs[0][...] = np.cos(np.sin(inputs[0])) + 1
            outputs[1][...] = np.sin(inputs[0])

    def whole(graph):
        return [list(graph.nodes) if by_name else graph.order()]

    register_backend("whole", lambda graph: seen.append(list(graph.outputs)) or b"", Whole)
    try:
        plan = taper_frontend.export(Sorts(), ARGS, partition=whole, delegate="whole")
    finally:
        unregister_backend("whole")
    assert [node.op for node in plan.nodes] == ["CALL_DELEGATE"]
    assert plan.nodes[0].outputs == plan.outputs
    options = taper_runtime.SessionOptions()
    options.delegates, options.executor = {"whole": Whole}, "delegate"
    got = taper_runtime.InferenceSession(plan, options).run(None, {"x": ARGS[0].numpy()})
    for mine, torchs in zip(got, Sorts()(*ARGS), strict=True):
        np.testing.assert_allclose(mine, torchs.numpy(), rtol=1e-5)


def test_what_is_no_node_is_no_part_of_a_subgraph():
    for wrong, words in (("nowhere", "'nowhere'"), (3, "got 3"), (None, "None")):
        with pytest.raises(taper_frontend.ExportError, match=f"expected nodes .*{words}"):
            taper_frontend.export(
                Wave(), ARGS, partition=lambda graph, wrong=wrong: [[wrong]], delegate="c"
            )


def test_fixed_weights_have_names(net):
    weights = taper_runtime.InferenceSession(taper_frontend.export(net, ARGS)).weights
    assert sorted(weights.names()) == sorted(net.state_dict())
    assert len(weights) == 4
    assert "first.weight" in weights
    np.testing.assert_array_equal(weights.get("first.bias"), net.first.bias.detach().numpy())
    with pytest.raises(taper_runtime.InputError, match=r"'first.weight': .*packed; .*replaceable"):
        weights.get("first.weight")
    with pytest.raises(taper_runtime.InputError, match=r"did you mean 'first.bias'"):
        weights.get("frist.bias")
    with pytest.raises(taper_runtime.InputError, match="kind: expected None"):
        weights.names("parameter")


class Plain(torch.nn.Module):
    """Has tensors that are no buffers, and one that forward makes."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.part = torch.nn.Module()
        self.part.scale = torch.full((4,), 2.0)
        self.register_buffer("table", torch.arange(4.0), persistent=False)

    def forward(self, x):
        x = torch.sort(x * self.part.scale).values * self.table + torch.tensor([1.0, 2, 3, 4])
        return self.linear(x)


@pytest.mark.parametrize("weights", ["fixed", "replaceable"])
def test_plain_attributes_are_among_the_weights(weights, tmp_path):
    taper_frontend.export(Plain(), (torch.rand(2, 4),), weights=weights).save(tmp_path / "m.taper")
    session = taper_runtime.InferenceSession(tmp_path / "m.taper")
    names = ["linear.bias", "linear.weight", "part.scale", "table"]
    assert sorted(session.weights.names()) == names
    np.testing.assert_array_equal(session.weights.get("part.scale"), np.full(4, 2, np.float32))
    if weights == "replaceable":
        assert sorted(session.weights.names("constant")) == names[2:]
        with pytest.raises(taper_runtime.InputError, match=r"'part\.scale' is a constant"):
            session.weights.update("part.scale", np.zeros(4, np.float32))


def test_partition_and_delegate_go_together():
    for more in ({"partition": elementwise_subgraphs}, {"delegate": "c"}):
        with pytest.raises(taper_frontend.ExportError, match="expected both or neither"):
            taper_frontend.export(Wave(), ARGS, **more)
    with pytest.raises(taper_frontend.ExportError, match="unknown delegate 'd'"):
        taper_frontend.export(Wave(), ARGS, partition=elementwise_subgraphs, delegate="d")


def test_plain_exports_are_as_before(net):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = taper_frontend.export(net, ARGS)
    assert not any(node.blocks for node in plan.nodes)


def test_weights_that_are_replaced_reach_the_delegate():
    class Doubles(taper_runtime.Delegate):
        def run(self, inputs, outputs):
            outputs[0][...] = np.sin(inputs[0] * inputs[1]) + 1

    register_backend("doubles", lambda graph: b"", Doubles)
    try:
        plan = taper_frontend.export(
            Wave(),
            ARGS,
            partition=elementwise_subgraphs,
            delegate="doubles",
            weights="replaceable",
        )
    finally:
        unregister_backend("doubles")
    options = taper_runtime.SessionOptions()
    options.delegates = {"doubles": Doubles}
    session = taper_runtime.InferenceSession(plan, options)
    x = ARGS[0].numpy()
    for factor in (1, 3):
        session.weights.update_many({"scale": np.full(8, factor, np.float32)})
        (y,) = session.run(None, {"x": x})
        np.testing.assert_allclose(y, np.sin(factor * x) + 1, rtol=1e-5)
