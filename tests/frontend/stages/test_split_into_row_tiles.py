"""Chains over large images are computed a row tile at a time."""

import numpy as np
import pytest
import torch

import taper_frontend
from graph_checks import Builder, check_fires, check_keeps, floats, op_counts, shrink_cache
from taper_frontend.compiler.stages import PIPELINE, fold_packing, split_into_row_tiles
from taper_runtime import InferenceSession
from taper_runtime.base.sizes import variable
from taper_runtime.executor.memory_use import memory_use


@pytest.fixture(autouse=True)
def small_cache(monkeypatch):
    shrink_cache(monkeypatch, 8 << 10)


def conv(b, x, weight, *extras, size=3, stride=1, dilation=1, padding=1, **attrs):
    plain = {"kernel": (size,) * 2, "stride": (stride,) * 2, "dilation": (dilation,) * 2}
    return b.op("CONV", x, weight, *extras, **plain, padding=(padding,) * 4, **attrs)


def depthwise(b, x, channels, **attrs):
    return conv(b, x, b.weight(attrs.get("size", 3), attrs.get("size", 3), 1, channels),
                groups=channels, **attrs)  # fmt: skip


def inverted(b, x, channels, wide, **attrs):
    """Expand, filter, project."""
    y = b.op("RELU", b.op("MATMUL", x, b.weight(channels, wide)))
    return b.op("MATMUL", depthwise(b, y, wide, **attrs), b.weight(wide, channels))


@pytest.mark.parametrize(
    "attrs",
    [{}, {"stride": 2}, {"size": 5, "padding": 2}, {"dilation": 2, "padding": 2}, {"padding": 0}],
)
def test_chain_around_a_window(attrs):
    b = Builder()
    x = b.input("x", 1, 24, 5, 4)
    graph = check_fires(split_into_row_tiles, b.done(inverted(b, x, 4, 24, **attrs)))
    counts = op_counts(graph)
    assert counts["CAT"] == 1
    tiles = counts["CONV"]
    assert counts["RELU"] == tiles > 1
    assert counts["MATMUL"] in (2 * tiles, tiles + 1)  # the last one may be computed whole
    rows = [
        graph.tensors[node.output].shape[1] for node in graph.nodes.values() if node.op == "RELU"
    ]
    assert max(rows) < 24


def test_every_other_tensor_with_rows_is_cut():
    b = Builder()
    x, bias = b.input("x", 1, 16, 8, 4), b.input("bias", 4)
    column, row = b.input("column", 16, 1, 1), b.input("row", 1, 1, 8, 4)
    y = b.op("MUL", inverted(b, x, 4, 24), column)
    y = b.op("ADD", b.op("ADD", b.op("ADD", y, bias), row), x)
    check_fires(split_into_row_tiles, b.done(y))


def test_epilogue_operands_are_cut():
    b = Builder()
    x = b.input("x", 1, 16, 8, 4)
    y = b.op("MATMUL", x, b.weight(4, 24))
    y = depthwise(b, y, 24)
    code = {"code": ("ADD", "ADD"), "args": (0, 1, 3, 2)}
    y = b.op("MATMUL", y, b.weight(24, 4), b.input("bias", 4), x, **code)
    check_fires(split_into_row_tiles, b.done(y))


@pytest.mark.parametrize(("images", "cats"), [(2, 3), (6, 7)])
def test_images_are_cut_into_tiles(images, cats):
    b = Builder()
    graph = b.done(inverted(b, b.input("x", images, 12, 8, 4), 4, 24))
    assert op_counts(check_fires(split_into_row_tiles, graph))["CAT"] == cats


def test_small_images_are_tiles():
    b = Builder()
    graph = b.done(inverted(b, b.input("x", 12, 3, 4, 4), 4, 24))
    assert op_counts(check_fires(split_into_row_tiles, graph))["CAT"] == 1


