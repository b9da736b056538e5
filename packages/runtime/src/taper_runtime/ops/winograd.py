"""CONV_WINOGRAD: a 3x3 convolution of stride 1 with fewer products, of a transformed weight.

With ``n = tile + 2``, a tile of ``tile x tile`` output pixels is ``At [(G w Gt) * (Bt d B)] A``,
where ``d`` are the ``n x n`` pixels below it: ``n**2`` products instead of ``9 tile**2``. A plan
holds ``G w Gt``, packed: ``[n**2, ceil(O/16), C, 16]``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from taper_runtime.ops.map import (
    EPILOGUE,
    MAX_EXTRAS,
    epilogue_regions,
    evaluate_epilogue,
    infer_epilogue,
)
from taper_runtime.ops.matmul import PANEL, pack, unpack, whole_panels
from taper_runtime.ops.opdef import Attr, Attrs, Cost, OpDef, Sample, Shape, TensorType
from taper_runtime.ops.region import WHOLE, Region, Same, all_of
from taper_runtime.ops.rules import check_dtype, check_same_dtype, fail
from taper_runtime.ops.window import check_spatial, gather_windows, window_region, window_sizes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Points of each tile size, beside infinity. Pairs about 1 whose powers are exact in float32: the
#: usual 1 and 2 of F(4x4) make twice the rounding error of these. The kernels have the same.
POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, 0.625, -0.625, 1.375, -1.375)}

KERNEL = 3


class Transforms(NamedTuple):
    """Cook and Toom's matrices, float64."""

    x: np.ndarray  # Bt: [n, n]
    weight: np.ndarray  # G: [n, 3]
    output: np.ndarray  # At: [tile, n]


def transforms(tile: int) -> Transforms:
    """Return the matrices of a tile size, one of :data:`POINTS`.

    Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015, for the form;
    Barabasz et al., "Error analysis and improving the accuracy of Winograd convolution for DNNs",
    2020, for what the choice of points is worth.
    """
    points = np.array(POINTS[tile])
    n = tile + 2
    x, weight, output = np.zeros((n, n)), np.zeros((n, KERNEL)), np.zeros((tile, n))
    for i, point in enumerate(points):
        others = np.delete(points, i)
        x[i, : n - 1] = np.poly(others)[::-1]
        weight[i] = point ** np.arange(KERNEL) / np.prod(point - others)
        output[:, i] = point ** np.arange(tile)
    x[-1] = np.poly(points)[::-1]
    weight[-1, -1] = output[-1, -1] = 1
    return Transforms(x, weight, output)


def transform_weight(weight: np.ndarray, tile: int) -> np.ndarray:
    """Transform and pack a float32 ``[3, 3, C, O]``: ``[n**2, ceil(O/16), C, 16]``."""
    g = transforms(tile).weight
    points = np.einsum("ip,jq,pqco->ijco", g, g, weight.astype(np.float64))
    return np.stack([pack(p) for p in points.reshape(-1, *weight.shape[2:]).astype(np.float32)])


