"""Modules whose first call changes what they have: parameters, buffers and attributes."""

import copy
import re

import numpy as np
import pytest
import torch
from torch import nn

import taper_frontend
from module_attributes import assert_runs_alike, attributes_of
from taper_frontend import ExportError, ExportWarning
from taper_frontend.capture.attributes import attributes_as_buffers
from taper_runtime import InferenceSession


class Once(nn.Module):
    """A first call does something for ever, of which a flag tells."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("scale", torch.ones(3))
        self.factor = torch.full((3,), 3.0)
        self.begun = False

    def forward(self, x):
        if not self.begun:
            with torch.no_grad():
                self.begin()
            self.begun = True
        return self.linear(x) * self.scale * self.factor

    def begin(self):
        raise NotImplementedError


class Rescaled(Once):
    """Weights are written to."""

    def begin(self):
        self.linear.weight.mul_(0.5)


class RescaledByOne(Once):
    """A write that changes no bit, as of the first layers of RWKV."""

    def begin(self):
        self.linear.weight.div_(1)


class RescaledData(Once):
    """The write is to what a parameter holds, which its version does not count."""

    def begin(self):
        self.linear.weight.data.mul_(0.5)


class ReplacedData(Once):
    """A parameter holds another tensor."""

    def begin(self):
        self.linear.weight.data = self.linear.weight.data.flip(0)


class ReplacedParameter(Once):
    """Another parameter takes its place."""

    def begin(self):
        self.linear.weight = nn.Parameter(self.linear.weight * 0.5)


class RescaledTogether(Once):
    """Parameters and buffers in one go, plain attributes too."""

    def begin(self):
        self.linear.weight.mul_(0.5)
        self.scale.mul_(0.5)
        self.factor = self.factor / 2


class ByVersion(Once):
    """A number is what tells."""

    @property
    def begun(self):
        return self.version == 1

    @begun.setter
    def begun(self, value):
        self.version = int(value)

    def begin(self):
        self.linear.weight.mul_(0.5)


class LazyParameter(nn.Module):
    """A parameter that a call makes."""

    def __init__(self):
        super().__init__()
        self.weight = None

    def forward(self, x):
        if self.weight is None:
            self.weight = nn.Parameter(torch.full((x.shape[-1],), 0.5))
        return x * self.weight


class LazyModule(nn.Module):
    """A module that a call makes, whose weights are random."""

    def __init__(self):
        super().__init__()
        self.linear = None

    def forward(self, x):
        if self.linear is None:
            self.linear = nn.Linear(x.shape[-1], 4)
        return self.linear(x)


class TorchsLazy(nn.Module):
    """What torch has for that, buffers too."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.LazyLinear(4), nn.LazyBatchNorm1d()

    def forward(self, x):
        return self.norm(self.linear(x))