def test_norms_and_pools():
    b = Builder()
    x = b.input("x", 1, 40, 8, 8)
    window = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1, 1, 1)}
    y = b.op("LAYER_NORM", depthwise(b, x, 8), b.input("w", 8), b.input("v", 8), dims=1, eps=1e-5)
    y = b.op("MAX_POOL", b.op("EXP", y), **window, dilation=(1, 1))
    y = b.op("AVG_POOL", b.op("NEG", y), **window, counted=(1, 1, 1, 1))
    graph = check_fires(split_into_row_tiles, b.done(y))
    assert op_counts(graph)["CAT"] == 1


def test_products_of_batches_and_joined_tensors():
    b = Builder()
    scores = b.op("MATMUL", b.input("q", 1, 4, 32, 8), b.input("k", 1, 4, 8, 32))
    y = b.op("MATMUL", b.op("SOFTMAX", scores, axis=3), b.input("v", 1, 4, 32, 8))
    graph = check_fires(split_into_row_tiles, b.done(y))
    assert op_counts(graph) == {"SLICE": 12, "MATMUL": 8, "SOFTMAX": 4, "CAT": 1}
    b = Builder()
    x = b.input("x", 1, 48, 8, 8)
    y = b.op("CAT", x, depthwise(b, b.op("EXP", x), 8), axis=3)
    graph = check_fires(split_into_row_tiles, b.done(depthwise(b, y, 16)))
    assert {n.attrs["axis"] for n in graph.nodes.values() if n.op == "CAT"} == {1, 3}


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("sizes", [(48, 16), (37, 21)])
def test_resampled_rows(mode, sizes):
    """As in a decoder: an image that is enlarged, then filtered."""
    b = Builder()
    attrs = {"axes": (1, 2), "sizes": sizes, "mode": mode, "scales": (0.0, 0.0)}
    y = b.op("RESAMPLE", b.input("x", 1, 24, 8, 16), **attrs)
    graph = check_fires(split_into_row_tiles, b.done(depthwise(b, b.op("EXP", y), 16)))
    parts = [node for node in graph.nodes.values() if node.op == "RESAMPLE"]
    assert len(parts) > 1
    assert all(node.attrs["part"][0] == 24 for node in parts)
    rows = [graph.tensors[node.inputs[0]].shape[1] for node in parts]
    assert sum(rows) < 24 + 5 * len(parts)


def test_operand_of_an_epilogue_that_is_computed_is_cut():
    """As in a feature pyramid: an image is enlarged, added to another one, then filtered."""
    b = Builder()
    attrs = {"axes": (1, 2), "sizes": (24, 8), "mode": "nearest", "scales": (0.0, 0.0)}
    top = b.op("RESAMPLE", b.input("top", 1, 12, 4, 32), **attrs)
    code = {"code": ("ADD", "ADD"), "args": (0, 1, 3, 2)}
    lateral = b.op("MATMUL", b.input("x", 1, 24, 8, 8), b.weight(8, 32), b.input("bias", 32), top,
                   **code)  # fmt: skip
    graph = check_fires(split_into_row_tiles, b.done(depthwise(b, lateral, 32)))
    counts = op_counts(graph)
    assert counts["RESAMPLE"] == counts["MATMUL"] == counts["CONV"] > 1


def test_winograd():
    """Tiles of rows are whole tiles of the algorithm, which computes no fewer rows."""
    b = Builder()
    x = b.op("EXP", b.input("x", 1, 60, 12, 4))
    weight = b.op("PACK", b.constant(floats(3, 3, 4, 16) / 6), format="winograd.2")
    attrs = {"kernel": (3, 3), "stride": (1, 1), "dilation": (1, 1), "padding": (1, 1, 1, 1)}
    graph = b.done(b.op("CONV", x, weight, **attrs))
    fold_packing(graph)
    check_fires(split_into_row_tiles, graph)
    assert op_counts(graph)["CAT"] == 1
    rows = [graph.tensors[n.output].shape[1] for n in graph.nodes.values() if n.op == "CONV"]
    assert all(count % 2 == 0 for count in rows)


