"""Plain attributes of a module: states of the plan, as buffers are, or a warning."""

from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import taper_frontend
from marks import some
from module_attributes import assert_runs_alike, attributes_of
from taper_frontend import ExportWarning
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


class Delayed(nn.Module):
    """Returns a view of a tensor that it replaces, and moves others; two begin as one tensor."""

    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(2, 3))
        self.older = self.oldest = torch.ones(2, 3)

    def forward(self, x):
        oldest = self.oldest
        self.oldest, self.older, self.last = self.older, self.last, x
        return oldest.T


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
    Delayed: ["last", "older", "oldest"],
    Recurrent: ["hidden_0", "hidden_1"],
    Layers: ["states_0", "states_1", "states_2"],
    Dict: ["kept_count", "kept_mean_0"],
    Object: ["running_total", "running_seen", "pair_h", "pair_c"],
    Fields: ["memory_rows"],
    InPlace: ["h", "rows_0"],
    Shared: [f"layers.0.memory_rows_{layer}" for layer in range(3)],
}


@pytest.mark.parametrize("kind", some(STATES, [Twice, Assigned, Last, Dict, Fields]))
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


class LateBuffer(Late):
    """The same of a buffer, which torch.export takes for another result."""

    def __init__(self):
        super().__init__()
        del self.h
        self.register_buffer("h", None)


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
    LateBuffer: r"h \(None, then float32\[2, 3\]\)",
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


@pytest.mark.parametrize("registers", [False, True])
def test_a_buffer_that_the_first_call_makes(registers):
    """One that every first call makes alike needs no word; buffers stay as they are."""

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.tensor(2.0))
            self.register_buffer("mask", None, persistent=False)
            self.register_buffer("shift", torch.tensor(1.0))

        def forward(self, x):
            if self.mask is None:
                mask = torch.ones(x.shape[1], x.shape[1]).tril()
                if registers:
                    self.register_buffer("mask", mask, persistent=False)
                else:
                    self.mask = mask
            return x @ self.mask * self.scale + self.shift

    module = Masked().eval()
    plan = taper_frontend.export(module, (torch.randn(2, 3),))
    assert not plan.states
    assert [*module._buffers] == ["scale", "mask", "shift"]
    assert module.mask is None
    assert "mask" not in vars(module)


def test_explain_says_the_same():
    explanation = taper_frontend.explain(Counter().eval(), (torch.randn(2, 3),))
    assert "part.n (0, then 1)" in explanation.warnings[0]


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