class FirstData(nn.Module):
    """Parameters are made from the first batch, as of ActNorm."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(3))
        self.register_buffer("begun", torch.tensor(0))
        self.ready = False

    def forward(self, x):
        if not self.ready:
            self.shift.data.copy_(-x.mean(0))
            self.begun.fill_(1)
            self.ready = True
        return x + self.shift


FIRST_CALLS = {
    Rescaled: "linear.weight",
    RescaledByOne: "linear.weight",
    RescaledData: "linear.weight",
    ReplacedData: "linear.weight",
    ReplacedParameter: "linear.weight",
    RescaledTogether: "linear.weight",
    ByVersion: "linear.weight",
    LazyParameter: "weight",
    LazyModule: "linear.weight, linear.bias",
    TorchsLazy: "linear.weight, linear.bias, norm.weight, norm.bias",
    FirstData: "shift",
}


@pytest.mark.parametrize("kind", FIRST_CALLS)
def test_parameters_that_the_first_call_changes_are_as_it_left_them(kind):
    torch.manual_seed(0)
    module, x = kind().eval(), torch.randn(2, 3)
    torch.manual_seed(0)
    twin = kind().eval()
    changes = f"the first call of the module changes {re.escape(FIRST_CALLS[kind])};"
    with pytest.warns(ExportWarning, match=changes) as told:
        plan = taper_frontend.export(module, (x,))
    assert len(told) == 1
    assert not plan.states
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)  # of what the call draws
        twin(x)
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], value, rtol=0, atol=0)
    assert_runs_alike(twin, plan)
    assert_runs_alike(module, plan)


class RescaledBuffer(Once):
    """What is written to is a buffer."""

    def begin(self):
        self.scale.mul_(0.5)


class RescaledAttribute(Once):
    """What is replaced is a tensor in an attribute."""

    def begin(self):
        self.factor = self.factor * 0.5


class RescaledBuffers(Once):
    """Both, and results are kept for others to see."""

    def begin(self):
        self.scale.mul_(0.5)
        self.factor.mul_(0.5)

    def forward(self, x):
        self.last = super().forward(x)
        return self.last


@pytest.mark.parametrize("kind", [RescaledBuffer, RescaledAttribute, RescaledBuffers])
def test_what_every_first_call_does_alike_is_done_before(kind):
    torch.manual_seed(0)
    module, x = kind().eval(), torch.randn(2, 3)
    twin, before = copy.deepcopy(module), attributes_of(module)
    plan = taper_frontend.export(module, (x,))
    assert not plan.states
    assert plan.metadata["warnings"] == []
    after = attributes_of(module)
    assert after.keys() == before.keys()
    assert all(after[key] is value for key, value in before.items())
    assert module.scale.eq(1).all()
    assert module.factor.eq(3).all()
    assert_runs_alike(twin, plan)


class WarmUp(Once):
    """The first call gives something else than the later ones."""

    def forward(self, x):
        begun, self.begun = self.begun, True
        return x * 2 if begun else x


class RescaledOnceAndCounts(Rescaled):
    """The parameters are changed once, a number at every call."""

    def __init__(self):
        super().__init__()
        self.n = 0

    def forward(self, x):
        self.n += 1
        return super().forward(x) * self.n


class FirstBuffer(Once):
    """A buffer holds the first call's value for ever."""

    def forward(self, x):
        if not self.begun:
            self.scale.copy_(x[0])
            self.begun = True
        return x - self.scale


class ReplacedAlways(nn.Module):
    """Every call makes another parameter."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        self.weight = nn.Parameter(self.weight * 0.5)
        return x * self.weight


@pytest.mark.filterwarnings("ignore::taper_frontend.ExportWarning")
@pytest.mark.parametrize(
    ("kind", "changes"),
    {
        WarmUp: r"begun \(False, then True\)",
        FirstBuffer: r"begun \(False, then True\)",
        RescaledOnceAndCounts: r"n \(1, then 2\)",
        ReplacedAlways: r"weight \(float32\[3\], then float32\[3\]\)",
    }.items(),
)
def test_what_calls_change_otherwise_is_told_of(kind, changes):
    module, x = kind().eval(), torch.randn(2, 3)
    with pytest.warns(ExportWarning, match=f"a call of the module changes {changes};"):
        plan = taper_frontend.export(module, (x,))
    with torch.no_grad():
        want = module(x).numpy()
    got = InferenceSession(plan).run(None, {"x": x.numpy()})[0]
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_parameters_of_all_kinds_are_looked_at():
    class Kinds(nn.Module):
        def __init__(self):
            super().__init__()
            kinds = {
                "scalar": torch.tensor(2.0),
                "empty": torch.zeros(0, 3),
                "transposed": torch.ones(3, 2).t(),
                "coarse": torch.ones(3, dtype=torch.bfloat16),
                "complex": torch.ones(3, dtype=torch.complex64).conj(),
                "sparse": torch.eye(3).to_sparse(),
                "elsewhere": torch.zeros(3, device="meta"),
            }
            for name, tensor in kinds.items():
                self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))
            self.late = nn.parameter.UninitializedParameter()
            self.begun = False

        def forward(self, x):
            if not self.begun:
                self.transposed.data.mul_(0.5)
                self.coarse.data[0] = 2
                self.begun = True
            return x * self.transposed * self.scalar

    with attributes_as_buffers(Kinds(), (torch.ones(2, 3),), {}) as notes:
        (note,) = notes
    assert "changes transposed, coarse;" in note.text


def test_parameters_that_every_call_writes_to_are_refused():
    class Decays(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.n = 0

        def forward(self, x):
            self.n += 1
            with torch.no_grad():
                self.weight.mul_(0.5)
            return x * self.weight

    module = Decays().eval()
    with pytest.raises(ExportError, match=r"parameter 'weight'.*the model writes to it"):
        taper_frontend.export(module, (torch.randn(2, 3),))
    assert module.n == 0
