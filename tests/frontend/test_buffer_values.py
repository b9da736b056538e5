"""Modules that decide by buffers and plain tensors which inference never writes."""

import numpy as np
import pytest
import torch

import taper_frontend
import taper_runtime
from taper_frontend import ExportError
from taper_frontend.errors import CaptureError

torch.set_num_threads(1)


class Quantizer(torch.nn.Module):
    """A codebook that training initializes, as vector quantizers have them."""

    def __init__(self, ready=True):
        super().__init__()
        self.register_buffer("initted", torch.tensor([ready]))
        self.register_buffer("layers", torch.tensor(3))
        self.register_buffer("counts", torch.zeros(5))
        self.codebook = torch.nn.Parameter(torch.randn(8, 4))

    def forward(self, x):
        if not self.initted:
            self.codebook.data.copy_(x[:8])
            self.initted.fill_(True)
        if torch.all(self.counts == 0):
            x = x * 2
        for _ in range(int(self.layers)):
            away = (x[:, None] - self.codebook).square().sum(-1)
            x = x - self.codebook[away.argmin(-1)]
        return x * self.layers.item() + (self.counts.sum() > 1).float()


def test_a_flag_is_read():
    module = Quantizer().eval()
    plan = taper_frontend.export(module, (torch.randn(6, 4),), dynamic_shapes=({0: "n"},))
    assert plan.metadata["verified"]["trials"] >= 3
    assert plan.metadata["warnings"] == []
    session = taper_runtime.InferenceSession(plan)
    for n in (1, 2, 9):
        x = torch.randn(n, 4)
        want = module(x).detach().numpy()
        np.testing.assert_allclose(session(x.numpy()), want, rtol=1e-4, atol=1e-5)


def test_the_values_are_those_of_the_export():
    """Another value of a buffer is another program."""
    module = Quantizer().eval()
    module.layers.fill_(1)
    module.counts.fill_(2)
    x = torch.randn(3, 4)
    session = taper_runtime.InferenceSession(taper_frontend.export(module, (x,)))
    np.testing.assert_allclose(session(x.numpy()), module(x).detach().numpy(), rtol=1e-5)


class Padded(torch.nn.Module):
    """Pads by numbers of a buffer and a plain tensor, as causal convolutions of codecs do."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.tensor(3))
        self.part = torch.nn.Identity()
        self.part.causal = torch.tensor(True)

    def forward(self, x):
        left = self.total if self.part.causal else self.total // 2
        return torch.nn.functional.pad(x, (left, left - self.total))


@pytest.mark.parametrize("causal", [True, False, None])
def test_numbers_are_read(causal):
    """torch alone exports the last: a padding of unknown size, which might be negative."""
    module = Padded().eval()
    module.part.causal = causal if causal is None else torch.tensor(causal)
    plan = taper_frontend.export(module, (torch.randn(2, 5),), dynamic_shapes=({0: "n"},))
    assert plan.metadata["warnings"] == []
    x = torch.randn(4, 5)
    want = module(x).numpy()
    np.testing.assert_array_equal(taper_runtime.InferenceSession(plan)(x.numpy()), want)


class Windows(torch.nn.Module):
    """Chooses patches by sizes in a buffer, as vision towers that attend in windows do."""

    def __init__(self):
        super().__init__()
        self.register_buffer("grid", torch.tensor([[2, 3]]))

    def forward(self, x):
        for height, width in self.grid.tolist():
            places = torch.arange(height * width).reshape(height, width)
            places = torch.nn.functional.pad(places, (0, 1), value=-1).T.reshape(-1)
            last = (places >= 0).cumsum(0).tolist()[-1]
            x = x[places[places >= 0]] * last
        return x


class Triangle(torch.nn.Module):
    """Reads places that depend on nothing, whose number a weight's shape tells torch."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 2)

    def forward(self, x):
        return self.linear(x.flatten(1)[:, torch.ones(3, 3).triu().flatten().nonzero()[:, 0]])


@pytest.mark.parametrize("module", [Windows(), Triangle()])
def test_masks_of_known_values(module):
    x = torch.randn(6, 9)
    with torch.no_grad():
        want = module(x).numpy()
        got = taper_runtime.InferenceSession(taper_frontend.export(module.eval(), (x,)))(x.numpy())
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


class Counter(torch.nn.Module):
    """A buffer that each call writes decides."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("limit", torch.tensor(2))

    def forward(self, x):
        self.calls.add_(1)
        return x * 2 if self.calls > self.limit else x


def test_a_buffer_that_a_call_writes_does_not_decide():
    with pytest.raises(CaptureError, match="reads a number from a tensor and branches"):
        taper_frontend.export(Counter().eval(), (torch.randn(2),))


def test_a_plain_tensor_that_a_call_writes_does_not_decide():
    module = Counter().eval()
    del module.calls
    module.calls = torch.tensor(0)
    with pytest.raises(CaptureError, match="reads a number from a tensor and branches"):
        taper_frontend.export(module, (torch.randn(2),))


class Both(torch.nn.Module):
    """A written buffer beside one that is read."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("twice", torch.tensor(True))

    def forward(self, x):
        self.calls.add_(1)
        return (x * 2 if self.twice else x) + self.calls


@pytest.mark.filterwarnings("ignore::taper_frontend.ExportWarning")
def test_state_stays_state():
    plan = taper_frontend.export(Both().eval(), (torch.zeros(2),))
    session = taper_runtime.InferenceSession(plan)
    x = np.ones(2, np.float32)
    assert [session(x)[0] for _ in range(3)] == [3, 4, 5]


class Argument(torch.nn.Module):
    """A value of an argument decides: by itself, or written into a tensor of known values."""

    def __init__(self, writes):
        super().__init__()
        self.writes = writes
        self.register_buffer("on", torch.tensor(True))

    def forward(self, x):
        total = x.sum()
        if self.writes:
            known = torch.zeros(3)
            known[0] = total
            known[1:].add_(total)
            total = known.sum()
        return x * 2 if self.on and total > 0 else x


@pytest.mark.parametrize("writes", [False, True])
def test_a_value_of_an_argument_does_not_decide(writes):
    with pytest.raises(CaptureError, match="reads a number from a tensor and branches"):
        taper_frontend.export(Argument(writes).eval(), (torch.randn(2),))


def test_replaceable_weights_do_not_decide():
    with pytest.raises(ExportError, match="reads the values of counts, initted, layers; make"):
        taper_frontend.export(Quantizer().eval(), (torch.randn(2, 4),), weights="replaceable")
