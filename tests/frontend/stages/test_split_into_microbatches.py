"""Runs of nodes are computed one micro-batch after the other."""

import sys
from itertools import pairwise

import numpy as np
import pytest
import torch

import taper_frontend
from graph_checks import Builder, check_fires, check_keeps, floats, op_counts, shrink_cache
from taper_frontend.compiler.stages import (
    PIPELINE,
    eliminate_common_subexpressions,
    split_into_microbatches,
)
from taper_runtime import InferenceSession
from taper_runtime.base.sizes import variable
from taper_runtime.executor.memory_use import memory_use


@pytest.fixture(autouse=True)
def small_cache(monkeypatch):
    shrink_cache(monkeypatch, 8 << 10)


def wide(b, x, seed=1):
    """Two products with 2 KB for each image of [16, 4] between them."""
    y = b.op("EXP", b.op("MATMUL", x, b.weight(4, 32, seed=seed)))
    return b.op("MATMUL", y, b.weight(32, 4, seed=seed))


def first_dims(graph, op):
    return sorted(graph.tensors[n.output].shape[0] for n in graph.nodes.values() if n.op == op)


def test_microbatches_are_computed_in_turn():
    b = Builder()
    graph = check_fires(split_into_microbatches, b.done(wide(b, b.input("x", 8, 16, 4))))
    assert op_counts(graph)["CAT"] == 1
    assert first_dims(graph, "EXP") == [2, 2, 2, 2]


def test_microbatches_that_do_not_divide():
    b = Builder()
    graph = check_fires(split_into_microbatches, b.done(wide(b, b.input("x", 7, 16, 4))))
    assert first_dims(graph, "EXP") == [1, 2, 2, 2]


def test_microbatches_are_at_most_sixteen():
    b = Builder()
    graph = check_fires(split_into_microbatches, b.done(wide(b, b.input("x", 80, 16, 4))))
    assert first_dims(graph, "EXP") == [5] * 16


def test_plans_stay_of_some_size(monkeypatch):
    monkeypatch.setattr(sys.modules[split_into_microbatches.__module__], "_MOST_NODES", 14)
    b = Builder()
    graph = check_fires(split_into_microbatches, b.done(wide(b, b.input("x", 80, 16, 4))))
    assert first_dims(graph, "EXP") == [20] * 4


def test_means_over_an_image_and_branches_stay_inside():
    b = Builder()
    x = b.input("x", 8, 16, 4)
    y = b.op("MATMUL", x, b.weight(4, 32))
    mean = b.op("MEAN", y, axes=(1,), keepdim=True)
    y = b.op("MATMUL", b.op("MUL", y, b.op("SIGMOID", mean)), b.weight(32, 4))
    graph = check_fires(split_into_microbatches, b.done(b.op("ADD", y, x)))
    counts = op_counts(graph)
    assert counts["MEAN"] == counts["MUL"] == 4
    assert counts["CAT"] == 1


def test_windows_of_images_are_rows_of_them():
    b = Builder()
    y = b.reshape(wide(b, b.reshape(b.input("x", 8, 16, 4), 128, 4)), 16, 8, 4)
    y = b.op("CAT", b.constant(floats(16, 1, 4)), y, axis=1)
    graph = check_fires(split_into_microbatches, b.done(wide(b, y, seed=2)))
    assert first_dims(graph, "EXP") == [2] * 8 + [32] * 4


def test_the_count_changes_only_where_that_saves_more_than_it_moves():
    """The last products alone would be four parts; what is between would be written and read."""
    b = Builder()
    y = b.input("x", 16, 16, 8)
    for columns, wider in pairwise((8, 64, 8, 16)):
        y = b.op("EXP", b.op("MATMUL", y, b.weight(columns, wider)))
    graph = check_fires(split_into_microbatches, b.done(y))
    assert first_dims(graph, "EXP") == [1] * 48
    assert op_counts(graph)["CAT"] == 1


def test_where_parts_begin_all_is_moved_once():
    """The first product stays whole; what it makes is written anyway, and parts read it."""
    b = Builder()
    y = b.input("x", 8, 32, 64)
    for columns, wider in pairwise((64, 8, 16, 8)):
        y = b.op("EXP", b.op("MATMUL", y, b.weight(columns, wider)))
    graph = check_fires(split_into_microbatches, b.done(y))
    assert first_dims(graph, "MATMUL") == [2] * 8 + [8]
    assert op_counts(graph)["CAT"] == 1


