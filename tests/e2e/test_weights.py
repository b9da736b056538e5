"""Replaceable weights: a session computes the constants that an export of new values has."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import taper_frontend
from taper_frontend.compiler.planning import join_plans
from taper_runtime import InferenceSession, InputError, SessionOptions
from tools.zoo import GROUPS
from weight_swaps import seen_during_swaps

torch.set_num_threads(1)

pytestmark = pytest.mark.filterwarnings("ignore::taper_frontend.ExportWarning")


def replaceable(module, args=(), kwargs=None, **how):
    return taper_frontend.export(module, args, kwargs, weights="replaceable", verify=False, **how)


def retrained(module):
    """A copy with other values of all floats of its state dict."""
    other = copy.deepcopy(module)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for tensor in other.state_dict().values():
            if tensor.is_floating_point():
                tensor.mul_(0.5 + torch.rand(tensor.shape, generator=generator).to(tensor.dtype))
    return other


def values(module):
    return {name: as_array(tensor) for name, tensor in module.state_dict().items()}


def as_array(tensor):
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy()
    return tensor.numpy()


def same_constants(plan, other):
    assert plan.constants.keys() == other.constants.keys()
    return all(plan.constants[n].tobytes() == a.tobytes() for n, a in other.constants.items())


class Everything(nn.Module):
    """Weights that are packed, merged, scaled by batch norms and transformed for Winograd."""

    def __init__(self):
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.second, self.norm2 = nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)
        self.q, self.k, self.v = (nn.Linear(32, 32) for _ in range(3))

    def forward(self, x):
        y = torch.relu(self.norm1(self.first(x)))
        y = torch.relu(self.norm2(self.second(y))).flatten(2).transpose(1, 2)
        q, k, v = (f(y).unflatten(2, (4, 8)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return nn.functional.scaled_dot_product_attention(q, k, v)


X = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
FEED = {"x": X.numpy()}


@pytest.fixture(scope="module")
def everything():
    torch.manual_seed(0)
    return retrained(Everything().eval())


@pytest.fixture(scope="module")
def plan(everything):
    return replaceable(everything, (X,))


def test_a_weight_of_every_kind_is_updated_as_an_export_has_it(everything, plan):
    formats = {spec.format for spec in plan.tensors.values()}
    assert {"winograd.4", "panels.1"} <= formats
    assert len(plan.made_from("q.weight")) == 1
    assert plan.made_from("q.weight") == plan.made_from("v.weight")
    session = InferenceSession(plan)
    for name, value in values(retrained(everything)).items():
        session.weights.update(name, value)
    fresh = replaceable(retrained(everything), (X,))
    assert same_constants(session.plan, fresh)
    (got,) = session.run(None, FEED)
    (want,) = InferenceSession(fresh).run(None, FEED)
    assert got.tobytes() == want.tobytes()
    torch.testing.assert_close(torch.from_numpy(got), retrained(everything)(X))


def test_one_update_alone(everything, plan):
    for name in ("second.weight", "norm2.running_var", "k.weight", "first.bias"):
        session = InferenceSession(plan)
        module = copy.deepcopy(everything)
        state = module.state_dict()
        with torch.no_grad():
            state[name].mul_(1.25)
        session.weights.update(name, state[name].numpy())
        assert same_constants(session.plan, replaceable(module, (X,))), name


@pytest.mark.parametrize("kind", ["mapping", "safetensors", "pt2", "callback"])
def test_a_set_from_everywhere(kind, everything, plan, tmp_path):
    other = retrained(everything)
    session = InferenceSession(plan)
    if kind == "mapping":
        source = values(other)
    elif kind == "callback":
        source = lambda name, spec: values(other)[name]  # noqa: E731
    elif kind == "safetensors":
        source = tmp_path / "m.safetensors"
        save_file(other.state_dict(), source)
    else:
        source = tmp_path / "m.pt2"
        torch.export.save(torch.export.export(other, (X,)), source)
    session.weights.load(source)
    session.weights.commit()
    assert same_constants(session.plan, replaceable(other, (X,)))


def test_folding_at_open_has_the_same_bits(plan, tmp_path):
    plan.save(tmp_path / "whole.taper")
    plan.save(tmp_path / "small.taper", folded=False)
    options = SessionOptions()
    options.runtime_const_folding = True
    results = [
        InferenceSession(tmp_path / "whole.taper").run(None, FEED)[0],
        InferenceSession(tmp_path / "whole.taper", options).run(None, FEED)[0],
        InferenceSession(tmp_path / "small.taper", options).run(None, FEED)[0],
    ]
    assert len({result.tobytes() for result in results}) == 1
    sizes = [(tmp_path / name).stat().st_size for name in ("small.taper", "whole.taper")]
    assert sizes[0] < sizes[1]


def test_two_hundred_swaps_under_eight_threads(everything, plan):
    """Each result is that of exactly one set."""
    session = InferenceSession(plan)
    sets, module = [], everything
    for _ in range(4):
        sets.append(values(module))
        module = retrained(module)
    right = []
    for each in sets:
        session.weights.load(each)
        session.weights.commit()
        right.append(session.run(None, FEED)[0].tobytes())
    assert len(set(right)) == len(sets)
    seen = seen_during_swaps(session, sets, lambda: session.run(None, FEED)[0].tobytes())
    assert seen <= set(right)
    assert len(seen) > 1


class Delicate(nn.Module):
    """Weights that a compiler which looked at them would merge, drop or write into nodes."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)  # equal
        self.one, self.ones = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(8))
        self.zeros = nn.Parameter(torch.zeros(8))
        self.register_buffer("order", torch.arange(8))
        self.register_buffer("keep", torch.ones(8, dtype=torch.bool))
        self.register_buffer("scalar", torch.tensor(1.0))
        self.register_buffer("causal", torch.ones(4, 4, dtype=torch.bool).tril())

    def forward(self, x):
        y = self.norm2(self.norm1(x)) * self.one * self.ones + self.zeros
        y = torch.where(self.keep, y.index_select(-1, self.order), 0.0) * self.scalar
        y = y.view(1, 1, 4, 8)
        return nn.functional.scaled_dot_product_attention(y, y, y, attn_mask=self.causal)


