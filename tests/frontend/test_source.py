"""Test the line and the module that a node comes from."""

import torch
from torch import nn

import taper_frontend


class Block(nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.scale = nn.Linear(4, 4)

    def forward(self, x):
        x = self.scale(x)
        for block in self.blocks:
            x = block(x)
        return x


class Scaled(Block):
    def forward(self, x):
        return torch.tanh(x)


def test_the_module_of_a_line_is_named():
    model = Model().eval()
    model.blocks = nn.ModuleList([Scaled(), Scaled()])
    plan = taper_frontend.export(model, (torch.randn(2, 4),), passes=())
    sources = [node.source for node in plan.nodes if node.op == "TANH"]
    assert [source.split(" in ")[1].split(":")[0] for source in sources] == [
        "blocks.0.forward",
        "blocks.1.forward",
    ]
    (linear,) = [node.source for node in plan.nodes if node.op == "MATMUL"]
    assert " in forward: x = self.scale(x)" in linear, "a module of torch is not the user's"


def test_explain_names_a_line_once_for_all_modules():
    explanation = taper_frontend.explain(Model().eval(), (torch.randn(2, 4),))
    (found,) = explanation.breaks
    assert found.nodes == 2
    (source,) = found.sources
    assert source.endswith("in forward: return torch.special.bessel_j0(x)")