def test_each_result_is_put_together():
    b = Builder()
    y = b.op("EXP", b.op("MATMUL", b.input("x", 8, 16, 4), b.weight(4, 32)))
    mean = b.op("MEAN", y, axes=(1,))
    z = b.op("MATMUL", y, b.weight(32, 4))
    graph = check_fires(split_into_microbatches, b.done(z, mean, b.op("SUM", z, axes=(0,))))
    counts = op_counts(graph)
    assert counts["CAT"] == 2
    assert counts["MEAN"] == 4
    assert counts["SUM"] == 1


def test_two_inputs_with_the_batch_and_one_without():
    b = Builder()
    x, y = b.input("x", 8, 16, 4), b.input("y", 8, 16, 4)
    shared = b.input("shared", 1, 16, 32)
    z = b.op("ADD", b.op("MATMUL", b.op("ADD", x, y), b.weight(4, 32)), shared)
    check_fires(split_into_microbatches, b.done(b.op("MATMUL", z, b.weight(32, 4))))


def test_what_all_items_share_is_one_part():
    b = Builder()
    x, shared = b.input("x", 8, 16, 4), b.input("shared", 16, 32)
    repeated = b.op("EXPAND", shared, shape=(8, 16, 32))
    z = b.op("ADD", b.op("MATMUL", x, b.weight(4, 32)), repeated)
    graph = check_fires(split_into_microbatches, b.done(b.op("MATMUL", z, b.weight(32, 4))))
    assert first_dims(graph, "EXPAND") == [2] * 4
    assert first_dims(graph, "SLICE") == [2] * 4  # of x
    eliminate_common_subexpressions(graph)
    assert first_dims(graph, "EXPAND") == [2]


@pytest.mark.parametrize(
    "make",
    [
        lambda b: wide(b, b.input("x", 1, 64, 4)),  # one image
        lambda b: wide(b, b.input("x", 2, 16, 4)),  # it fits
        lambda b: b.op("MATMUL", b.input("x", 8, 64, 64), b.weight(64, 64)),  # nothing lives across
        lambda b: b.op("SOFTMAX", b.op("EXP", b.input("x", 8, 64, 64)), axis=0),
        lambda b: b.op("EXP", b.transpose(b.input("x", 8, 64, 64), 0, 1)),
    ],
)
def test_what_is_left_alone(make):
    b = Builder()
    check_keeps(split_into_microbatches, b.done(make(b)))


def test_heavy_weights_are_not_read_for_every_image():
    b = Builder()
    y = b.op("MATMUL", b.input("x", 8, 1, 1024), b.weight(1024, 512))
    check_keeps(
        split_into_microbatches, b.done(b.op("MATMUL", b.op("EXP", y), b.weight(512, 512, seed=2)))
    )


def test_sizes_that_vary_are_left_alone():
    b = Builder()
    b.graph.sizes, b.graph.examples = {"n": (1, 64)}, {"n": 16}
    check_keeps(split_into_microbatches, b.done(wide(b, b.input("x", 8, variable("n", 1, 64), 4))))


class Excited(torch.nn.Module):
    """Squeeze and excite around a depthwise filter."""

    def __init__(self):
        super().__init__()
        self.expand = torch.nn.Conv2d(8, 48, 1)
        self.filter = torch.nn.Conv2d(48, 48, 3, padding=1, groups=48)
        self.squeeze, self.excite = torch.nn.Conv2d(48, 4, 1), torch.nn.Conv2d(4, 48, 1)
        self.project = torch.nn.Conv2d(48, 8, 1)

    def forward(self, x):
        y = torch.relu(self.filter(torch.relu(self.expand(x))))
        mean = y.mean((2, 3), keepdim=True)
        return x + self.project(y * torch.sigmoid(self.excite(torch.relu(self.squeeze(mean)))))


def test_exported_model_agrees_and_its_arena_is_smaller():
    torch.manual_seed(0)
    net, x = Excited().eval(), torch.randn(6, 8, 20, 6)
    plans = [
        taper_frontend.export(net, (x,), passes=passes)
        for passes in (PIPELINE, [p for p in PIPELINE if p is not split_into_microbatches])
    ]
    split, whole = (InferenceSession(plan).run(None, {"x": x.numpy()})[0] for plan in plans)
    np.testing.assert_allclose(split, whole, rtol=1e-5, atol=1e-6)
    joined = [node for node in plans[0].nodes if node.op == "CAT"]
    assert joined
    assert not any(map(plans[0].is_executed, joined))
    assert memory_use(plans[0]).arena < memory_use(plans[1]).arena
