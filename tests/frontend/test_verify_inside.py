"""Verification of the values inside a plan: it finds errors that outputs hide."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import taper_frontend
from marks import STATE
from models import MLP, Block
from taper_frontend.compiler.stages import PIPELINE
from taper_frontend.errors import ExportError
from taper_frontend.lowering import HANDLERS
from taper_frontend.verify.inside import _Comparison, _Reader
from taper_frontend.verify.trials import VerificationError
from taper_runtime.executor.interpreted import InterpretedExecutor


def inside(module, *args, **options):
    """What the metadata of an exported module says of the values inside."""
    plan = taper_frontend.export(module.eval(), args, **options)
    return plan.metadata["verified"]["inside"]


class Flat(nn.Module):
    """A product that nobody sees: only whether it is large, which it is not."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)

    def forward(self, x):
        hidden = torch.sigmoid(self.first(x))
        return (self.second(hidden) > 1000).float()


class Convolutions(nn.Module):
    """Channels become the last axis in a plan, and batch norms parts of weights."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU6(),
            nn.Conv2d(8, 8, 3, groups=8),
            nn.BatchNorm2d(8),
            nn.Conv2d(8, 4, 1),
        )

    def forward(self, x):
        return self.layers(x).mean((2, 3)).argmax(-1)


def wrong(monkeypatch, op, change):
    """Lower calls of an op to something else."""
    right = HANDLERS[op]

    def handler(context, *args, **kwargs):
        return change(context, right(context, *args, **kwargs))

    monkeypatch.setitem(HANDLERS, op, handler)


def bent(context, tensor):
    return context.emit("TANH", [tensor])


def test_a_wrong_handler_is_found_behind_a_flat_output(monkeypatch):
    wrong(monkeypatch, "aten.sigmoid.default", bent)
    x = torch.randn(4, 8)
    taper_frontend.export(Flat().eval(), (x,), verify="outputs")
    with pytest.raises(VerificationError) as error:
        taper_frontend.export(Flat().eval(), (x,))
    text = str(error.value)
    assert "a value inside the plan differs" in text
    assert "'sigmoid'" in text
    assert "aten.sigmoid.default" in text
    assert "hidden = torch.sigmoid(self.first(x))" in text


def test_the_first_node_that_differs_is_named_for_an_output_too(monkeypatch):
    wrong(monkeypatch, "aten.gelu.default", bent)
    with pytest.raises(VerificationError, match=r"output 'output' differs.*inside.*'gelu' \(TANH"):
        taper_frontend.export(MLP(8).eval(), (torch.randn(2, 8),))


def test_a_wrong_fusion_is_found_in_the_plan_itself():
    def scale_product(graph):
        node = next(node for node in graph.order() if node.op == "MATMUL")
        name = node.output
        if name.endswith(".wrong") or graph.is_output(name):
            return False
        made = graph.add_node(node.op, node.inputs, node.attrs, name=f"{name}.wrong")
        graph.replace_node(node, "MUL", [made], {"scalar": 1.01, "scalar_index": 1})
        return True

    x = torch.randn(4, 8)
    passes = [*PIPELINE, scale_product]
    taper_frontend.export(Flat().eval(), (x,), passes=passes, verify="outputs")
    with pytest.raises(VerificationError, match=r"node 'sigmoid' \(MUL"):
        taper_frontend.export(Flat().eval(), (x,), passes=passes)


def test_an_error_of_the_decomposition_is_found(monkeypatch):
    """The values inside are those of the program before it is decomposed."""

    class Gates(nn.Module):
        def forward(self, x):
            return (F.glu(x) > 1000).float()

    import taper_frontend.capture.decompose as decompose

    trace = decompose._trace_call

    def wrong_trace(*args):
        module = trace(*args)
        node = next(n for n in module.graph.nodes if n.target is torch.ops.aten.sigmoid.default)
        node.target = torch.ops.aten.tanh.default
        return module

    monkeypatch.setattr(decompose, "_trace_call", wrong_trace)
    x = torch.randn(3, 8)
    taper_frontend.export(Gates().eval(), (x,), verify="outputs")
    with pytest.raises(VerificationError, match="'glu'"):
        taper_frontend.export(Gates().eval(), (x,))


def test_values_in_another_layout_are_compared():
    report = inside(Convolutions(), torch.randn(1, 3, 12, 12))
    assert report["nodes"] >= report["of"] - 1  # the input with its channels last
    assert report["values"] >= 6


@pytest.mark.parametrize("form", ["sdpa", "matmul"])
def test_nearly_all_nodes_of_a_transformer_are_compared(form):
    report = inside(Block(16, form), torch.randn(1, 4, 16))
    assert report["nodes"] >= 0.8 * report["of"]
    assert 0 < report["relative_error"] <= 1e-5


@pytest.mark.parametrize("verify", [True, "outputs", "deep"])
def test_only_deep_looks_inside_on_random_inputs(monkeypatch, verify):
    """An error that is 0 on the example, and that a flat output hides on all other inputs.

    An example that is all zeros says nothing of how inputs are distributed: random ones are normal.
    """

    class FlatSine(nn.Module):
        def forward(self, x):
            return (torch.sin(x) * 2 > 1000).float()

    wrong(monkeypatch, "aten.sin.default", bent)
    x = torch.zeros(4, 8)
    if verify != "deep":
        plan = taper_frontend.export(FlatSine().eval(), (x,), verify=verify)
        assert plan.metadata["verified"]["relative_error"] == 0
        return
    with pytest.raises(VerificationError, match=r"random inputs float32\[4, 8\].*'sin' \(TANH"):
        taper_frontend.export(FlatSine().eval(), (x,), verify=verify)


def test_outputs_alone():
    plan = taper_frontend.export(Flat().eval(), (torch.randn(4, 8),), verify="outputs")
    assert "inside" not in plan.metadata["verified"]


@pytest.mark.parametrize("verify", ["all", 2, None, ()])
def test_another_depth_is_refused(verify):
    with pytest.raises(ExportError, match="verify: expected one of True, 'outputs', 'deep', False"):
        taper_frontend.export(Flat().eval(), (torch.randn(4, 8),), verify=verify)


@STATE
def test_state_and_sizes_and_random_numbers():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x):
            self.count.add_(x.sum(0))
            kept = x[x[:, 0] > 0]
            return kept * self.count + torch.rand(3), x.shape[0] * 2

    axes = {"x": {0: "rows"}}
    report = inside(Counts(), torch.randn(6, 3), dynamic_axes=axes, verify="deep")
    assert report["nodes"] > 0


def test_a_tie_inside_excuses_what_is_computed_from_it():
    class Chosen(nn.Module):
        def forward(self, x):
            best = (x * 3 / 3).topk(4).indices
            return (x[best] * best).sum() * 0

    x = torch.tensor([1.0, 1.0 + 1e-7, 1.0, 0.5, 1.0, 1.0, 0.25, 1.0])
    report = inside(Chosen(), x)
    assert report["relative_error"] <= 1e-4


def test_differing_values_for_which_there_is_no_room_are_not_compared(monkeypatch):
    class Rounds(nn.Module):
        def forward(self, x):
            y = x.sin()
            return ((y * 1000).round().long() + (y * 999).round().long()) * 0

    def nearly(context, tensor):
        return context.apply("MUL", tensor, 1 - 2e-6, dtype="float32")

    wrong(monkeypatch, "aten.sin.default", nearly)
    monkeypatch.setattr("taper_frontend.verify.trials.TRIALS", 0)
    x = torch.randn(4000, generator=torch.Generator().manual_seed(0))
    (both,) = inside(Rounds(), x)["uncertain"].values()
    monkeypatch.setattr("taper_frontend.verify.inside._KEPT_BYTES", 0)
    report = inside(Rounds(), x)
    assert len(next(iter(report["uncertain"].values()))) < len(both)
    assert report["relative_error"] <= 1e-4


def test_half_precision_keeps_its_tolerance():
    report = inside(MLP(16).half(), torch.randn(2, 16).half())
    assert report["values"] == 5  # three products and two activations


def test_values_have_memory_one_after_the_other():
    """Of ten values two have memory at a time."""

    class Waves(nn.Module):
        def forward(self, x):
            for _ in range(10):
                x = torch.sin(x)
            return x.sum()

    x = torch.rand(1 << 20)
    plan = taper_frontend.export(Waves().eval(), (x,), passes=())
    executor = InterpretedExecutor.compile(plan)
    tracemalloc.start()
    for _ in executor.trace([x.numpy()]):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3.5 * x.nbytes  # its own input, what a node reads and what it writes


def test_what_a_plan_computes_early_is_held_while_there_is_room(monkeypatch):
    monkeypatch.setattr("taper_frontend.verify.inside._HELD_BYTES", 80)

    class Plan:
        def is_final(self, tensor):
            return tensor != "over"

    memory = np.arange(8)
    views = {"all": memory[:], "half": memory[:4], "over": memory[:2], "late": np.arange(9)}
    reader = _Reader(Plan(), iter([views, {"last": np.arange(3)}]))
    assert reader.read("last").size == 3
    memory[:] = 7
    assert reader.read("half").tolist() == [7] * 4  # not a copy: its memory is there once
    assert reader.read("over").tolist() == [0, 1]
    assert reader.read("all").tolist() == [7] * 8
    assert reader.read("late") is None
    assert reader.read("unknown") is None


def test_memory_is_freed_as_values_are_traced():
    """Each root has memory of its own, until its last reader has run."""
    plan = taper_frontend.export(MLP(32).eval(), (torch.randn(4, 32),), passes=())
    executor = InterpretedExecutor.compile(plan)
    first = next(node for node in plan.nodes if plan.is_executed(node)).output
    steps = executor.trace([np.zeros((4, 32), "f4")])
    _, read = next(steps)
    assert read(first).shape == plan.tensors[first].shape
    assert len(list(steps)) > 1
    with pytest.raises(KeyError):
        read(first)
    assert read(plan.outputs[0]).shape == plan.tensors[plan.outputs[0]].shape


class ByRow(nn.Module):
    """A function of each row, which torch captures as nodes that begin and end a ``vmap``."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        rows = torch.vmap(lambda row: torch.softmax(row, 0) * row.sum())(self.layer(x))
        return torch.func.vmap(torch.vmap(torch.sigmoid))(rows.view(2, -1, 6)).exp()


@pytest.mark.parametrize("depth", [True, "deep"])
def test_what_vmap_computes_is_compared_where_it_ends(depth):
    report = inside(ByRow(), torch.randn(4, 6), verify=depth)
    assert report["values"] >= 3
    assert report["relative_error"] <= 1e-6


def test_vmap_ends_where_a_run_does(monkeypatch):
    """An error in the middle leaves torch as it was."""

    class Stopped(Exception):
        pass

    def see(walk, node, value):
        if torch._C._functorch.peek_interpreter_stack() is not None:
            raise Stopped

    monkeypatch.setattr(_Comparison, "see", see)
    with pytest.raises(Stopped):
        inside(ByRow(), torch.randn(4, 6))
    assert torch._C._functorch.peek_interpreter_stack() is None
