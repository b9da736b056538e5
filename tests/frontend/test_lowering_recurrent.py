"""LSTM, GRU and simple recurrent networks in every configuration."""

from __future__ import annotations

import itertools

import pytest
import torch

from lowering import check_lowering, lower_model, ops_of
from models import All
from taper_frontend.errors import ExportError, UnsupportedNodesError

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")

STEPS, BATCH, INPUT, HIDDEN = 5, 3, 4, 6


def configurations(kind, **more):
    keys = {"num_layers": (1, 2), "bidirectional": (False, True), "bias": (False, True), **more}
    for values in itertools.product(*keys.values()):
        yield kind(INPUT, HIDDEN, **dict(zip(keys, values, strict=True)))


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (torch.nn.LSTM, {"proj_size": (0, 2)}),
        (torch.nn.GRU, {}),
        (torch.nn.RNN, {"nonlinearity": ("tanh", "relu")}),
    ],
    ids=["LSTM", "GRU", "RNN"],
)
def test_every_configuration(kind, more, batch_first):
    torch.manual_seed(0)
    modules = list(configurations(kind, batch_first=(batch_first,), **more))
    graph = check_lowering(All(modules).eval(), torch.randn(STEPS, BATCH, INPUT))
    layers = sum(m.num_layers * (2 if m.bidirectional else 1) for m in modules)
    assert ops_of(graph).count(kind.__name__) == layers


def test_initial_state_and_no_batch():
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(INPUT, HIDDEN, 2).eval()
    state = torch.randn(2, BATCH, HIDDEN), torch.randn(2, BATCH, HIDDEN)
    check_lowering(lstm, torch.randn(STEPS, BATCH, INPUT), state)
    check_lowering(torch.nn.GRU(INPUT, HIDDEN).eval(), torch.randn(STEPS, INPUT))


def test_half():
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(INPUT, HIDDEN).to(torch.bfloat16).eval()
    x = torch.randn(STEPS, BATCH, INPUT).to(torch.bfloat16)
    (got, *_), want = evaluate_one(lstm, x), lstm(x)[0]
    torch.testing.assert_close(got.view(torch.bfloat16), want, rtol=2e-2, atol=2e-2)


def evaluate_one(model, x):
    from lowering import evaluate_graph

    return evaluate_graph(lower_model(model, x).graph, [x])


def test_long_sequence_is_one_node():
    graph = lower_model(torch.nn.GRU(INPUT, HIDDEN).eval(), torch.randn(2000, 1, INPUT)).graph
    assert len(graph.nodes) < 20


def test_cells():
    torch.manual_seed(0)
    for kind in (torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell):
        check_lowering(kind(INPUT, HIDDEN).eval(), torch.randn(BATCH, INPUT), rtol=1e-5, atol=1e-6)


def test_dropout_in_training_mode_is_refused():
    lstm = torch.nn.LSTM(INPUT, HIDDEN, 2, dropout=0.5).train()
    with pytest.raises(UnsupportedNodesError, match="random"):
        lower_model(lstm, torch.randn(STEPS, BATCH, INPUT))


def test_packed_sequence_is_refused():
    class Packed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = torch.nn.LSTM(INPUT, HIDDEN)

        def forward(self, x):
            lengths = torch.tensor([STEPS, 3, 2])
            packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths)
            return self.lstm(packed)[0].data

    with pytest.raises(ExportError):
        lower_model(Packed().eval(), torch.randn(STEPS, BATCH, INPUT))