def weight_shape(channels: int, outputs: int, tile: int) -> Shape:
    """Shape of what :func:`transform_weight` returns."""
    return ((tile + 2) ** 2, -(-outputs // PANEL), channels, PANEL)


def tiles(sizes: Shape, tile: int) -> int:
    """Return how many tiles cover an image of these sizes."""
    return (sizes[0] + tile - 1) // tile * ((sizes[1] + tile - 1) // tile)


def _window(attrs: Attrs) -> Attrs:
    return {"kernel": (KERNEL, KERNEL), "stride": (1, 1), "padding": attrs["padding"]}


def _infer(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    op = "CONV_WINOGRAD"
    x, weight = inputs[:2]
    check_dtype(op, "x and weight", check_same_dtype(op, inputs[:2]), ("float32",))
    spatial = check_spatial(op, x, _window(attrs))
    tile, columns = attrs["tile"], attrs["columns"]
    if tile not in POINTS:
        fail(op, f"a tile of {' or '.join(map(str, POINTS))}", tile)
    if columns < 1:
        fail(op, "columns of at least 1", columns)
    shape = weight_shape(x.shape[-1], columns, tile)
    if weight.shape != shape:
        fail(op, f"{columns} columns packed as {list(shape)}", list(weight.shape))
    sizes = window_sizes(op, spatial, _window(attrs))
    product = TensorType("float32", (x.shape[0], *sizes, columns))
    return infer_epilogue(op, product, inputs[2:], attrs)


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, weight = inputs[:2]
    tile, columns = attrs["tile"], attrs["columns"]
    n, matrices = tile + 2, transforms(tile)
    sizes = window_sizes("CONV_WINOGRAD", x.shape[1:-1], _window(attrs))
    positions = [
        np.arange(0, size, tile)[:, None] - attrs["padding"][2 * d] + np.arange(n)
        for d, size in enumerate(sizes)
    ]
    points = np.stack([unpack(p, columns) for p in weight]).astype(np.float64)
    with np.errstate(all="ignore"):
        d = gather_windows(x.astype(np.float64), positions, 0)  # [N, rows, cols, n, n, C]
        d = np.einsum("ip,jq,nyxpqc->ijnyxc", matrices.x, matrices.x, d)
        product = np.matmul(d.reshape(n * n, math.prod(d.shape[2:5]), d.shape[5]), points)
        product = product.reshape(*d.shape[:5], columns)
        y = np.einsum("pi,qj,ijnyxo->nypxqo", matrices.output, matrices.output, product)
        y = y.reshape(y.shape[0], y.shape[1] * tile, y.shape[3] * tile, columns)
        y = np.asarray(y[:, : sizes[0], : sizes[1]], np.float32, order="C")
    return evaluate_epilogue(y, inputs[2:], attrs)


def _region(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> list[Region]:
    """Rows and columns as of a direct sum: what a tile reads beyond them adds up to 0, rounded."""
    product: list[Region] = [
        (Same(0), *window_region(_window(attrs)), WHOLE),
        all_of(inputs[1].shape),
    ]
    return epilogue_regions(product, inputs[2:], output)


def _cost(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    """Products of the points of each tile; pixels and sums go through scratch, by whole vectors."""
    tile = attrs["tile"]
    batch, *sizes, columns = output.shape
    channels, lanes = inputs[0].shape[-1], whole_panels(columns)
    points = batch * tiles(tuple(sizes), tile) * (tile + 2) ** 2
    return Cost(
        2 * points * channels * columns + output.size * len(attrs["code"]),
        output.nbytes + sum(t.nbytes for t in inputs),
        padding=2 * points * channels * (lanes - columns),
        sums=points * lanes,
        scratch=4 * points * (whole_panels(channels) + lanes),
    )


def _samples() -> Iterator[Sample]:
    rng = np.random.default_rng(13)

    def floats(*shape: int) -> np.ndarray:
        return np.asarray(rng.standard_normal(shape), np.float32)

    cases: list[tuple[int, Shape, Shape]] = [
        # tile, x, padding
        (2, (2, 5, 6, 4), (1, 1, 1, 1)),
        (4, (2, 9, 6, 5), (1, 0, 3, 7)),
        (4, (1, 14, 14, 35), (1, 1, 1, 1)),
        (4, (0, 5, 6, 4), (0, 0, 0, 0)),
    ]
    for tile, shape, padding in cases:
        attrs: dict[str, Any] = {"padding": list(padding), "columns": 18, "tile": tile}
        weight = transform_weight(floats(3, 3, shape[-1], 18), tile)
        yield Sample([floats(*shape), weight], attrs)
        program = {"code": ["ADD", "MUL", "RELU"], "args": [0, 1, 2, -1, 3], "scalars": [0.5]}
        yield Sample([floats(*shape), weight, floats(18)], attrs | program)


CONV_WINOGRAD = OpDef(
    name="CONV_WINOGRAD",
    doc="CONV of x [N, H, W, C] with a kernel of 3x3, stride 1 and one group, in Winograd's "
    "form: tile x tile output pixels at a time, tile 2 or 4, from a weight transformed and "
    "packed as [(tile + 2)^2, ceil(O/16), C, 16], columns = O. Then an epilogue as of MATMUL.",
    inputs=(2, 2 + MAX_EXTRAS),
    infer=_infer,
    evaluate=_evaluate,
    samples=_samples,
    attrs={
        "padding": Attr("ints"),
        "columns": Attr("int"),
        "tile": Attr("int"),
        **EPILOGUE,
    },
    region=_region,
    weights=(1,),
    strided=tuple(range(2, 2 + MAX_EXTRAS)),
    cost=_cost,
)