def test_no_value_decides_what_a_plan_is():
    x = torch.randn(4, 8)
    module = Delicate().eval()
    plan = replaceable(module, (x,))
    assert all(plan.made_from(name) for name in module.state_dict())
    other = retrained(module)
    with torch.no_grad():
        other.order.copy_(torch.tensor([3, 1, 4, 1, 5, 0, 2, 6]))
        other.keep[2:5] = False
        other.causal[0] = torch.tensor([True, False, True, True])
    session = InferenceSession(plan)
    session.weights.load(values(other))
    session.weights.commit()
    (got,) = session.run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), other(x))
    assert same_constants(session.plan, replaceable(other, (x,)))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.embed(ids))


def test_tied_weights_are_one_with_two_names():
    ids = torch.tensor([[1, 2, 3]])
    module = Tied().eval()
    plan = replaceable(module, (ids,))
    (spec,) = plan.weights.values()
    assert {spec.name, *spec.aliases} == {"embed.weight", "head.weight"}
    session = InferenceSession(plan)
    session.weights.update("head.weight", module.head.weight.detach().numpy() * 2)
    (got,) = session.run(None, {"ids": ids.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), 4 * module(ids))


def test_buffers_outside_of_the_state_dict_stay():
    """What is no part of the state dict is a constant of the program."""

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4))
            self.register_buffer("table", torch.randn(4), persistent=False)

        def forward(self, x):
            return x + self.weight * self.table

    plan = replaceable(Masked(), (torch.randn(4),))
    assert {name: spec.kind for name, spec in plan.weights.items()} == {
        "table": "constant",
        "weight": "parameter",
    }
    with pytest.raises(InputError, match="'table' is a constant of the program"):
        InferenceSession(plan).weights.update("table", np.zeros(4, np.float32))


