"""Lowering of torch.cond, while_loop, scan and map, and refusals by name.

tests/e2e/test_control_flow.py compares what all models compute with torch.
"""

from functools import cache

import numpy as np
import pytest
import torch
from torch._higher_order_ops.map import map as map_
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import taper_frontend
import taper_runtime
from control_flow import MODELS, Noise, X
from lowering import check_lowering, lower_model, ops_of
from taper_frontend.errors import CaptureError, UnsupportedNodesError


@cache
def lowered(name):
    """Lower a model, compare it with torch, and return its graph, which no test changes."""
    model, args = MODELS[name]
    return check_lowering(model, *args)


def blocks_of(graph, op):
    (node,) = (node for node in graph.order() if node.op == op)
    return node, node.blocks


def test_weights_are_constants_of_the_blocks():
    graph = lowered("branch taken")
    node, (then, otherwise) = blocks_of(graph, "IF")
    assert len(node.inputs) == 2  # the predicate and x
    assert sorted(then.constants) == ["a.bias", "a.weight"]
    assert sorted(otherwise.constants) == ["b.bias", "b.weight"]
    assert not set(graph.constants) & {"a.weight", "b.weight"}


def test_a_loop_has_its_carries_first():
    node, (condition, body) = blocks_of(lowered("while with a buffer"), "WHILE")
    assert node.attrs["carries"] == 3
    assert list(condition.constants) == ["limit"]
    assert sorted(body.constants) == ["a.bias", "a.weight"]


def test_a_map_is_a_scan_that_carries_nothing():
    node, _ = blocks_of(lowered("map"), "SCAN")
    assert (node.attrs["carries"], node.attrs["xs"]) == (0, 1)


def test_nodes_of_a_body_know_the_line_that_called_the_op():
    _, (_, body) = blocks_of(lowered("while with a buffer"), "WHILE")
    assert all("control_flow.py" in node.source.line for node in body.order())


def test_draws_pass_the_generator_on():
    graph = lower_model(Noise().eval(), X).graph
    node, (condition, body) = blocks_of(graph, "WHILE")
    assert node.inputs[0] == "generator"
    assert ops_of(body)[:2] == ["RANDOM", "RANDOM_NEXT"] or "RANDOM_NEXT" in ops_of(body)
    assert condition.outputs != [condition.inputs[0]]
    (branch,) = (node for node in graph.order() if node.op == "IF")
    assert branch.blocks[1].outputs[0] == branch.blocks[1].inputs[0]  # draws nothing


class RandomCondition(torch.nn.Module):
    def forward(self, x):
        return while_loop(lambda x: torch.rand(()) < 0.5, lambda x: (x + 1,), (x,))


class ShapeOfData(torch.nn.Module):
    def forward(self, x):
        def step(i, x):
            return i + 1, x + x[x > 0].shape[0]

        return while_loop(lambda i, x: i < 3, step, (torch.tensor(0), x))


class NoHandler(torch.nn.Module):
    def forward(self, x):
        def step(i, x):
            return i + 1, x + torch.linalg.householder_product(x[:, :1], x[0, :1]).sum()

        return while_loop(lambda i, x: i < 3, step, (torch.tensor(0), x))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (RandomCondition().eval(), "condition of a loop draws random numbers"),
        (ShapeOfData(), "data-dependent"),
        (NoHandler(), "linalg_householder_product"),
    ],
)
def test_what_cannot_be_lowered_is_refused_with_its_line(model, reason):
    with pytest.raises(UnsupportedNodesError, match=reason) as caught:
        lower_model(model, X)
    assert all("test_lowering_control_flow.py" in node.source for node in caught.value.nodes)


class Grows(torch.nn.Module):
    def forward(self, x):
        def step(i, x):
            return i + 1, torch.cat([x, x])

        return while_loop(lambda i, x: i < 3, step, (torch.tensor(0), x))


class Aliases(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x, lambda x: x.sin(), (x,))


@pytest.mark.parametrize("model", [Grows(), Aliases()])
def test_what_torch_refuses_is_of_category_control_flow(model):
    with pytest.raises(CaptureError) as caught:
        lower_model(model, X)
    assert caught.value.category == "control flow"


class Masked(torch.nn.Module):
    """The rows that a mask selects: before the scan, or in its body, as the refusal says."""

    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def forward(self, x, mask):
        def step(carry, row):
            x, kept = row
            new = carry * 0.5 + x
            return torch.where(kept, new, carry), new

        rows = (x, mask) if self.inside else (x[mask], mask[mask])
        carry, y = scan(step, torch.zeros(x.shape[1]), rows)
        return carry, y[mask] if self.inside else y


def test_a_scan_of_masked_rows_says_what_to_write():
    x, mask = torch.arange(8.0).reshape(4, 2), torch.tensor([True, False, True, False])
    with pytest.raises(CaptureError, match=r"torch\.where\(mask, new, carry\)") as caught:
        taper_frontend.export(Masked(False), (x, mask))
    assert caught.value.category == "data-dependent"
    session = taper_runtime.InferenceSession(taper_frontend.export(Masked(True), (x, mask)))
    carry, y = session.run(None, {"x": x.numpy(), "mask": mask.numpy()})
    np.testing.assert_array_equal(carry, [4, 5.5])
    np.testing.assert_array_equal(y, [[0, 1], [4, 5.5]])


def _confident(row):
    kept = row[row > 0]
    return kept.sum().view(1) + torch.unique((row * 4).to(torch.int64)).numel()


def _above(carry, row):
    kept = row[row > carry[0]]
    return carry + kept.sum(), (kept * 2).sum() + carry


@pytest.mark.parametrize(
    "model",
    [
        lambda x: map_(_confident, x),
        lambda x: scan(_above, torch.zeros(1), x),
        lambda x: scan(_above, torch.zeros(1), x, reverse=True),
    ],
    ids=["map", "scan", "reversed scan"],
)
def test_sizes_that_values_decide_in_each_step(model, tmp_path):
    """The steps are written out: each has sizes of its own."""

    class Model(torch.nn.Module):
        def forward(self, x):
            return model(x)

    plan = taper_frontend.export(Model(), (torch.randn(3, 6),))
    plan.save(tmp_path / "plan.taper")
    session = taper_runtime.InferenceSession(tmp_path / "plan.taper")
    leaves = torch.utils._pytree.tree_leaves
    for x in (torch.randn(3, 6), -torch.ones(3, 6), torch.ones(3, 6), torch.eye(3, 6)):
        for got, want in zip(leaves(session(x.numpy())), leaves(model(x)), strict=True):
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-6)


def test_too_many_steps_to_write_out():
    class Model(torch.nn.Module):
        def forward(self, x):
            return map_(_confident, x)

    with pytest.raises(
        UnsupportedNodesError, match="at most 64 steps, which are written out, got 65"
    ):
        taper_frontend.export(Model(), (torch.randn(65, 6),))
    with pytest.raises(UnsupportedNodesError, match="steps, which are written out, got n"):
        taper_frontend.export(Model(), (torch.randn(4, 6),), dynamic_shapes=({0: "n"},))
