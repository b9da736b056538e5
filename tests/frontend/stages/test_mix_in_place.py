"""A small matrix that mixes an outer axis multiplies from the left."""

from __future__ import annotations

import pytest
import torch

from graph_checks import Builder, check_fires, check_keeps, floats, op_counts
from taper_frontend import export
from taper_frontend.compiler.stages import Group, mix_in_place
from taper_runtime import InferenceSession

THERE, BACK = (0, 2, 3, 1), (0, 3, 1, 2)


def _mixed(b: Builder, x: str, heads: int, mixed: int, **changes):
    """Build the product over axis 1 of ``x``, its bias and the permutations around them."""
    y = b.op("PERMUTE", x, axes=changes.get("there", THERE))
    transposed = changes.get("transposed", False)
    weight = b.weight(mixed, heads) if transposed else b.weight(heads, mixed)
    attrs = {"transpose_b": True} if transposed else {}
    y = inside = b.op("MATMUL", y, weight, **attrs)
    if "bias" in changes:
        bias = changes["bias"]
        y = b.op("ADD", y, bias if isinstance(bias, float) else b.constant(bias))
    return b.op("PERMUTE", y, axes=changes.get("back", BACK)), inside


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_scores(bias, transposed):
    b = Builder()
    scores = b.op("MATMUL", b.input("q", 2, 4, 5, 8), b.input("k", 2, 4, 8, 6))
    changes = {"bias": floats(3)} if bias else {}
    y, _ = _mixed(b, scores, 4, 3, transposed=transposed, **changes)
    graph = check_fires(Group(mix_in_place), b.done(y))
    assert "PERMUTE" not in op_counts(graph)


def test_softmax():
    b = Builder()
    y, _ = _mixed(b, b.op("SOFTMAX", b.input("x", 2, 4, 5, 6), axis=3), 4, 4, bias=floats(4))
    assert "PERMUTE" not in op_counts(check_fires(Group(mix_in_place), b.done(y)))


@pytest.mark.parametrize(
    "why",
    [
        "image",
        "many heads",
        "many mixed",
        "other way back",
        "read between",
        "full bias",
        "one number",
    ],
)
def test_stays(why):
    b = Builder()
    heads = 16 if why == "many heads" else 4
    x = b.input("x", 2, heads, 5, 5)
    if why != "image":
        x = b.op("SOFTMAX", x, axis=3)
    changes = {}
    if why == "other way back":
        changes["back"] = (0, 3, 2, 1)
    if why == "full bias":
        changes["bias"] = floats(5, 4)
    if why == "one number":
        changes["bias"] = 2.0
    y, inside = _mixed(b, x, heads, 16 if why == "many mixed" else 4, **changes)
    outputs = (y, inside) if why == "read between" else (y,)
    check_keeps(mix_in_place, b.done(*outputs))


class TalkingHeads(torch.nn.Module):
    """Attention whose heads are mixed before and after the softmax."""

    def __init__(self):
        super().__init__()
        self.before, self.after = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, q, k, v):
        scores = self.before((q @ k.transpose(-2, -1)).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        weights = self.after(scores.softmax(-1).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return weights @ v


def test_talking_heads_of_any_length(tmp_path):
    module = TalkingHeads().eval()
    length = {2: torch.export.Dim("length", max=64)}
    example = tuple(torch.randn(2, 4, 9, 8) for _ in range(3))
    plan = export(module, example, dynamic_shapes=(length,) * 3)
    assert not any(node.op == "PERMUTE" for node in plan.nodes)
    path = tmp_path / "heads.taper"
    plan.save(path)
    session = InferenceSession(path)
    for n in (9, 17):
        inputs = [torch.randn(2, 4, n, 8) for _ in range(3)]
        names = [x.name for x in session.get_inputs()]
        got = session.run(None, dict(zip(names, (x.numpy() for x in inputs), strict=True)))[0]
        torch.testing.assert_close(torch.from_numpy(got), module(*inputs), rtol=1e-5, atol=1e-5)


def test_nodes_without_inputs_stay():
    b = Builder()
    check_keeps(Group(mix_in_place), b.done(b.op("ARANGE", start=0, stop=4)))
