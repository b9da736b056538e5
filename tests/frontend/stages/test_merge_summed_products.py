"""Products of one tensor that are added up become one product."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import taper_frontend
from graph_checks import Builder, check_fires, check_keeps, floats, only, op_counts
from taper_frontend.compiler.stages import merge_summed_products
from taper_runtime import InferenceSession


class Branches(Builder):
    """Convolutions of ``x``, six channels, that give six."""

    def __init__(self, groups=1, size=8):
        super().__init__()
        self.groups, self.seed = groups, 0
        self.x = self.input("x", 2, size, size, 6)

    def conv(self, *kernel, x=None, stride=1, dilation=1, padding=None, out=6):
        self.seed += 1
        padding = [dilation * (k // 2) for k in kernel] if padding is None else padding
        return self.op(
            "CONV",
            x or self.x,
            self.weight(*kernel, 6 // self.groups, out, seed=self.seed),
            kernel=kernel,
            stride=(stride,) * 2,
            dilation=(dilation,) * 2,
            padding=tuple(p for p in padding for _ in range(2)),
            groups=self.groups,
        )

    def add(self, first, *others):
        for other in others:
            first = self.op("ADD", first, other)
        return first


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_kernels_of_several_sizes(groups):
    b = Branches(groups)
    bias = b.constant(floats(6))
    y = b.add(b.conv(1, 1), bias, b.conv(3, 3), b.op("ADD", b.conv(5, 3), bias), b.conv(5, 5))
    graph = check_fires(merge_summed_products, b.done(y))
    assert op_counts(graph) == {"CONV": 1, "ADD": 1}
    assert only(graph, "CONV").attrs["kernel"] == (5, 5)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_x_itself_and_x_scaled(groups):
    b = Branches(groups)
    y = b.add(b.op("MUL", b.x, b.constant(floats(6))), b.conv(3, 3), b.x)
    graph = check_fires(merge_summed_products, b.done(y))
    assert op_counts(graph) == {"CONV": 1}


def test_matrix_products():
    b = Branches()
    y = b.op("MATMUL", b.x, b.weight(6, 6, seed=7))
    z = b.op("MATMUL", b.x, b.weight(6, 6, seed=8), transpose_b=True)
    graph = check_fires(
        merge_summed_products, b.done(b.add(y, z, b.op("MUL", b.x, b.constant(2.0))))
    )
    assert op_counts(graph) == {"MATMUL": 1}
    b = Branches()
    y = b.op("MATMUL", b.x, b.weight(6, 6, seed=7))
    graph = check_fires(merge_summed_products, b.done(b.add(y, b.conv(3, 3))))
    assert op_counts(graph) == {"CONV": 1}


def test_summands_that_stand_twice():
    b = Branches()
    other = b.input("other", 6)
    y = b.add(b.conv(3, 3), other, b.op("ADD", b.conv(1, 1), other))
    graph = check_fires(merge_summed_products, b.done(y))
    assert op_counts(graph) == {"CONV": 1, "ADD": 2}


def test_differences_and_numbers():
    b = Branches()
    y = b.op("SUB", b.constant(floats(6)), b.op("SUB", b.conv(3, 3), b.conv(1, 1)))
    y = b.op("ADD", b.op("SUB", 1.5, y), b.input("other", 8, 1, 6))
    graph = check_fires(merge_summed_products, b.done(b.op("SUB", y, b.input("more", 6))))
    assert op_counts(graph) == {"CONV": 1, "ADD": 2, "SUB": 1}


@pytest.mark.parametrize("small", [{"stride": 2}, {"stride": 2, "dilation": 3}])
def test_strides(small):
    b = Branches()
    graph = check_fires(
        merge_summed_products, b.done(b.add(b.conv(3, 3, stride=2), b.conv(1, 1, **small)))
    )
    assert op_counts(graph) == {"CONV": 1}


def test_taps_of_a_dilated_kernel():
    b = Branches()
    graph = check_fires(
        merge_summed_products, b.done(b.add(b.conv(5, 5, dilation=2), b.conv(3, 3, dilation=2)))
    )
    assert op_counts(graph) == {"CONV": 1}


@pytest.mark.parametrize(
    "make",
    [
        lambda b: b.add(b.conv(3, 3), b.conv(3, 3, x=b.input("y", 2, 8, 8, 6))),
        lambda b: b.add(b.conv(3, 3, dilation=2), b.conv(3, 3)),
        lambda b: b.add(b.conv(5, 1), b.conv(1, 5)),  # neither has the other's taps
        lambda b: b.add(b.conv(3, 3), b.conv(2, 2, padding=(1, 1), x=b.x, dilation=2)),
        lambda b: b.add(b.conv(8, 8, padding=(0, 0)), b.conv(3, 3)),  # one is broadcast
        lambda b: b.op("MUL", b.conv(3, 3), b.conv(1, 1)),
        lambda b: b.add(b.conv(3, 3), b.constant(floats(6))),
        lambda b: (lambda y: b.op("ADD", y, y))(b.conv(3, 3)),
    ],
)
def test_what_is_left_alone(make):
    b = Branches()
    check_keeps(merge_summed_products, b.done(make(b)))


def test_product_that_something_else_reads():
    b = Branches()
    y = b.conv(3, 3)
    check_keeps(merge_summed_products, b.done(b.add(y, b.conv(1, 1)), b.op("EXP", y)))
    b = Branches()
    weight = b.weight(1, 1, 6, 6)
    plain = {"kernel": (1, 1), "stride": (1, 1), "dilation": (1, 1), "padding": (0,) * 4}
    y = b.op("CONV", b.x, weight, **plain)
    z = b.op("CONV", b.op("EXP", b.x), weight, **plain)
    check_keeps(merge_summed_products, b.done(b.add(y, b.conv(3, 3)), z))


class Block(torch.nn.Module):
    """MobileOne's, as it is trained: convolutions, a scaling one and batch norms, added up."""

    def __init__(self):
        super().__init__()
        kernels = (3, 3, 1)
        self.convs = torch.nn.ModuleList(
            torch.nn.Conv2d(8, 8, k, padding=k // 2, bias=False) for k in kernels
        )
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(8) for _ in range(4))
        for norm in self.norms:
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
            torch.nn.init.normal_(norm.weight)

    def forward(self, x):
        total = 0 + self.norms[3](x)
        for conv, norm in zip(self.convs, self.norms, strict=False):
            total = total + norm(conv(x))
        return torch.relu(total)


def test_exported_block_is_one_convolution():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), Block()).eval()
    x = torch.randn(1, 3, 9, 7)
    plan = taper_frontend.export(net, (x,))
    assert sum("CONV" in node.op or node.op == "MATMUL" for node in plan.nodes) == 2
    (got,) = InferenceSession(plan).run(None, {"input": x.numpy()})
    np.testing.assert_allclose(got, net(x).detach().numpy(), rtol=1e-5, atol=1e-5)
