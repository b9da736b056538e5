"""CONV and CONV_TRANSPOSE: convolutions over channels-last tensors, with an epilogue."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.formats import winograd
from taper_runtime.formats.panels import whole_panels
from taper_runtime.ops.map import (
    EPILOGUE,
    MAX_EXTRAS,
    epilogue_regions,
    evaluate_epilogue,
    infer_epilogue,
)
from taper_runtime.ops.opdef import Attr, Attrs, Cost, OpDef, Sample, Shape, TensorType
from taper_runtime.ops.region import WHOLE, Region, Relation, Same, all_of
from taper_runtime.ops.rules import REALS, check_dtype, check_same_dtype, fail
from taper_runtime.ops.window import (
    LIMIT,
    check_ints,
    check_spatial,
    gather_windows,
    window_positions,
    window_region,
    window_sizes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def is_read_plain(weight: Shape, groups: int) -> bool:
    """Whether the groups of a CONV are so small that its kernels are no matrix products.

    That is several groups of one channel each (depthwise) or of 2, 4 or 8, as many in as out.
    """
    return groups > 1 and weight[-2] in (1, 2, 4, 8) and weight[-1] == groups * weight[-2]


def _check_weight(op: str, channels: int, shape: Shape, attrs: Attrs) -> None:
    """Check that a weight of this shape fits an x of so many channels."""
    kernel, groups = attrs["kernel"], attrs["groups"]
    if not 1 <= groups <= max(1, channels) or channels % groups:
        fail(op, f"groups that divide the {channels} channels of x", groups)
    rows = (*kernel, channels // groups)
    if shape[:-1] != rows or len(shape) != len(rows) + 1:
        fail(op, f"a weight of [{', '.join(map(str, rows))}, O]", list(shape))
    if shape[-1] % groups:
        fail(op, f"groups that divide the {shape[-1]} channels of the output", groups)


def _transposed_sizes(op: str, spatial: Shape, attrs: Attrs) -> Shape:
    n = len(spatial)
    kernel, stride = attrs["kernel"], check_ints(op, attrs, "stride", n, 1)
    padding = check_ints(op, attrs, "padding", 2 * n, 1 - LIMIT)
    dilation = check_ints(op, attrs, "dilation", n, 1)
    sizes = tuple(
        (size - 1) * stride[d] + dilation[d] * (kernel[d] - 1) + 1 - sum(padding[2 * d : 2 * d + 2])
        for d, size in enumerate(spatial)
    )
    if any(size < 1 for size in (*spatial, *sizes)):
        fail(op, "an input and an output that are not empty", [list(spatial), list(sizes)])
    return sizes


def _infer(op: str, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, weight = inputs[:2]
    dtype = check_dtype(op, "x and weight", check_same_dtype(op, inputs[:2]), REALS)
    spatial = check_spatial(op, x, attrs)
    _check_weight(op, x.shape[-1], weight.shape, attrs)
    sizes = (window_sizes if op == "CONV" else _transposed_sizes)(op, spatial, attrs)
    product = TensorType(dtype, (x.shape[0], *sizes, weight.shape[-1]))
    return infer_epilogue(op, product, inputs[2:], attrs)


def _transposed_positions(output: Sequence[int], attrs: Attrs) -> list[np.ndarray]:
    """Per spatial dim, the input position that meets each tap at each output; -1: none."""
    positions = []
    for d, size in enumerate(output):
        taps = np.arange(attrs["kernel"][d]) * attrs["dilation"][d]
        at = np.arange(size)[:, None] + attrs["padding"][2 * d] - taps
        whole, rest = np.divmod(at, attrs["stride"][d])
        positions.append(np.where(rest == 0, whole, -1))
    return positions


def _evaluate(op: str, inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, weight = inputs[:2]
    groups, kernel = attrs["groups"], attrs["kernel"]
    columns = weight.shape[-1] // groups
    rows = math.prod(weight.shape[:-1])
    matrices = weight.reshape(rows, groups, columns).transpose(1, 0, 2)
    sizes = (window_sizes if op == "CONV" else _transposed_sizes)(op, x.shape[1:-1], attrs)
    positions = (window_positions if op == "CONV" else _transposed_positions)(sizes, attrs)
    wide = np.dtype(np.float64) if x.dtype.kind == "f" else x.dtype
    windows = gather_windows(x.astype(wide, copy=False), positions, 0)
    windows = windows.reshape(x.shape[0], *sizes, math.prod(kernel), groups, x.shape[-1] // groups)
    windows = np.moveaxis(windows, -2, 0)  # [groups, N, *sizes, taps, C/groups]
    windows = windows.reshape(groups, x.shape[0] * math.prod(sizes), matrices.shape[1])
    with np.errstate(all="ignore"):
        product = np.matmul(
            windows, matrices.astype(wide, copy=False)
        )  # [groups, pixels, O/groups]
        product = np.asarray(product.transpose(1, 0, 2), x.dtype, order="C")
    product = product.reshape(x.shape[0], *sizes, groups * matrices.shape[2])
    return evaluate_epilogue(product, inputs[2:], attrs)


def _packing(op: str, weight: TensorType, attrs: Attrs) -> str | None:
    if weight.dtype != "float32" or (op == "CONV" and is_read_plain(weight.shape, attrs["groups"])):
        return None
    return f"grouped_panels.{attrs['groups']}"


def _region(
    op: str, inputs: Sequence[TensorType], output: TensorType, attrs: Attrs
) -> list[Region]:
    x, weight = (t.shape for t in inputs[:2])
    spatial: Sequence[Relation] = all_of(attrs["kernel"])
    if op == "CONV":
        spatial = window_region(attrs)
    outputs = Same(len(x) - 1) if attrs["groups"] == 1 else WHOLE
    product = (Same(0), *spatial, WHOLE), (*all_of(weight[:-1]), outputs)
    return epilogue_regions(product, inputs[2:], output)


def _cost(op: str, inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    x = inputs[0].shape
    taps, groups = math.prod(attrs["kernel"]), attrs["groups"]
    tile = winograd.tile_of(inputs[1].format)
    if tile is not None:
        return _winograd_cost(tile, inputs, output, attrs)
    # Each tap of the kernel meets every output pixel of a CONV, every input pixel of the other.
    columns = output.shape[-1]
    lanes = whole_panels(columns) if groups == 1 else columns
    pixels = output.size // max(1, columns)
    rows = pixels if op == "CONV" else math.prod(x[:-1])
    each = 2 * rows * taps * (x[-1] // groups)
    return Cost(
        each * columns + output.size * len(attrs["code"]),
        output.nbytes + sum(t.nbytes for t in inputs),
        padding=each * (lanes - columns),
        sums=pixels * lanes,
    )


def _winograd_cost(
    tile: int, inputs: Sequence[TensorType], output: TensorType, attrs: Attrs
) -> Cost:
    """Products of the points of each tile; pixels and sums go through scratch, by whole vectors."""
    batch, *sizes, columns = output.shape
    channels, lanes = inputs[0].shape[-1], whole_panels(columns)
    points = batch * winograd.tiles(tuple(sizes), tile) * (tile + 2) ** 2
    return Cost(
        2 * points * channels * columns + output.size * len(attrs["code"]),
        output.nbytes + sum(t.nbytes for t in inputs),
        padding=2 * points * channels * (lanes - columns),
        sums=points * lanes,
        scratch=4 * points * (whole_panels(channels) + lanes),
    )


def _attrs(kernel: Sequence[int], **given: Any) -> dict[str, Any]:
    n = len(kernel)
    plain = {"stride": [1] * n, "padding": [0] * 2 * n, "dilation": [1] * n}
    return {"kernel": list(kernel)} | plain | given


def _floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return np.asarray(rng.standard_normal(shape), np.float32)


def _with_packed(
    x: np.ndarray, weight: np.ndarray, attrs: dict[str, Any], *extras: np.ndarray
) -> Iterator[Sample]:
    """One sample with the weight as it is, one with it packed."""
    yield Sample([x, weight, *extras], attrs)
    packed = f"grouped_panels.{attrs.get('groups', 1)}"
    yield Sample([x, weight, *extras], attrs, formats={1: packed})


def _samples() -> Iterator[Sample]:
    rng = np.random.default_rng(11)
    floats = partial(_floats, rng)

    cases: list[tuple[Shape, Shape, dict[str, Any]]] = [
        # x, weight, attrs
        ((2, 9, 5), (3, 5, 7), {}),
        ((1, 6, 7, 3), (3, 3, 3, 20), {"padding": [1, 1, 1, 1]}),
        ((2, 11, 9, 3), (7, 7, 3, 16), {"stride": [2, 2], "padding": [3, 3, 3, 3]}),
        ((1, 8, 8, 20), (1, 1, 20, 33), {"stride": [2, 2]}),
        ((1, 9, 10, 6), (3, 2, 3, 34), {"groups": 2, "padding": [1, 0, 0, 1]}),
        ((1, 9, 10, 8), (3, 3, 2, 4), {"groups": 4, "dilation": [2, 3], "padding": [2, 2, 3, 3]}),
        ((1, 4, 5, 6, 3), (2, 3, 2, 3, 5), {"stride": [1, 2, 3], "padding": [1, 0, 1, 1, 0, 0]}),
        ((1, 2, 3, 4), (1, 1, 4, 2), {"padding": [5, 4, 0, 7]}),
        ((0, 5, 5, 3), (3, 3, 3, 4), {}),
        ((1, 5, 5, 0), (3, 3, 0, 4), {}),
        ((1, 5, 5, 3), (3, 3, 3, 0), {}),
        # A channel of its own for each output: never packed, a multiplier of 1 or more.
        ((2, 9, 8, 35), (3, 3, 1, 35), {"groups": 35, "padding": [1, 1, 1, 1]}),
        ((1, 9, 8, 16), (5, 5, 1, 16), {"groups": 16, "stride": [2, 2], "padding": [2, 2, 2, 2]}),
        ((1, 9, 8, 16), (7, 7, 1, 16), {"groups": 16, "padding": [3, 3, 3, 3]}),
        ((1, 9, 8, 5), (3, 3, 1, 15), {"groups": 5, "dilation": [2, 1]}),
        ((1, 20, 40), (4, 1, 40), {"groups": 40, "padding": [3, 0]}),
        # Groups of a few channels: likewise.
        ((1, 9, 20, 20), (3, 3, 4, 20), {"groups": 5, "padding": [1, 1, 1, 1]}),
        ((1, 9, 20, 24), (3, 3, 8, 24), {"groups": 3, "stride": [2, 2]}),
        ((1, 9, 20, 6), (1, 3, 2, 6), {"groups": 3, "dilation": [1, 3]}),
        ((1, 5, 6, 7, 9), (3, 3, 3, 1, 9), {"groups": 9, "padding": [1, 1, 1, 1, 1, 1]}),
    ]
    for x, weight, given in cases:
        attrs = _attrs(weight[: len(x) - 2], **given)
        yield from _with_packed(floats(*x), floats(*weight), attrs)
    bias_relu = {"code": ["ADD", "RELU"], "args": [0, 1, 2]}
    same = _attrs((3, 3), padding=[1, 1, 1, 1])
    yield from _with_packed(floats(2, 5, 6, 4), floats(3, 3, 4, 18), same | bias_relu, floats(18))
    grouped = same | bias_relu | {"groups": 6}
    yield from _with_packed(floats(1, 5, 6, 6), floats(3, 3, 1, 6), grouped, floats(6))
    residual = {"code": ["ADD", "ADD", "MUL"], "args": [0, 1, 3, 2, 4, -1], "scalars": [0.5]}
    extras = [floats(20), floats(2, 5, 6, 20)]
    yield from _with_packed(
        floats(2, 5, 6, 4), floats(3, 3, 2, 20), same | residual | {"groups": 2}, *extras
    )
    special = floats(1, 4, 4, 3)
    special[0, 1, 2] = [np.nan, np.inf, 0]
    yield from _with_packed(special, floats(2, 2, 3, 4), _attrs((2, 2)))
    whole = [rng.integers(-9, 9, (1, 4, 4, 2)), rng.integers(-9, 9, (2, 2, 2, 3))]
    yield Sample(whole, _attrs((2, 2)), native=False)
    wide = [floats(1, 4, 3).astype(np.float64), floats(2, 3, 2).astype(np.float64)]
    yield Sample(wide, _attrs((2,)), native=False)
    yield from _samples_winograd(floats)


def _samples_winograd(floats: Callable[..., np.ndarray]) -> Iterator[Sample]:
    cases: list[tuple[int, Shape, Shape]] = [
        # tile, x, padding
        (2, (2, 5, 6, 4), (1, 1, 1, 1)),
        (4, (2, 9, 6, 5), (1, 0, 3, 7)),
        (4, (1, 14, 14, 35), (1, 1, 1, 1)),
        (4, (0, 5, 6, 4), (0, 0, 0, 0)),
    ]
    program = {"code": ["ADD", "MUL", "RELU"], "args": [0, 1, 2, -1, 3], "scalars": [0.5]}
    for tile, shape, padding in cases:
        attrs = _attrs((3, 3), padding=list(padding))
        x, weight = floats(*shape), floats(3, 3, shape[-1], 18)
        formats = {1: f"winograd.{tile}"}
        yield Sample([x, weight], attrs, formats=formats)
        yield Sample([x, weight, floats(18)], attrs | program, formats=formats)
    strided = _attrs((3, 3), stride=[2, 2])
    yield Sample(
        [floats(1, 9, 9, 4), floats(3, 3, 4, 18)], strided, native=False, formats={1: "winograd.2"}
    )


def _samples_transpose() -> Iterator[Sample]:
    rng = np.random.default_rng(12)
    floats = partial(_floats, rng)
    cases: list[tuple[Shape, Shape, dict[str, Any]]] = [
        ((2, 9, 5), (3, 5, 7), {}),
        ((1, 5, 6, 4), (2, 2, 4, 18), {"stride": [2, 2]}),
        ((2, 5, 6, 4), (4, 4, 4, 18), {"stride": [2, 2], "padding": [1, 1, 1, 1]}),
        # An output padding, in part beyond what any tap reaches.
        ((1, 5, 6, 4), (3, 3, 4, 5), {"stride": [2, 3], "padding": [1, 0, 0, -1]}),
        ((1, 5, 6, 4), (1, 2, 4, 5), {"stride": [3, 3], "padding": [0, -2, -1, -3]}),
        ((1, 5, 6, 6), (3, 3, 3, 34), {"groups": 2, "dilation": [2, 1], "stride": [1, 2]}),
        ((1, 3, 4, 5, 3), (2, 3, 2, 3, 5), {"stride": [1, 2, 3]}),
        ((1, 9, 8, 20), (4, 4, 1, 20), {"groups": 20, "stride": [2, 2], "padding": [1, 1, 1, 1]}),
        ((0, 5, 5, 3), (3, 3, 3, 4), {}),
        ((1, 5, 5, 0), (3, 3, 0, 4), {}),
    ]
    for x, weight, given in cases:
        attrs = _attrs(weight[: len(x) - 2], **given)
        yield from _with_packed(floats(*x), floats(*weight), attrs)
    attrs = _attrs((2, 2), stride=[2, 2])
    program = {"code": ["ADD", "MUL"], "args": [0, 1, 2, -1], "scalars": [3.0]}
    yield from _with_packed(floats(1, 3, 4, 5), floats(2, 2, 5, 20), attrs | program, floats(20))
    wide = [rng.standard_normal((1, 3, 3, 2)), rng.standard_normal((2, 2, 2, 3))]
    yield Sample(wide, attrs, native=False)


_WEIGHT = (
    "weight is [*kernel, C/groups, O]; output channel o reads the input channels of group "
    "o // (O/groups). Then an epilogue as of MATMUL. "
)


def _define(name: str, doc: str, samples: Any, *, native: bool) -> OpDef:
    return OpDef(
        name=name,
        doc=doc,
        inputs=(2, 2 + MAX_EXTRAS),
        infer=partial(_infer, name),
        evaluate=partial(_evaluate, name),
        samples=samples,
        attrs={
            "kernel": Attr("ints"),
            "stride": Attr("ints"),
            "padding": Attr("ints", role="padding"),
            "dilation": Attr("ints"),
            "groups": Attr("int", 1),
            **EPILOGUE,
        },
        strided=tuple(range(2, 2 + MAX_EXTRAS)),
        formatted=(1,),
        region=partial(_region, name),
        border=0.0 if name == "CONV" else None,
        weights=(1,),
        packing=partial(_packing, name),
        cost=partial(_cost, name),
        native=native,
    )


OPS = (
    _define(
        "CONV",
        "torch's convolution, channels last: x [N, *spatial, C], 1 to 3 spatial dims, to [N, *out, "
        "O]. " + _WEIGHT + "padding is low0, high0, low1, high1, ...; what it adds is zero.",
        _samples,
        native=True,
    ),
    _define(
        "CONV_TRANSPOSE",
        "Transposed convolution of x [N, *spatial, C] to [N, *out, O]: input pixel i and tap t add "
        "to pixel i * stride + t * dilation of the full output. " + _WEIGHT + "padding is how much "
        "of the full output is cut off, low0, high0, low1, ...; what a negative one adds is zero.",
        _samples_transpose,
        native=True,
    ),
)
