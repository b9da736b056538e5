"""Reasons why a model does not become a plan, in words."""

import pytest
import torch
from torch._higher_order_ops.scan import scan
from torch.export import Dim

import taper_frontend
import taper_runtime.cli
from marks import NUMPY, thinned
from taper_frontend.errors import CATEGORIES
from taper_frontend.explainer import HINTS

torch.set_num_threads(1)


class Broken(torch.nn.Module):
    """Two layers with the same break, another break, and a write to a parameter."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x):
        for _ in range(2):
            x = torch.special.bessel_j0(self.linear(x))
        x = torch.relu(x) + torch.fft.fft(x).abs()
        self.linear.bias.add_(1)
        return x * (x.sum().item() * 2)


def test_every_break_at_once():
    explanation = taper_frontend.explain(Broken(), (torch.randn(2, 4),))
    assert {"op", "data-dependent", "mutation"} <= set(explanation.categories)
    bessel = next(each for each in explanation.breaks if "bessel" in each.op)
    assert bessel.nodes == 2
    assert bessel.category == "op"
    assert len(bessel.sources) == 1, "two nodes of one line"
    assert "test_explain.py" in bessel.sources[0]
    assert "bessel_j0" in bessel.sources[0]
    assert 0 < explanation.score < 1
    assert explanation.supported == explanation.nodes - sum(explanation.categories.values())
    text = str(explanation)
    for each in explanation.breaks:
        assert each.hint in text
        assert each.reason in text
        assert all(source in text for source in each.sources)


def test_every_category_has_a_hint():
    assert set(HINTS) == set(CATEGORIES)


class Control(torch.nn.Module):
    def forward(self, x):
        def then(x):
            return torch.linalg.householder_product(x, x[0]).sum(0)

        return torch.cond(x.sum() > 0, then, lambda x: x[0] * 2, (x,))


def test_what_a_branch_holds_is_named():
    explanation = taper_frontend.explain(Control(), (torch.eye(3),))
    (each,) = explanation.breaks
    assert "householder_product" in each.op
    assert "torch.cond" in each.sources[0]


def test_what_torch_cannot_capture():
    class Item(torch.nn.Module):
        def forward(self, x):
            return x * 2 if x.sum().item() > 0 else x

    explanation = taper_frontend.explain(Item(), (torch.randn(3),))
    assert explanation.score == 0
    assert [each.category for each in explanation.breaks] == ["data-dependent"]
    assert explanation.breaks[0].reason


def test_a_model_that_numpy_computes_in_part():
    class Slow(torch.nn.Module):
        def forward(self, x):
            return torch.relu(x @ x).lgamma()

    explanation = taper_frontend.explain(Slow(), (torch.randn(64, 64),))
    assert explanation.breaks == []
    assert explanation.score == 1
    names = [each.op for each in explanation.fallbacks]
    assert "LGAMMA" in names
    assert 0 < sum(each.share for each in explanation.fallbacks) < 1
    assert "lgamma" in explanation.fallbacks[names.index("LGAMMA")].sources[0]
    assert "computed by numpy" in str(explanation)


def test_a_model_without_breaks():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    dims = ({0: Dim("n", max=9)},)
    explanation = taper_frontend.explain(model, (torch.randn(2, 4),), dynamic_shapes=dims)
    assert explanation.breaks == explanation.fallbacks == []
    assert "every node has a native kernel" in str(explanation)


def test_command(capsys, monkeypatch, tmp_path):
    source = "import torch\ndef make():\n    return torch.nn.ReLU(), (torch.ones(3),)\n"
    (tmp_path / "explained_model.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    assert taper_runtime.cli.main(["export", "explained_model:make", "--explain"]) == 0
    assert "(100.0%)" in capsys.readouterr().out


class Steps(torch.nn.Module):
    """A loop over rows with an op that numpy computes, which is nothing beside the product."""

    def forward(self, x, y):
        def step(h, row):
            h = h + torch.special.gammaln(row)
            return h, h * 2

        return scan(step, x[0] * 0, x, dim=0)[1], y @ y


def test_what_a_loop_computes_with_numpy_counts_as_often_as_it_runs():
    y = torch.rand(8, 8)
    shares = []
    for rows in (10, 1000):
        explanation = taper_frontend.explain(Steps(), (torch.rand(rows, 4) + 1, y))
        (fallback,) = explanation.fallbacks
        assert (fallback.op, fallback.nodes) == ("LGAMMA", 1)
        shares.append(fallback.share)
    assert 0 < shares[0] < shares[1] < 1


class Mixed(torch.nn.Module):
    """Nodes for kernels and for numpy: in a row, in both branches, beside a state that is kept."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x):
        self.total += x.lgamma().sum(0)
        y = torch.cond(
            x.sum() > 0,
            lambda x: torch.hypot(x, x + 1).relu(),
            lambda x: torch.digamma(x) * 2,
            (x,),
        )
        return torch.special.i0(y) @ y.T


@NUMPY
@pytest.mark.parametrize("dims", thinned(2, [({0: Dim("n", max=9)},), None]))
def test_the_nodes_that_a_plan_lists_are_those_that_a_session_leaves_to_numpy(dims):
    rows, square = torch.rand(3, 4) + 1, torch.rand(8, 8)
    for module, args in ((Mixed(), (rows,)), (Steps(), (rows, square))):
        shapes = dims if dims is None or len(args) == 1 else (*dims, None)
        plan = taper_frontend.export(module, args, dynamic_shapes=shapes)
        listed = [fallback["node"] for fallback in plan.metadata["fallbacks"]]
        session = taper_runtime.InferenceSession(plan)
        assert listed == [*session.kernel_kinds()["numpy"]] != []
