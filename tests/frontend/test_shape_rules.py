"""Ops of many steps in a capture: one op each, of any length; and torch as it was afterwards."""

from __future__ import annotations

import functools
import itertools
import threading

import numpy as np
import pytest
import torch
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim

import taper_frontend
import taper_runtime
from marks import NARROWED, some
from models import CRNN, All, seeded
from taper_frontend.capture import shape_rules as rules
from taper_frontend.capture.capture import capture
from taper_frontend.capture.shape_rules import shape_rules
from taper_frontend.errors import ExportError

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")

OPS = (
    torch.ops.aten.lstm.input,
    torch.ops.aten.gru.input,
    torch.ops.aten.rnn_tanh.input,
    torch.ops.aten.rnn_relu.input,
    torch.ops.aten.unfold_backward.default,
    torch.ops.aten.fill_diagonal_.default,
)
INPUT, HIDDEN = 4, 6
#: What capture keeps from users, of torch.export called without it.
TORCH_WARNS = pytest.mark.filterwarnings(
    "ignore:The tensor attribute:UserWarning", "ignore:.*LeafSpec:FutureWarning"
)
KINDS = {
    "LSTM": (torch.nn.LSTM, {"proj_size": (0, 2)}),
    "GRU": (torch.nn.GRU, {}),
    "RNN": (torch.nn.RNN, {"nonlinearity": ("tanh", "relu")}),
}

LAYOUTS = some(
    [*itertools.product(KINDS, (False, True))],
    [("LSTM", True), ("GRU", False), ("RNN", False), ("RNN", True)],
)


def layers(kind, **fixed):
    """Half of all choices of layers, directions, bias and what else: any three of them meet."""
    make, more = KINDS[kind]
    keys = {"num_layers": (1, 2), "bidirectional": (False, True), "bias": (False, True), **more}
    for places in itertools.product(range(2), repeat=len(keys)):
        if sum(places) % 2:
            continue
        settings = {key: values[i] for (key, values), i in zip(keys.items(), places, strict=True)}
        yield make(INPUT, HIDDEN, dropout=0.1 * (settings["num_layers"] - 1), **settings, **fixed)


def check(module, plan, *args):
    """The plan's results beside the module's."""
    feed = dict(zip(plan.inputs, (a.numpy() for a in args), strict=True))
    got = taper_runtime.InferenceSession(plan).run(None, feed)
    with torch.no_grad():
        want = torch.utils._pytree.tree_leaves(module(*args))
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("kind", "batch_first"), LAYOUTS)
def test_length_and_batch_vary(kind, batch_first):
    torch.manual_seed(0)
    module = All(layers(kind, batch_first=batch_first)).eval()
    dims = [Dim("batch"), Dim("steps")] if batch_first else [Dim("steps"), Dim("batch")]
    shape = (3, 5) if batch_first else (5, 3)
    example = (torch.randn(*shape, INPUT),)
    plan = taper_frontend.export(module, example, dynamic_shapes=(dict(enumerate(dims)),))
    assert plan.sizes["steps"][0] == 1, "torch takes no empty sequence"
    assert plan.sizes["batch"][0] == 0
    assert plan.metadata["fallbacks"] == []
    for steps, batch in ((1, 1), (5, 3), (8, 1), (1, 4), (17, 2), (3, 0)):
        sizes = (batch, steps) if batch_first else (steps, batch)
        check(module, plan, torch.randn(*sizes, INPUT))


@pytest.mark.parametrize("kind", KINDS)
def test_unbatched_length_and_state_vary(kind):
    """Whatever is AUTO varies, the states given as inputs too."""
    make, _ = KINDS[kind]
    torch.manual_seed(0)
    module = make(INPUT, HIDDEN).eval()
    dims = ({0: Dim.AUTO},)
    plan = taper_frontend.export(module, (torch.randn(5, INPUT),), dynamic_shapes=dims)
    for steps in (1, 4, 11):
        check(module, plan, torch.randn(steps, INPUT))

    def state(batch):
        h, c = torch.randn(1, batch, HIDDEN), torch.randn(1, batch, HIDDEN)
        return (h, c) if kind == "LSTM" else h

    auto = {1: Dim.AUTO}
    dims = ({0: Dim.AUTO, 1: Dim.AUTO}, (auto, auto) if kind == "LSTM" else auto)
    example = (torch.randn(5, 3, INPUT), state(3))
    plan = taper_frontend.export(module, example, dynamic_shapes=dims)
    for steps, batch in ((1, 2), (7, 1)):
        given = torch.randn(steps, batch, INPUT), state(batch)
        feed = [a.numpy() for a in torch.utils._pytree.tree_leaves(given)]
        got = taper_runtime.InferenceSession(plan).run(
            None, dict(zip(plan.inputs, feed, strict=True))
        )
        with torch.no_grad():
            want = torch.utils._pytree.tree_leaves(module(*given))
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_program_does_not_grow_with_the_sequence(kind):
    make, _ = KINDS[kind]
    module = make(INPUT, HIDDEN, num_layers=2, bidirectional=True).eval()
    programs = [capture(module, (torch.randn(steps, 1, INPUT),)) for steps in (2, 1000)]
    short, long = ([str(n.target) for n in p.graph.nodes] for p in programs)
    assert short == long
    assert sum(name in map(str, OPS) for name in long) == 1


@NARROWED
def test_crnn_reads_any_width():
    module = seeded(lambda: CRNN(channels=32, characters=11))
    image = torch.randn(2, 1, 64, 72)
    plan = taper_frontend.export(module, (image,), dynamic_shapes=({0: Dim.AUTO, 3: Dim.AUTO},))
    assert "specialized" not in plan.metadata
    for batch, width in ((2, 72), (1, 33), (3, 128), (1, 401)):
        check(module, plan, torch.randn(batch, 1, 64, width))


