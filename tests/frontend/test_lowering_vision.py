"""Convolution, pooling, interpolation, padding: what they emit, and corners OpInfo leaves out."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lowering import check_each, check_lowering, evaluate_graph, lower_model, ops_of
from marks import some

X = torch.linspace(-2, 2, 2 * 4 * 8 * 9).sin().reshape(2, 4, 8, 9)
LAYOUT = {"PERMUTE", "TRANSPOSE", "RESHAPE"}


def seeded(make):
    torch.manual_seed(0)
    return make().eval()


def computing(nodes):
    return [node.op for node in nodes if node.op not in LAYOUT]


@pytest.mark.parametrize(
    ("make", "x", "op"),
    [
        (lambda: nn.Conv1d(4, 6, 3, padding=2, dilation=2), X[:, :, 0], "CONV"),
        (lambda: nn.Conv2d(4, 8, (3, 2), (2, 1), groups=2), X, "CONV"),
        (lambda: nn.Conv2d(4, 4, 3, groups=4, padding="same"), X, "CONV"),
        (lambda: nn.Conv2d(4, 64, 3, groups=4), X, "CONV"),
        (lambda: nn.Conv3d(4, 3, (1, 2, 3), padding=1), X[:, :, None], "CONV"),
        (lambda: nn.Conv2d(4, 3, 1, stride=2), X, "CONV"),
        (lambda: nn.Conv2d(4, 4, 1, groups=4), X, "CONV"),
        (lambda: nn.Conv2d(4, 3, 1, padding=1), X, "CONV"),
        (lambda: nn.Conv2d(4, 3, 1, dilation=2), X, "MATMUL"),
        (lambda: nn.Conv2d(4, 3, 3), X[0], "CONV"),
        (lambda: nn.ConvTranspose1d(4, 6, 3, 2), X[:, :, 0], "CONV_TRANSPOSE"),
        (
            lambda: nn.ConvTranspose2d(4, 6, (3, 2), (2, 3), 1, (1, 2), groups=2, dilation=2),
            X,
            "CONV_TRANSPOSE",
        ),
    ],
)
def test_convolution(make, x, op):
    assert computing(check_lowering(seeded(make), x).order()) == [op, "ADD"]


def test_several_kernels_of_each_channel():
    graph = check_lowering(seeded(lambda: nn.Conv2d(4, 12, 3, groups=4)), X)
    assert computing(graph.order()) == ["EXPAND", "CONV", "ADD"]


def test_convolution_without_bias_is_one_node():
    graph = check_lowering(seeded(lambda: nn.Conv2d(4, 8, 3, bias=False)), X)
    assert ops_of(graph) == ["PERMUTE", "PERMUTE", "CONV", "PERMUTE"]


def test_convolution_whose_weight_is_an_input():
    check_lowering(lambda x, w: F.conv2d(x, w), X, torch.ones(3, 4, 2, 2))


def test_transposed_convolution_that_is_cropped_beyond_its_taps():
    net = seeded(lambda: nn.ConvTranspose2d(4, 3, 1, stride=3, output_padding=2))
    check_lowering(net, X)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_padding_of_an_even_kernel_is_uneven():
    check_lowering(seeded(lambda: nn.Conv2d(4, 3, 4, padding="same", dilation=3)), X)


def test_no_images():
    check_lowering(seeded(lambda: nn.Conv2d(4, 3, 3)), X[:0])


def test_pools():
    cases = [
        (lambda x: F.max_pool2d(x, 3, 2, 1), ["MAX_POOL"]),
        (lambda x: F.max_pool2d(x, 2, ceil_mode=True), ["MAX_POOL"]),
        (lambda x: F.max_pool2d(x, 2, 3, dilation=3, ceil_mode=True), ["MAX_POOL"]),
        (lambda x: F.max_pool1d(x[0], 3), ["SLICE", "MAX_POOL"]),
        (lambda x: F.avg_pool2d(x, 3, 2, 1), ["AVG_POOL"]),
        (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), ["AVG_POOL"]),
        (lambda x: F.avg_pool2d(x, (4, 3), 3, 1, True, False), ["AVG_POOL"]),
        (lambda x: F.avg_pool2d(x, 2, divisor_override=3), ["AVG_POOL"]),
        (lambda x: F.avg_pool3d(x, (1, 2, 3)), ["AVG_POOL"]),
        (lambda x: F.avg_pool2d(x, (8, 9)), ["MEAN"]),
        (lambda x: F.avg_pool2d(x, 20, ceil_mode=True), ["MEAN"]),
        (lambda x: F.avg_pool2d(x, (8, 9), padding=1, stride=9), ["AVG_POOL"]),
        (lambda x: F.adaptive_avg_pool2d(x, (4, 3)), ["AVG_POOL"]),
        (lambda x: F.adaptive_max_pool2d(x, (2, 9)), ["MAX_POOL"]),
        (lambda x: F.adaptive_avg_pool2d(x, (3, 4)), ["ADAPTIVE_AVG_POOL"]),
        (lambda x: F.adaptive_max_pool2d(x, (3, 4)), ["ADAPTIVE_MAX_POOL"]),
        (lambda x: F.adaptive_avg_pool2d(x, 1), ["MEAN"]),
        (lambda x: F.adaptive_max_pool2d(x, 1), ["AMAX"]),
    ]
    for (_, ops), nodes in check_each(cases, X):
        assert computing(nodes) == ops


def test_adaptive_pool_to_the_size_it_has():
    assert ops_of(check_lowering(lambda x: F.adaptive_avg_pool2d(x, (8, 9)) + 1, X)) == ["ADD"]


def test_places_of_the_largest():
    special = X.clone().round(decimals=1)  # with ties
    special[0, 0, 3, 3] = float("nan")
    special[1, 2] = float("-inf")
    calls = (
        lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
        lambda x: F.max_pool2d(x, 2, 3, dilation=3, ceil_mode=True, return_indices=True),
        lambda x: F.max_pool2d(x[0], (1, 4), return_indices=True),
        lambda x: F.max_pool1d(x[0], 3, 1, 1, return_indices=True),
        lambda x: F.max_pool3d(x, 2, padding=1, return_indices=True),
        lambda x: F.adaptive_max_pool2d(x, (3, 4), return_indices=True),
        lambda x: F.adaptive_max_pool3d(x, (2, 3, 9), return_indices=True),
    )
    check_lowering(lambda x: [call(x) for call in calls], special)


def test_integers_are_averaged_towards_zero():
    check_lowering(lambda x: F.avg_pool2d(x, 2, padding=1), (X * 9).long())


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_interpolation(mode):
    smooth = {} if mode.startswith("nearest") else {"align_corners": True}
    calls = [
        lambda x: F.interpolate(x, scale_factor=2, mode=mode),
        lambda x: F.interpolate(x, scale_factor=(1.7, 0.6), mode=mode),
        lambda x: F.interpolate(x, scale_factor=1.07, mode=mode),  # to the size it has
        lambda x: F.interpolate(x, scale_factor=2.05, mode=mode),
        lambda x: F.interpolate(x, (5, 20), mode=mode, **smooth),
        lambda x: F.interpolate(
            x, scale_factor=1.7, mode=mode, recompute_scale_factor=True, **smooth
        ),
    ]
    if mode.startswith("bi"):
        calls.append(lambda x: F.interpolate(x, (5, 20), mode=mode, antialias=True))
    check_lowering(lambda x: [call(x) for call in calls], X)


@pytest.mark.parametrize(
    ("mode", "channels"),
    some(
        [*itertools.product(("bilinear", "bicubic", "nearest"), (1, 3, 5))],
        [("bicubic", 1), ("bicubic", 5), ("bilinear", 1), ("nearest", 5)],
    ),
)
def test_interpolation_of_bytes(mode, channels):
    """With the very bytes of torch, which rounds after each axis, by whole weights."""
    x = torch.randint(0, 256, (2, channels, 30, 41), generator=torch.manual_seed(0))
    x = x.to(torch.uint8)
    sizes = [(60, 82), (7, 100), (224, 13), (30, 20), (1, 3)]
    ways = [{}] if mode == "nearest" else [{}, {"align_corners": True}, {"antialias": True}]

    def model(x):
        return [F.interpolate(x, size, mode=mode, **way) for size in sizes for way in ways] + [
            F.interpolate(x, scale_factor=(1.7, 0.6), mode=mode)
        ]

    graph = check_lowering(model, x)
    for got, want in zip(evaluate_graph(graph, [x]), model(x), strict=True):
        assert np.array_equal(got, want.numpy())


def test_interpolation_of_one_axis():
    graph = check_lowering(lambda x: F.interpolate(x, (8, 18), mode="bilinear"), X)
    assert ops_of(graph) == ["RESAMPLE"]


def test_interpolation_in_one_and_three_dimensions():
    def model(x):
        return (
            F.interpolate(x[0], 5, mode="linear"),
            F.interpolate(x[0], 5, mode="nearest"),
            F.interpolate(x[0], scale_factor=1.07, mode="nearest"),
            F.interpolate(x[0], scale_factor=1.07, mode="linear"),
            F.interpolate(x[None], (3, 5, 12), mode="trilinear"),
            F.interpolate(x[None], (3, 5, 12), mode="nearest-exact"),
        )

    check_lowering(model, X)


def test_padding():
    """One PAD for all axes, or a CAT for each that grows by numbers."""
    cases = [
        (lambda x: F.pad(x, (1, 2, 3, 1), mode="reflect"), ["PAD"]),
        (lambda x: F.pad(x, (1, 2, 0, 0), mode="circular"), ["PAD"]),
        (lambda x: F.pad(x, (-1, 2, 3, -2), mode="replicate"), ["PAD"]),
        (lambda x: F.pad(x[0], (0, 5), mode="replicate"), ["PAD"]),
        (lambda x: F.pad(x[None], (1, 1, 1, 1, 1, 1), mode="reflect"), ["PAD"]),
        (lambda x: F.pad(x, (1, 1), value=2.5), ["CAT"]),
        (lambda x: F.pad(x, (0, 0)), []),
    ]
    for (_, wanted), nodes in check_each(cases, X):
        ops = computing(nodes)
        assert [op for op in ops if op in ("PAD", "CAT")] == wanted
        assert "INDEX_SELECT" not in ops


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.BatchNorm2d(4, affine=False),
        lambda: nn.BatchNorm2d(4, track_running_stats=False),
        lambda: nn.InstanceNorm2d(4),
        lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
        lambda: nn.GroupNorm(2, 4),
    ],
)
def test_norms(make):
    check_lowering(seeded(make), X * 3 + 5, rtol=1e-4, atol=1e-5)


def test_batch_norm_is_a_factor_and_a_summand():
    graph = check_lowering(seeded(lambda: nn.BatchNorm2d(4)), X)
    behind = [node.op for node in graph.order() if graph.tensors[node.output].shape == X.shape]
    assert behind == ["MUL", "ADD"]


def test_moving_between_channels_and_places():
    calls = (
        lambda x: F.pixel_shuffle(x, 2),
        lambda x: F.pixel_unshuffle(x[..., :8], 2),
        lambda x: F.channel_shuffle(x, 2),
        lambda x: F.unfold(x, (3, 2), 2, 1, (2, 3)),
        lambda x: F.fold(F.unfold(x, 3), (8, 9), 3),
        lambda x: F.fold(F.unfold(x, (2, 3), 2, 1, (3, 2)), (8, 9), (2, 3), 2, 1, (3, 2)),
        lambda x: F.fold(F.unfold(x[0], (3, 2), 1, 2, 4), (8, 9), (3, 2), 1, 2, 4),
    )
    check_lowering(lambda x: [call(x) for call in calls], X)


def test_windows_side_by_side_are_folded_by_moving():
    graph = check_lowering(
        lambda x: F.fold(x, (9, 9), 2, padding=1, stride=2), X[..., :5, :5].flatten(2)
    )
    assert set(ops_of(graph)) <= LAYOUT | {"SLICE", "CAT", "EXPAND"}


BORDERS = ("zeros", "border", "reflection")


@pytest.mark.parametrize("align", some([False, True], [True]))
def test_sampling_at_a_grid(align):
    grid = torch.rand(2, 4, 5, 2, generator=torch.manual_seed(0)) * 5 - 2.5
    modes = ("bilinear", "nearest", "bicubic")

    def model(x, grid):
        return [F.grid_sample(x, grid, mode, b, align) for mode in modes for b in BORDERS]

    check_lowering(model, X, grid, rtol=1e-4, atol=1e-5)
    check_lowering(model, X[:, :, :1], grid, rtol=1e-4, atol=1e-5)
    check_lowering(model, torch.cat([X] * 5, 1), grid, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("align", [False, True])
def test_sampling_in_space(align):
    grid = torch.rand(2, 3, 4, 5, 3, generator=torch.manual_seed(0)) * 5 - 2.5
    modes = ("bilinear", "nearest")

    def model(x, grid):
        return [F.grid_sample(x, grid, mode, b, align) for mode in modes for b in BORDERS]

    check_lowering(model, X.reshape(2, 4, 4, 6, 3), grid, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dims", some([2, 3], [3]))
def test_grid_sample_at_the_edge(dims):
    """NaN, infinities, numbers that overflow and signed zeros as coordinates, in every pair."""
    inf, nan = math.inf, math.nan
    values = [nan, inf, -inf, 3.3e38, -3.3e38, 0.0, -0.0, 1e-40, -1.0, 1.0, 0.3, -0.7, 1.5, -4.0]
    points = torch.tensor(list(itertools.product(values, repeat=2)))
    if dims == 3:
        points = torch.cat([points, points.roll(5, 0)[:, :1]], 1)
    grid = points.reshape(1, -1, *[1] * (dims - 1), dims).repeat(2, *[1] * (dims + 1))
    x = torch.randn(2, 2, *(2, 5, 6)[-dims:])
    modes = ("bilinear", "nearest", "bicubic")[: 3 if dims == 2 else 2]

    def model(x, grid):
        forms = itertools.product(modes, BORDERS, (False, True))
        return [F.grid_sample(x, grid, *form) for form in forms]

    check_lowering(model, x, grid, rtol=1e-4, atol=1e-5)


def test_places_of_the_largest_are_those_of_the_last_nan():
    x = torch.randn(2, 3, 8, 8)
    x[0, 0, 2, 2:4] = x[0, 0, 3, 2] = x[1, 1, 7, 7] = x[1, 1, 0, 0] = x[1, 2, 7] = x[1, 0] = (
        math.nan
    )
    x[0, 1, :, 3] = -math.inf

    def model(x):
        return [
            F.max_pool2d(x, 3, 2, 1, return_indices=True),
            F.max_pool2d(x, 2, 1, 1, dilation=2, ceil_mode=True, return_indices=True),
            F.max_pool1d(x[0], 3, 2, 1, return_indices=True),
            F.max_pool3d(x, 2, 2, 1, return_indices=True),
            F.adaptive_max_pool1d(x[0], 5, return_indices=True),
            F.adaptive_max_pool2d(x, (3, 5), return_indices=True),
            F.adaptive_max_pool3d(x, (2, 3, 5), return_indices=True),
        ]

    check_lowering(model, x)


def test_places_of_nan():
    """Of several NaNs torch takes the first; cummax and cummin the last so far."""
    x = torch.randn(4, 7)
    x[0, [2, 4, 6]] = x[1, [0, 1]] = x[2, 6] = x[3] = math.nan
    x[1, 3] = math.inf

    def model(x):
        ops = (torch.max, torch.min, torch.median, torch.cummax, torch.cummin)
        return [[op(x, dim) for op in ops] + [x.argmax(dim), x.argmin(dim)] for dim in (0, 1)]

    check_lowering(model, x)


def test_sampling_outside_of_an_image_does_not_read_it():
    x = torch.full((1, 1, 2, 2), float("inf"))
    grid = torch.tensor([[[[5.0, 5.0], [float("nan"), 0.0], [1e30, -1e30]]]])
    graph = lower_model(
        lambda x, g: F.grid_sample(x, g, "nearest", align_corners=False), x, grid
    ).graph
    assert evaluate_graph(graph, [x, grid])[0].tolist() == [[[[0.0, 0.0, 0.0]]]]


def test_statistics_of_norms():
    x = X * 3 + 5
    weight, bias, mean, variance = torch.rand(4, 4, generator=torch.manual_seed(0))
    aten = torch.ops.aten

    def model(x):
        gathered = (weight, bias, mean, variance)
        return [
            aten.native_layer_norm(x, [8, 9], None, None, 1e-5),
            aten.native_group_norm(x, weight, bias, 2, 4, 72, 2, 1e-5),
            aten.native_batch_norm(x, *gathered, False, 0.1, 1e-5),
            aten._native_batch_norm_legit_no_training(x, *gathered, 0.1, 1e-5),
            aten._native_batch_norm_legit_functional(x, *gathered, True, 0.1, 1e-5),
            aten._native_batch_norm_legit_functional(x, *gathered, False, 0.1, 1e-5),
            aten._native_batch_norm_legit.no_stats(x, weight, bias, True, 0.1, 1e-5),
        ]

    check_lowering(model, x, rtol=1e-4, atol=1e-5)
