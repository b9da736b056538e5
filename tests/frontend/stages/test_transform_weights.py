"""3x3 convolutions take Winograd's form where it is faster."""

import numpy as np
import pytest
import torch

import taper_frontend
from graph_checks import Builder, check_fires, check_keeps, floats, only
from taper_frontend.compiler.graph import Graph
from taper_frontend.compiler.stages import PIPELINE, fold_packing, transform_weights
from taper_runtime import InferenceSession
from taper_runtime.base.sizes import variable
from taper_runtime.formats import decode
from taper_runtime.formats.winograd import POINTS, tile_of, transforms


def transform(graph):
    """Transform and fold; whether anything was transformed."""
    changed = transform_weights(graph)
    assert fold_packing(graph) == changed
    return changed


def weight_formats(graph):
    return [graph.tensors[node.inputs[1]].format for node in graph.order() if node.op == "CONV"]


def conv(b, x, weight, size=3, stride=1, dilation=1, **attrs):
    plain = {"kernel": (size,) * 2, "stride": (stride,) * 2, "dilation": (dilation,) * 2}
    return b.op("CONV", x, weight, **plain, padding=(1, 1, 1, 1), **attrs)


#: Of the sizes that were timed on AVX2 and AVX-512, those at which the forms differ most: where
#: pixels are few, the larger weight of F(4x4) streams from memory longer than products take.
FASTEST = [
    (56, 64, 4), (28, 128, 4), (14, 256, 4), (14, 128, 4), (13, 192, 4), (8, 320, 2), (7, 512, 2),
    (7, 256, 2), (7, 96, 2),
]  # fmt: skip


@pytest.mark.parametrize(("size", "channels", "tile"), FASTEST)
def test_tile_follows_from_the_shape(size, channels, tile):
    b = Builder()
    weight = floats(3, 3, channels, channels, seed=1) / np.float32(3 * channels**0.5)
    x = b.input("x", 1, size, size, channels)
    graph = b.done(conv(b, x, b.constant(weight, "w")))
    check_fires(transform, graph)
    name = only(graph, "CONV").inputs[1]
    assert list(graph.constants) == [name] == [f"w.tiles{tile}"]
    type_ = graph.tensors[name].type
    assert type_ == ("float32", weight.shape, f"winograd.{tile}")
    np.testing.assert_allclose(decode(graph.constants[name].value(), type_), weight, atol=1e-6)


def test_epilogue_and_extras_stay():
    b = Builder()
    inputs = [b.input("x", 1, 28, 28, 32), b.weight(3, 3, 32, 32), b.input("bias", 32)]
    plain = {"kernel": (3, 3), "stride": (1, 1), "dilation": (1, 1), "padding": (0, 0, 0, 0)}
    graph = b.done(b.op("CONV", *inputs, **plain, code=("ADD", "RELU"), args=(0, 1, 2)))
    check_fires(transform, graph)
    node = only(graph, "CONV")
    assert node.inputs == ["x", "w.tiles4", "bias"]
    assert node.attrs["code"] == ("ADD", "RELU")


def test_shared_weight_is_transformed_once():
    b = Builder()
    w = b.weight(3, 3, 32, 32)
    graph = b.done(conv(b, conv(b, b.input("x", 1, 28, 28, 32), w), w))
    check_fires(transform, graph)
    assert weight_formats(graph) == ["winograd.4"] * 2
    assert list(graph.constants) == ["w.tiles4"]


@pytest.mark.parametrize(
    "make",
    [
        lambda b: conv(b, b.input("x", 1, 28, 28, 32), b.weight(3, 3, 32, 32), stride=2),
        lambda b: conv(b, b.input("x", 1, 28, 28, 32), b.weight(3, 3, 32, 32), dilation=2),
        lambda b: conv(b, b.input("x", 1, 28, 28, 32), b.weight(5, 5, 32, 32), size=5),
        lambda b: conv(b, b.input("x", 1, 28, 28, 32), b.weight(3, 3, 16, 32), groups=2),
        lambda b: conv(b, b.input("x", 1, 28, 28, 32), b.input("w", 3, 3, 32, 32)),
        # A weight to read for four pixels; the first layer of an image.
        lambda b: conv(b, b.input("x", 1, 2, 2, 256), b.weight(3, 3, 256, 256)),
        lambda b: conv(b, b.input("x", 1, 64, 64, 3), b.weight(3, 3, 3, 32)),
    ],
)
def test_direct_sums_stay(make):
    b = Builder()
    check_keeps(transform, b.done(make(b)))


def test_sizes_that_vary_are_weighed_by_example():
    for height, expected in ((2, "plain"), (56, "winograd.2")):
        b = Builder()
        b.graph = Graph(sizes={"h": (1, 100)}, examples={"h": height})
        x = b.input("x", 1, variable("h", 1, 100), 2, 256)
        graph = b.done(conv(b, x, b.weight(3, 3, 256, 256)))
        transform(graph)
        graph.verify()
        assert weight_formats(graph) == [expected]


@pytest.mark.parametrize("tile", POINTS)
def test_transforms_make_a_convolution(tile):
    m = transforms(tile)
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(tile + 2), rng.standard_normal(3)
    got = m.output @ ((m.weight @ w) * (m.x @ x))
    np.testing.assert_allclose(got, np.correlate(x, w), rtol=1e-12)
    for matrix in (m.x, m.output):  # the kernels compute with these
        np.testing.assert_array_equal(matrix, matrix.astype(np.float32))


def test_pipeline_without_it_sums_directly():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv2d(32, 40, 3, padding=1), torch.nn.ReLU()).eval()
    x = torch.randn(2, 32, 27, 30)
    with torch.no_grad():
        want = module.double()(x.double()).numpy()
    module.float()
    errors = {}
    for tiles, passes in (
        (True, PIPELINE),
        (False, [p for p in PIPELINE if p is not transform_weights]),
    ):
        plan = taper_frontend.export(module, (x,), passes=passes)
        formats = [plan.tensors[n.inputs[1]].format for n in plan.nodes if n.op == "CONV"]
        assert [tile_of(format) is not None for format in formats] == [tiles]
        (got,) = InferenceSession(plan).run(None, {plan.inputs[0]: x.numpy()})
        errors[tiles] = np.linalg.norm(got - want) / np.linalg.norm(want)
    assert errors[True] < 10 * errors[False] < 1e-5