def tables():
    return [dict(op.py_kernels) for op in OPS] + [dict(decomposition_table)]


@TORCH_WARNS
def test_torch_is_as_it_was():
    before = tables()
    lstm = torch.nn.LSTM(INPUT, HIDDEN).eval()
    capture(lstm, (torch.randn(5, 3, INPUT),))
    assert tables() == before
    with pytest.raises(ExportError):
        capture(lstm, (torch.randn(5, 3, INPUT + 1),))
    assert tables() == before
    exported = torch.export.export(lstm, (torch.randn(5, 3, INPUT),)).run_decompositions()
    assert not any(n.target in OPS for n in exported.graph.nodes), "torch has its own steps again"


def count_calls(monkeypatch):
    """The calls of rules from now on."""
    calls = []

    def counted(rule, *args, **kwargs):
        calls.append(args)
        return rule(*args, **kwargs)

    made = {op: functools.partial(counted, rule) for op, rule in rules._RULES.items()}
    monkeypatch.setattr(rules, "_RULES", made)
    return calls


@TORCH_WARNS
@pytest.mark.parametrize(("kind", "batch_first"), LAYOUTS)
def test_shapes_and_strides_are_those_of_torch(kind, batch_first, monkeypatch):
    calls = count_calls(monkeypatch)
    module = All(layers(kind, batch_first=batch_first)).eval()
    example = (torch.randn(3, 2, INPUT),)

    def described():
        program = torch.export.export(module, example)
        results = [n.meta["val"] for n in program.graph.output_node().args[0]]
        return [(t.shape, t.stride(), t.dtype) for t in results]

    with torch.no_grad():
        want = described()
        assert calls == []
        with shape_rules():
            assert described() == want
    assert len(calls) == len(module.parts)


@pytest.mark.parametrize("varying", [False, True])
def test_frames_are_put_together_at_once(varying, monkeypatch):
    """Torch by itself takes as many steps as a frame has places."""
    calls = count_calls(monkeypatch)

    class Back(torch.nn.Module):
        def forward(self, x):
            spectrum = torch.stft(x, 64, 16, window=torch.hann_window(64), return_complex=True)
            return torch.istft(spectrum, 64, 16, window=torch.hann_window(64))

    shapes = ({0: Dim.AUTO},) if varying else None
    program = capture(Back(), (torch.randn(3, 640),), dynamic_shapes=shapes)
    (result,) = program.graph.output_node().args[0]
    assert result.meta["val"].shape[1] == 640
    assert len(calls) >= 2  # the signal and its window


def test_other_threads_and_real_tensors_get_the_rules_of_torch(monkeypatch):
    op = OPS[0]
    calls = []
    monkeypatch.setitem(decomposition_table, op, lambda *args: calls.append(args))
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.randn(5, 3, INPUT))
        state = [mode.from_tensor(torch.randn(1, 3, HIDDEN))] * 2
    settings = ([], True, 1, 0.0, False, False, False)
    with shape_rules():
        rule = decomposition_table[op]
        assert [t.shape[-1] for t in rule(fake, state, *settings)] == [HIDDEN] * 3
        assert calls == []
        rule(torch.randn(5, 3, INPUT), state, *settings)
        assert len(calls) == 1
        other = threading.Thread(target=rule, args=(fake, state, *settings))
        other.start()
        other.join()
        assert len(calls) == 2


def test_states_of_another_batch_are_refused():
    class Raw(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = torch.nn.LSTM(INPUT, HIDDEN)

        def forward(self, x, h, c):
            weights = self.lstm._flat_weights
            return torch.lstm(x, [h, c], weights, True, 1, 0.0, False, False, False)

    h = torch.randn(1, 2, HIDDEN)
    with pytest.raises(ExportError):
        capture(Raw().eval(), (torch.randn(5, 3, INPUT), h, h))


class Diagonals(torch.nn.Module):
    """Writes to diagonals: of a view, wrapped ones too, and of a cube."""

    def forward(self, x, cube):
        plain, wrapped, tall = x.clone(), x.clone(), x.repeat(3, 1)
        plain.T.fill_diagonal_(0.5)
        tall.fill_diagonal_(-1, wrap=True)
        same = (x @ x.T).fill_diagonal_(float("-inf")).softmax(1)
        return plain, wrapped.fill_diagonal_(2, True), tall, same, cube.clone().fill_diagonal_(3)


@torch.no_grad()
def test_diagonals_of_sizes_that_vary():
    module = Diagonals()
    shapes = {"x": {0: "n", 1: "m"}, "cube": dict.fromkeys(range(3), "k")}
    plan = taper_frontend.export(
        module, (torch.randn(5, 4), torch.randn(3, 3, 3)), dynamic_shapes=shapes
    )
    session = taper_runtime.InferenceSession(plan)
    for n, m, k in [(2, 9, 2), (9, 3, 5), (7, 7, 4)]:
        x, cube = torch.randn(n, m), torch.randn(k, k, k)
        results = session.run(None, {"x": x.numpy(), "cube": cube.numpy()})
        for got, want in zip(results, module(x, cube), strict=True):
            np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "message"), [((4,), "two axes or more"), ((3, 3, 4), "axes of one length")]
)
def test_no_diagonal(shape, message):
    class Filled(torch.nn.Module):
        def forward(self, x):
            return x.clone().fill_diagonal_(0)

    with pytest.raises(ExportError, match=message):
        capture(Filled(), (torch.zeros(shape),))