class Caching(nn.Module):
    """A weight beside a buffer that is written."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x):
        self.total += x * self.weight
        return self.total * self.weight


def test_state_is_no_weight():
    plan = replaceable(Caching(), (torch.ones(4),))
    assert list(plan.weights) == ["weight"]
    session = InferenceSession(plan)
    new = np.arange(4, dtype=np.float32)
    session.run(None, {"x": np.ones(4, np.float32)})
    before = session.get_state("total")
    session.weights.update("weight", new)
    (got,) = session.run(None, {"x": np.ones(4, np.float32)})
    np.testing.assert_allclose(got, (before + new) * new, rtol=1e-6)
    with pytest.raises(InputError, match="'total' is a state and not a weight; set_state"):
        session.weights.load({"weight": new, "total": new})


class Picks(nn.Module):
    """A size that the run computes, between two weights: several segments."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        y = self.first(x)
        return self.second(y[(y > 0).any(-1)])


@pytest.mark.parametrize("executor", ["compiled", "interpreted"])
def test_segments_see_one_set(executor):
    x = torch.randn(6, 4)
    module = Picks().eval()
    options = SessionOptions()
    options.executor = executor
    session = InferenceSession(replaceable(module, (x,)), options)
    other = retrained(module)
    for each in (other, module):
        session.weights.load(values(each))
        session.weights.commit()
        (got,) = session.run(None, {"x": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(got), each(x))


def test_weights_inside_control_flow():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return torch.cond(x.sum() > 0, self.a, self.b, (x,))

    x = torch.randn(2, 4)
    module = Branches().eval()
    plan = replaceable(module, (x,))
    other = retrained(module)
    session = InferenceSession(plan)
    session.weights.load(values(other))
    session.weights.commit()
    for feed in (x.abs(), -x.abs()):
        (got,) = session.run(None, {"x": feed.numpy()})
        torch.testing.assert_close(torch.from_numpy(got), other(feed))


def test_entries_share_their_weights(everything, plan, tmp_path):
    class Twice(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x) * 2

        def state_dict(self, **how):
            return self.inner.state_dict(**how)

    small = X[..., :8, :8].clone()
    joined = join_plans({"large": plan, "small": replaceable(everything, (small,))})
    joined.save(tmp_path / "m.taper")
    assert len(joined.weights) == len(plan.weights)
    session = InferenceSession(tmp_path / "m.taper")
    feed = {"x": small.numpy()}
    session.run(None, feed, entry="small")
    other = retrained(everything)
    session.weights.load(values(other))
    session.weights.commit()
    torch.testing.assert_close(torch.from_numpy(session.run(None, FEED)[0]), other(X))
    (got,) = session.run(None, feed, entry="small")
    torch.testing.assert_close(torch.from_numpy(got), other(small))
    with pytest.raises(taper_frontend.ExportError, match="expected the same type, value and names"):
        join_plans({"large": plan, "small": replaceable(other, (small,))})


def test_the_default_looks_at_values_as_before():
    x = torch.randn(4, 8)
    fixed = taper_frontend.export(Delicate().eval(), (x,), verify=False)
    assert not fixed.weights
    assert len(fixed.nodes) < len(replaceable(Delicate().eval(), (x,)).nodes)
    with pytest.raises(taper_frontend.ExportError, match="weights: expected one of fixed, replace"):
        taper_frontend.export(Delicate().eval(), (x,), weights="free")


#: Of the zoo.
ARCHITECTURES = [("text", "LlamaForCausalLM"), ("vision", "ResNetForImageClassification")]


@pytest.mark.parametrize(("group", "name"), ARCHITECTURES)
def test_architectures_of_the_zoo(group, name):
    """Two exports of other weights differ in nothing but what recipes compute."""
    module, inputs = GROUPS[group][name].build()
    plan = replaceable(module, (), inputs)
    other = retrained(module)
    session = InferenceSession(plan)
    session.weights.load(values(other))
    session.weights.commit()
    fresh = replaceable(other, (), inputs)
    assert same_constants(session.plan, fresh)
    assert session.plan.fingerprint() == fresh.fingerprint()