def test_chain_is_cut_where_a_tensor_is_small():
    b = Builder()
    x = inverted(b, b.input("x", 1, 16, 8, 4), 4, 24)
    graph = check_fires(split_into_row_tiles, b.done(inverted(b, x, 4, 24)))
    assert op_counts(graph)["CAT"] == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda b: inverted(b, b.input("x", 1, 4, 4, 4), 4, 8),  # it fits
        lambda b: b.op("MATMUL", b.input("x", 1, 40, 8, 8), b.weight(8, 24)),  # no chain
        lambda b: depthwise(  # each tile would need all of it
            b, b.op("EXP", b.input("x", 1, 15, 9, 24)), 24, size=13, padding=6
        ),
        lambda b: inverted(b, b.input("x", 1, 1, 200, 4), 4, 24),  # one row
        lambda b: inverted(b, b.input("x", 0, 15, 9, 4), 4, 24),
        lambda b: b.op(  # each tile would read all of the second factor
            "MATMUL", b.input("x", 4, 32, 32), b.op("EXP", b.input("w", 4, 32, 32))
        ),
        lambda b: b.op("SOFTMAX", b.op("EXP", b.input("x", 1, 40, 40)), axis=1),
        lambda b: b.op("LAYER_NORM", b.op("EXP", b.input("x", 1, 40, 40)), dims=2, eps=0.1),
    ],
)
def test_what_is_left_alone(make):
    b = Builder()
    check_keeps(split_into_row_tiles, b.done(make(b)))


def test_tensor_with_other_readers_ends_a_chain():
    b = Builder()
    y = b.op("MATMUL", b.input("x", 1, 16, 8, 4), b.weight(4, 24))
    check_keeps(split_into_row_tiles, b.done(depthwise(b, y, 24), b.op("EXP", y)))
    b = Builder()
    y = b.op("MATMUL", b.input("x", 1, 16, 8, 4), b.weight(4, 24))
    check_keeps(split_into_row_tiles, b.done(y, depthwise(b, y, 24)))


def test_sizes_that_vary_are_left_alone():
    b = Builder()
    b.graph.sizes, b.graph.examples = {"n": (1, 64)}, {"n": 16}
    check_keeps(
        split_into_row_tiles,
        b.done(inverted(b, b.input("x", 1, variable("n", 1, 64), 8, 4), 4, 24)),
    )


def test_heavy_weights_are_not_read_for_every_tile():
    b = Builder()
    x = b.input("x", 1, 16, 2, 64)
    y = b.op("MATMUL", b.op("EXP", x), b.weight(64, 64))
    check_keeps(split_into_row_tiles, b.done(b.op("MATMUL", y, b.weight(64, 64, seed=2))))


def test_exported_model_has_the_same_bits_and_a_smaller_arena():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.expand = torch.nn.Conv2d(8, 48, 1)
            self.filter = torch.nn.Conv2d(48, 48, 3, padding=1, groups=48)
            self.project = torch.nn.Conv2d(48, 8, 1)

        def forward(self, x):
            return x + self.project(torch.relu(self.filter(torch.relu(self.expand(x)))))

    torch.manual_seed(0)
    net, x = Net().eval(), torch.randn(2, 8, 40, 6)
    plans = [
        taper_frontend.export(net, (x,), passes=passes)
        for passes in (PIPELINE, [p for p in PIPELINE if p is not split_into_row_tiles])
    ]
    tiled, whole = (InferenceSession(plan).run(None, {"x": x.numpy()})[0] for plan in plans)
    np.testing.assert_array_equal(tiled, whole)
    joined = [node for node in plans[0].nodes if node.op == "CAT"]
    assert joined
    assert not any(map(plans[0].is_executed, joined))
    assert memory_use(plans[0]).arena < memory_use(plans[1]).arena
