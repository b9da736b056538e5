"""Plain attributes of a module: states of the plan, as buffers are, or a warning."""

import copy
import re
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import taper_frontend
from taper_frontend import ExportError, ExportWarning
from taper_frontend.capture.attributes import attributes_as_buffers
from taper_runtime import InferenceSession

Pair = namedtuple("Pair", ["h", "c"])


class Whole(nn.Module):
    """A tensor that is the attribute."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.h = torch.zeros(2, 3)

    def forward(self, x):
        self.h = torch.tanh(self.linear(x) + self.h)
        return self.h


class Twice(nn.Module):
    """The same attribute in two parts."""

    def __init__(self, kind=Whole):
        super().__init__()
        self.first, self.second = kind(), kind()

    def forward(self, x):
        return self.second(self.first(x))


class Assigned(Whole):
    """The attribute is a buffer that is assigned to."""

    def __init__(self):
        super().__init__()
        del self.h
        self.register_buffer("h", torch.zeros(2, 3))


class Last(nn.Module):
    """The buffer becomes the input itself."""

    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(2, 3))

    def forward(self, x):
        change = x - self.last
        self.last = x
        return change


class Recurrent(nn.Module):
    """The tuple that a recurrent layer gives, as in beat trackers."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 3)
        self.hidden = torch.zeros(1, 2, 3), torch.zeros(1, 2, 3)

    def forward(self, x):
        y, self.hidden = self.lstm(x[None], self.hidden)
        return y


class Layers(nn.Module):
    """A list with a tensor for each layer, of which elements are replaced."""

    def __init__(self):
        super().__init__()
        self.cells = nn.ModuleList(nn.GRUCell(3, 3) for _ in range(3))
        self.states = [torch.zeros(2, 3) for _ in range(3)]

    def forward(self, x):
        for layer, cell in enumerate(self.cells):
            x = self.states[layer] = cell(x, self.states[layer])
        return x


class Dict(nn.Module):
    """A dict with a list in it, and a counter that is a tensor."""

    def __init__(self):
        super().__init__()
        self.kept = {"mean": [torch.zeros(2, 3)], "count": torch.tensor(0)}

    def forward(self, x):
        self.kept["count"] += 1
        self.kept["mean"][0] = self.kept["mean"][0] + x
        return self.kept["mean"][0] / self.kept["count"]


@dataclass
class Running:
    """What is seen so far."""

    total: torch.Tensor
    seen: torch.Tensor


class Object(nn.Module):
    """A dataclass that is made anew, and a named tuple."""

    def __init__(self):
        super().__init__()
        self.running = Running(torch.zeros(2, 3), torch.tensor(0))
        self.pair = Pair(torch.zeros(2, 3), torch.ones(2, 3))

    def forward(self, x):
        self.running = Running(self.running.total + x, self.running.seen + 1)
        self.pair = Pair(self.pair.c, self.pair.h * 0.5 + x)
        return self.running.total / self.running.seen + self.pair.h


class Fields(nn.Module):
    """The fields of an object of any class are replaced."""

    class Memory:
        """No dataclass."""

        def __init__(self):
            self.rows = torch.zeros(2, 3)

    def __init__(self):
        super().__init__()
        self.memory = self.Memory()

    def forward(self, x):
        self.memory.rows = self.memory.rows * 0.5 + x
        return self.memory.rows


class InPlace(nn.Module):
    """The tensor is written to."""

    def __init__(self):
        super().__init__()
        self.h = torch.zeros(2, 3)
        self.rows = [torch.zeros(4, 3)]

    def forward(self, x):
        self.h.mul_(0.5).add_(x)
        self.rows[0][1] += x[0]
        return self.h * 2 + self.rows[0].sum(0)


class Shared(nn.Module):
    """All layers have the same object, of which each has a row."""

    class Layer(nn.Module):
        """Writes to its own row."""

        def __init__(self, place, memory):
            super().__init__()
            self.place, self.memory = place, memory

        def forward(self, x):
            self.memory["rows"][self.place] = self.memory["rows"][self.place] * 0.5 + x
            return self.memory["rows"][self.place]

    def __init__(self):
        super().__init__()
        memory = {"rows": [torch.zeros(2, 3) for _ in range(3)]}
        self.layers = nn.Sequential(*(self.Layer(place, memory) for place in range(3)))

    def forward(self, x):
        return self.layers(x)


