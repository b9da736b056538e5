"""Test the whole pipeline on what torch captures."""

import numpy as np
import pytest
import torch

from graph_checks import floats, op_counts
from taper_frontend.capture.capture import capture
from taper_frontend.capture.read_exported import read_program
from taper_frontend.compiler.graph import evaluate
from taper_frontend.compiler.stages import PIPELINE, run_pipeline
from taper_frontend.lowering import lower


def exported(module, *args):
    with torch.no_grad():
        expected = module(*args).numpy()
    graph = lower(read_program(capture(module.eval(), args, {}))).graph
    inputs = dict(zip(graph.inputs, [a.numpy() for a in args], strict=True))
    run_pipeline(graph, PIPELINE, verify=True)
    (value,) = evaluate(graph, inputs).values()
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)
    return graph


class Block(torch.nn.Module):
    """Attention in one of its three forms."""

    def __init__(self, form, causal):
        super().__init__()
        torch.manual_seed(0)
        self.form, self.causal = form, causal
        self.q, self.k, self.v, self.o = (torch.nn.Linear(12, 12) for _ in range(4))

    def forward(self, x):
        q, k, v = (p(x).view(2, 5, 3, 4).transpose(1, 2) for p in (self.q, self.k, self.v))
        if self.form == "sdpa":
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            scores = q @ k.transpose(-2, -1) * 0.5
            if self.causal:
                mask = torch.ones(5, 5, dtype=torch.bool).tril()
                scores = scores.masked_fill(~mask, float("-inf"))
            if self.form == "softmax":
                weights = scores.softmax(-1)
            else:
                exp = torch.exp(scores - scores.amax(-1, keepdim=True))
                weights = exp / exp.sum(-1, keepdim=True)
            y = weights @ v
        return x + self.o(y.transpose(1, 2).reshape(2, 5, 12))


@pytest.mark.parametrize("causal", [False, True])
def test_three_forms_of_attention_become_one_graph(causal):
    graphs = [
        exported(Block(f, causal), torch.from_numpy(floats(2, 5, 12)))
        for f in ("sdpa", "softmax", "manual")
    ]
    expected = {"MATMUL": 2, "SLICE": 3, "RESHAPE": 4, "TRANSPOSE": 3, "ATTENTION": 1}
    assert [op_counts(g) for g in graphs] == [expected] * 3
    for graph in graphs:
        (node,) = (n for n in graph.nodes.values() if n.op == "ATTENTION")
        assert len(node.inputs) == 3
        assert node.attrs.get("causal", False) == causal
        assert node.attrs["transpose_output"]


def test_mlp_is_one_node_a_layer():
    torch.manual_seed(0)
    linear = torch.nn.Linear
    mlp = torch.nn.Sequential(
        linear(6, 8), torch.nn.GELU(), linear(8, 8), torch.nn.ReLU(), linear(8, 3)
    )
    graph = exported(mlp, torch.from_numpy(floats(4, 6)))
    assert op_counts(graph) == {"MATMUL": 3}


def test_pass_order_matters_for_transposed_weights():
    # absorbed before folding: the weight is stored once, and not transposed first
    torch.manual_seed(0)
    graph = lower(
        read_program(capture(torch.nn.Linear(6, 8, bias=False), (torch.zeros(2, 6),), {}))
    ).graph
    (weight,) = graph.constants
    run_pipeline(graph, PIPELINE)
    assert list(graph.constants) == [f"{weight}.packed"]


class Resampled(torch.nn.Module):
    """Convolutions around a resampled image."""

    def __init__(self, resample):
        super().__init__()
        torch.manual_seed(0)
        self.resample = resample
        self.before = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.after = torch.nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x):
        return self.after(self.resample(self.before(x).relu()))


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_channels_stay_last_where_an_image_is_resampled(mode):
    module = Resampled(lambda x: torch.nn.functional.interpolate(x, scale_factor=2, mode=mode))
    counts = op_counts(exported(module, torch.from_numpy(floats(2, 3, 5, 6))))
    assert counts == {"PERMUTE": 2, "CONV": 2, "RESAMPLE": 1}


def test_channels_stay_last_where_an_image_is_sampled_at_a_grid():
    grid = torch.from_numpy(floats(2, 4, 7, 2))
    module = Resampled(lambda x: torch.nn.functional.grid_sample(x, grid, align_corners=False))
    counts = op_counts(exported(module, torch.from_numpy(floats(2, 3, 5, 6))))
    assert counts == {"PERMUTE": 2, "CONV": 2, "GRID_SAMPLE": 1}
