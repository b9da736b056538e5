"""Dropout inside attention and recurrent layers, and random slopes: torch's own numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import taper_frontend
from function_module import Function
from marks import NUMPY
from taper_runtime import InferenceSession, SessionOptions

torch.set_num_threads(1)

pytestmark = [
    NUMPY,
    pytest.mark.filterwarnings("ignore:.*training mode:taper_frontend.ExportWarning"),
]


def check(module, args, runs=2):
    """Seeded runs of the plan are the module's calls."""
    plan = taper_frontend.export(module, args)
    options = SessionOptions()
    options.seed = 5
    session = InferenceSession(plan, options)
    feed = {each.name: x.numpy() for each, x in zip(session.get_inputs(), args, strict=True)}
    torch.manual_seed(5)
    for _ in range(runs):
        (got,) = session.run(None, feed)
        with torch.no_grad():
            want = module(*args)
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=2e-6)
    return got


Q, K, V = (torch.randn(2, 4, 8, 16, generator=torch.Generator().manual_seed(i)) for i in range(3))
attention = F.scaled_dot_product_attention


@pytest.mark.parametrize(
    "function",
    [
        lambda q, k, v: attention(q, k, v, dropout_p=0.5),
        lambda q, k, v: attention(q[:, :, :5], k, v, dropout_p=0.3, is_causal=True, scale=0.5),
        lambda q, k, v: attention(q, k, v, attn_mask=k[0, 0, :, :8] > 0, dropout_p=0.3),
        lambda q, k, v: attention(q, k, v, attn_mask=k[0, 0, :, :8], dropout_p=0.3),
        lambda q, k, v: attention(q, k[:, :2], v[:, :2], dropout_p=0.3, enable_gqa=True),
        lambda q, k, v: attention(q[0], k[0], v[0], dropout_p=0.9),
    ],
)
def test_dropout_inside_attention(function):
    check(Function(function).eval(), (Q, K, V))


class Stack(nn.Module):
    """A recurrent layer alone in training mode: its dropout is asked for."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_dropout_between_recurrent_layers(layer, bidirectional):
    torch.manual_seed(0)
    module = Stack(
        layer(16, 8, 3, dropout=0.4, bidirectional=bidirectional, batch_first=bidirectional)
    )
    module.eval().layer.train()
    x = torch.randn(5, 2, 16)
    got = check(module, (x,))
    with torch.no_grad():
        assert np.abs(got - module.eval()(x).numpy()).max() > 1e-3


def test_random_slopes():
    """The numbers are torch's up to the first draw that follows."""
    x = torch.cat([Q.flatten(), torch.zeros(3)])
    check(Function(lambda x: F.rrelu(x, 0.1, 0.4, training=True)).eval(), (x,), runs=1)


def test_no_negative_element_takes_no_slope():
    check(Function(lambda x: F.rrelu(x, training=True)).eval(), (torch.rand(20) + 0.1,))