STATES = {
    Whole: ["h"],
    Twice: ["first.h", "second.h"],
    Assigned: ["h"],
    Last: ["last"],
    Recurrent: ["hidden_0", "hidden_1"],
    Layers: ["states_0", "states_1", "states_2"],
    Dict: ["kept_count", "kept_mean_0"],
    Object: ["running_total", "running_seen", "pair_h", "pair_c"],
    Fields: ["memory_rows"],
    InPlace: ["h", "rows_0"],
    Shared: [f"layers.0.memory_rows_{layer}" for layer in range(3)],
}


def attributes_of(module):
    return {
        (name, key): value
        for name, part in module.named_modules()
        for key, value in vars(part).items()
        if not key.startswith("_forward")
    }


def assert_runs_alike(module, plan):
    """Four calls of both sides give the same."""
    session = InferenceSession(plan)
    for _ in range(4):
        x = torch.randn(2, 3)
        with torch.no_grad():
            want = module(x).numpy()
        np.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], want, atol=1e-5)


@pytest.mark.parametrize("kind", STATES)
def test_a_tensor_that_forward_replaces_is_state(kind):
    torch.manual_seed(0)
    module = kind().eval()
    before = attributes_of(module)
    with pytest.warns(ExportWarning, match="results depend on earlier runs of the session"):
        plan = taper_frontend.export(module, (torch.randn(2, 3),))
    assert sorted(plan.states) == sorted(STATES[kind])
    after = attributes_of(module)
    assert after.keys() == before.keys()
    assert all(after[key] is value for key, value in before.items())
    assert plan.metadata["verified"]["trials"] == 3
    assert_runs_alike(module, plan)


def test_registered_buffers_of_two_parts_are_assigned_to():
    module = Twice(Assigned).eval()
    with pytest.warns(ExportWarning, match=r"first\.h, second\.h"):
        plan = taper_frontend.export(module, (torch.randn(2, 3),))
    assert_runs_alike(module, plan)


@pytest.mark.filterwarnings("ignore::taper_frontend.ExportWarning")
def test_state_begins_with_what_the_module_has():
    module = Recurrent().eval()
    with torch.no_grad():
        module(torch.randn(2, 3))  # a user tries the module before the export
    hidden = module.hidden
    plan = taper_frontend.export(module, (torch.randn(2, 3),))
    assert module.hidden is hidden
    np.testing.assert_array_equal(plan.first_value("hidden_0"), hidden[0].numpy())
    assert_runs_alike(module, plan)


class Cached(nn.Module):
    """What later calls do not depend on: masks, a table, results for others to see."""

    def __init__(self):
        super().__init__()
        self._mask = None
        self.table = torch.zeros(2, 3)
        self.attention, self.last = None, torch.zeros(2, 2)
        self.ready = False
        self.linear = nn.utils.spectral_norm(nn.Linear(3, 3))

    def forward(self, x):
        self._mask = torch.ones(2, 3).tril()
        self.table = torch.full((2, 3), 2.0)
        self.attention = self.last = torch.softmax(x @ x.T, -1)
        self.ready = True
        return self.linear(self.last @ x * self._mask * self.table)


def test_what_no_later_call_reads_is_no_state_and_no_warning():
    module = Cached().eval()
    plan = taper_frontend.export(module, (torch.randn(2, 3),))
    assert not plan.states
    assert plan.metadata["warnings"] == []
    assert module._mask is None
    assert_runs_alike(module, plan)


class Counter(nn.Module):
    """A number of Python's."""

    def __init__(self):
        super().__init__()
        self.part = nn.Module()
        self.part.n = 0

    def forward(self, x):
        self.part.n += 1
        return x * self.part.n


