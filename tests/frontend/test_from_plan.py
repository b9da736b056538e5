"""Passes on the graph of a plan that was loaded from a file."""

import numpy as np
import pytest
import torch

import taper_frontend
import taper_runtime
from marks import some
from models import seeded
from sized_plans import sized_plan
from taper_frontend.compiler.from_plan import run_passes, to_graph
from taper_runtime.plan.validate import validate

pytestmark = pytest.mark.filterwarnings("ignore::taper_frontend.ExportWarning")


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(20, 16)
        self.layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = torch.nn.Linear(16, 3)

    def forward(self, ids):
        hidden = self.layer(self.embed(ids))
        return {"scores": self.head(hidden).softmax(-1), "mean": hidden.mean(1)}


class Image(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)

    def forward(self, x):
        return torch.nn.functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)


class Branch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: self.linear(x) + 1, lambda x: torch.sin(x), (x,))


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x):
        self.total.add_(x.sum(0))
        return x * self.total


class Chosen(torch.nn.Module):
    def forward(self, x):
        return torch.nonzero(x > 0) * 2


N = torch.export.Dim("n", min=1, max=40)
CASES = {
    "encoder": (Encoder, torch.randint(0, 20, (2, 7)), None),
    "free batch": (Encoder, torch.randint(0, 20, (2, 7)), ({0: N},)),
    "image": (Image, torch.randn(1, 3, 8, 8), None),
    "branch": (Branch, torch.ones(2, 4), None),
    "state": (Counter, torch.randn(3, 4), None),
    "values decide sizes": (Chosen, torch.randn(5), None),
}


@pytest.fixture(params=some(CASES, ["encoder", "image"]), scope="module")
def case(request, tmp_path_factory):
    model, x, free = CASES[request.param]
    plan = taper_frontend.export(seeded(model).eval(), (x,), dynamic_shapes=free)
    path = tmp_path_factory.mktemp("case") / "model.taper"
    plan.save(path)
    return taper_runtime.load(path), {plan.inputs[0]: x.numpy()}


def results(plan, feed):
    session = taper_runtime.InferenceSession(plan)
    return [session.run(None, feed) for _ in range(2)]


def test_without_passes_the_plan_is_the_same(case):
    plan, feed = case
    again = run_passes(plan, ())
    validate(again)
    assert [node.op for node in again.nodes] == [node.op for node in plan.nodes]
    assert again.inputs == plan.inputs
    assert again.outputs == plan.outputs
    assert {n.output: (n.targets, n.arguments) for n in again.nodes} == {
        n.output: (n.targets, n.arguments) for n in plan.nodes
    }
    assert dict(again.provenance) == dict(plan.provenance)
    for mine, theirs in zip(results(again, feed), results(plan, feed), strict=True):
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(a, b)


def test_what_varies_has_the_sizes_of_the_samples():
    """Memory is planned for these, as at the export."""
    plan = sized_plan()
    assert to_graph(plan).examples == {"B": 2, "S": 3}
    assert to_graph(plan._replace(samples={})).examples == {"B": 1, "S": 2}


def test_all_stages_run_on_it(case):
    plan, feed = case
    again = run_passes(plan, ["canonical form", "recognition", "movement"])
    for mine, theirs in zip(results(again, feed), results(plan, feed), strict=True):
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_pass_of_ones_own_changes_the_plan(tmp_path):
    def sines(graph):
        found = [node for node in graph.order() if node.op == "TANH"]
        for node in found:
            graph.replace_node(node, "SIN", node.inputs)
        return bool(found)

    class Tanh(torch.nn.Module):
        def forward(self, x):
            return torch.tanh(x)

    x = torch.randn(5)
    plan = taper_frontend.export(Tanh(), (x,))
    changed = run_passes(plan, [sines])
    (y,) = taper_runtime.InferenceSession(changed).run(None, {"x": x.numpy()})
    np.testing.assert_allclose(y, np.sin(x.numpy()), rtol=1e-6)
    assert changed.metadata["passes"][-1]["name"] == "sines"
    assert "verified" in plan.metadata
    assert "verified" not in changed.metadata
    assert [node.op for node in plan.nodes] == ["TANH"]
    assert changed.nodes[0].arguments is None  # it is no call of tanh any more
    changed.save(tmp_path / "sines.taper")


def test_what_cannot_become_a_graph_is_refused():
    x = torch.randn(2, 4)
    plan = taper_frontend.export(torch.nn.Linear(4, 2), (x,), weights="replaceable")
    with pytest.raises(taper_frontend.ExportError, match="weights are fixed"):
        to_graph(plan)