class Late(nn.Module):
    """None before the first call."""

    def __init__(self):
        super().__init__()
        self.h = None

    def forward(self, x):
        self.h = x if self.h is None else self.h * 0.5 + x
        return self.h


class Growing(nn.Module):
    """A cache that becomes longer."""

    def __init__(self):
        super().__init__()
        self.keys = torch.zeros(0, 3)

    def forward(self, x):
        self.keys = torch.cat([self.keys, x])
        return self.keys.sum(0)


class First(nn.Module):
    """The first call's value stays."""

    def __init__(self):
        super().__init__()
        self.kept = {}

    def forward(self, x):
        if "x" not in self.kept:
            self.kept["x"] = x * 2
        return self.kept["x"] + x


class Flag(nn.Module):
    """A bool that says what a tensor is good for."""

    def __init__(self):
        super().__init__()
        self.begun, self.last = False, torch.zeros(2, 3)

    def forward(self, x):
        change = x - self.last if self.begun else x
        self.begun, self.last = True, x
        return change


class Seen(nn.Module):
    """A field of an object counts."""

    def __init__(self):
        super().__init__()
        self.memory = Running(torch.zeros(1), 0)

    def forward(self, x):
        self.memory.seen += 1
        return x * self.memory.seen


class Array(nn.Module):
    """An array of numpy's, which torch takes for a constant."""

    def __init__(self):
        super().__init__()
        self.shift = np.zeros(3, np.float32)

    def forward(self, x):
        self.shift = self.shift + np.float32(1)
        return x + torch.from_numpy(self.shift)


TOLD = {
    Array: r"shift \(float32\[3\], then float32\[3\]\)",
    Counter: r"part\.n \(0, then 1\)",
    Late: r"h \(None, then float32\[2, 3\]\)",
    Growing: r"keys \(float32\[0, 3\], then float32\[2, 3\]\)",
    First: r"kept\['x'\] \(nothing, then float32\[2, 3\]\)",
    Flag: r"begun \(False, then True\)",
    Seen: r"memory\.seen \(0, then 1\)",
}


@pytest.mark.parametrize("kind", TOLD)
def test_what_cannot_be_state_is_told_of(kind):
    module = kind().eval()
    with pytest.warns(ExportWarning, match=f"a call of the module changes {TOLD[kind]};") as told:
        plan = taper_frontend.export(module, (torch.randn(2, 3),))
    assert [warning.message.kind for warning in told] == ["state"]
    assert not plan.states
    x = torch.randn(2, 3)
    with torch.no_grad():
        want = module(x).numpy()
    np.testing.assert_allclose(InferenceSession(plan).run(None, {"x": x.numpy()})[0], want)


def test_explain_says_the_same():
    explanation = taper_frontend.explain(Counter().eval(), (torch.randn(2, 3),))
    assert "part.n (0, then 1)" in explanation.warnings[0]


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


def test_a_copy_of_the_module_runs_on_other_tensors_meanwhile():
    module = Layers().eval()
    x = torch.randn(2, 3)
    with attributes_as_buffers(module, (x,), {}) as notes, torch.no_grad():
        assert notes == []
        names = [name for name, _ in module.named_buffers()]
        assert names == ["states_0", "states_1", "states_2"]
        given = {name: torch.randn(2, 3) for name in names}
        before = {name: value.clone() for name, value in given.items()}
        first = torch.func.functional_call(module, given, (x,))
        again = torch.func.functional_call(module, before, (x,))
        torch.testing.assert_close(first, again)
        assert [name for name, _ in module.named_buffers()] == names
        assert all(not buffer.any() for buffer in module.buffers())


def test_a_module_that_raises_keeps_its_buffers():
    class Raising(Whole):
        def forward(self, x):
            y = super().forward(x)
            if x.shape[0] == 2:
                return y
            raise ValueError("no")

    module = Raising().eval()
    with attributes_as_buffers(module, (torch.randn(2, 3),), {}):
        with pytest.raises(ValueError, match="no"):
            module(torch.randn(1, 3))
        assert [name for name, _ in module.named_buffers()] == ["h"]
    assert "h" in vars(module)
