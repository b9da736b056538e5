"""Define CONV and CONV_TRANSPOSE: convolutions of channels-last tensors, with an epilogue."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.formats import winograd
from taper_runtime.formats.panels import computed_columns, whole_panels
from taper_runtime.ops.map import (
    EPILOGUE,
    EXTRAS,
    MAX_EXTRAS,
    epilogue_functions,
    epilogue_regions,
    evaluate_epilogue,
    infer_epilogue,
)
from taper_runtime.ops.matmul import PUT_ROWS, put_bytes
from taper_runtime.ops.opdef import Attr, Attrs, Cost, OpDef, Shape, TensorType
from taper_runtime.ops.region import WHOLE, Region, Relation, Same, all_of
from taper_runtime.ops.type_rules import (
    REALS,
    check_accumulator,
    check_dtype,
    check_same_dtype,
    fail,
)
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
    from collections.abc import Sequence


def is_read_plain(weight: Shape, groups: int) -> bool:
    """Return whether a CONV's groups are so small that its kernels compute no matrix products.

    That is so if there are several groups of 1 (depthwise), 2, 4 or 8 channels, with as many output
    as input channels.
    """
    return groups > 1 and weight[-2] in (1, 2, 4, 8) and weight[-1] == groups * weight[-2]


def _check_weight(op: str, channels: int, shape: Shape, attrs: Attrs) -> None:
    """Check that a weight of this shape fits an input with this number of channels."""
    kernel, groups = attrs["kernel"], attrs["groups"]
    if not 1 <= groups <= max(1, channels) or channels % groups:
        fail(op, f"groups that divide the {channels} channels of x", groups)
    rows = (*kernel, channels // groups)
    if shape[:-1] != rows or len(shape) != len(rows) + 1:
        fail(op, f"a weight of [{', '.join(map(str, rows))}, O]", list(shape))
    if shape[-1] % groups:
        fail(op, f"groups that divide the {shape[-1]} channels of the output", groups)


def _check_border(op: str, dtype: str, attrs: Attrs) -> None:
    """Check that x can have the border: only bytes have one that is not 0."""
    least, most = 0, 0
    if attrs["accumulate"]:
        limits = np.iinfo(dtype)
        least, most = int(limits.min), int(limits.max)
    if not least <= attrs["border"] <= most:
        fail(op, f"a border from {least} to {most}", attrs["border"])


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
    if attrs["accumulate"]:
        dtype = check_accumulator(op, inputs[:2], attrs)
    else:
        dtype = check_dtype(op, "x and weight", check_same_dtype(op, inputs[:2]), REALS)
    if op == "CONV":
        _check_border(op, x.dtype, attrs)
    spatial = check_spatial(op, x, attrs)
    _check_weight(op, x.shape[-1], weight.shape, attrs)
    sizes = (window_sizes if op == "CONV" else _transposed_sizes)(op, spatial, attrs)
    product = TensorType(dtype, (x.shape[0], *sizes, weight.shape[-1]))
    return infer_epilogue(op, product, inputs[2:], attrs)


def _transposed_positions(output: Sequence[int], attrs: Attrs) -> list[np.ndarray]:
    """Map each output and tap, per spatial dim, to an input position, or -1 if there is none."""
    positions = []
    for d, size in enumerate(output):
        taps = np.arange(attrs["kernel"][d]) * attrs["dilation"][d]
        at = np.arange(size)[:, None] + attrs["padding"][2 * d] - taps
        whole, rest = np.divmod(at, attrs["stride"][d])
        positions.append(np.where(rest == 0, whole, -1))
    return positions


def _evaluate(op: str, inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    """Gather the windows of all output pixels and multiply them by the weight, group by group."""
    x, weight = inputs[:2]
    groups, kernel = attrs["groups"], attrs["kernel"]
    columns = weight.shape[-1] // groups
    rows = math.prod(weight.shape[:-1])
    matrices = weight.reshape(rows, groups, columns).transpose(1, 0, 2)
    sizes = (window_sizes if op == "CONV" else _transposed_sizes)(op, x.shape[1:-1], attrs)
    positions = (window_positions if op == "CONV" else _transposed_positions)(sizes, attrs)
    dtype = np.dtype(attrs["accumulate"] or x.dtype)
    wide = np.dtype(np.float64) if x.dtype.kind == "f" else dtype
    windows = gather_windows(x.astype(wide, copy=False), positions, attrs.get("border", 0))
    windows = windows.reshape(x.shape[0], *sizes, math.prod(kernel), groups, x.shape[-1] // groups)
    windows = np.moveaxis(windows, -2, 0)  # [groups, N, *sizes, taps, C/groups]
    windows = windows.reshape(groups, x.shape[0] * math.prod(sizes), matrices.shape[1])
    with np.errstate(all="ignore"):
        # [groups, pixels, O/groups]
        product = np.matmul(windows, matrices.astype(wide, copy=False))
        product = np.asarray(product.transpose(1, 0, 2), dtype, order="C")
    product = product.reshape(x.shape[0], *sizes, groups * matrices.shape[2])
    return evaluate_epilogue(product, inputs[2:], attrs)


def _packing(op: str, weight: TensorType, attrs: Attrs) -> str | None:
    if attrs["accumulate"]:
        depthwise = weight.shape[-2] == 1 and weight.shape[-1] == attrs["groups"]
        plain = op != "CONV" or depthwise or weight.dtype != "int8"
        return None if plain else f"dots.{attrs['groups']}"
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
    """Return the cost of the product, or of Winograd's algorithm if the weight's format says so."""
    x = inputs[0].shape
    taps, groups = math.prod(attrs["kernel"]), attrs["groups"]
    tile = winograd.tile_of(inputs[1].format)
    if tile is not None:
        return _winograd_cost(tile, inputs, output, attrs)
    if op == "CONV" and groups == x[-1] == output.shape[-1] and not attrs["accumulate"]:
        return _depthwise_cost(inputs, output, attrs)
    # Each tap is multiplied with every output pixel of a CONV, every input pixel of CONV_TRANSPOSE.
    columns = output.shape[-1]
    lanes = computed_columns(columns) if groups == 1 else columns
    pixels = output.size // max(1, columns)
    rows = pixels if op == "CONV" else math.prod(x[:-1])
    each = 2 * rows * taps * (x[-1] // groups)
    puts = attrs["accumulate"] and groups < x[-1]
    padding = each * (lanes - columns)
    if attrs["accumulate"] and not puts:
        padding += each * columns  # the bytes of a tap are zipped and widened for each channel
    return Cost(
        each * columns + output.size * len(attrs["code"]),
        output.nbytes + sum(t.nbytes for t in inputs),
        padding=padding,
        sums=pixels * lanes,
        scratch=put_bytes(pixels * taps * x[-1]) if puts else 0,
        functions=_epilogue(inputs, output, attrs, output.size),
        rows=PUT_ROWS * pixels * groups if puts else 0,
    )


def _epilogue(
    inputs: Sequence[TensorType], output: TensorType, attrs: Attrs, size: int
) -> tuple[tuple[str, str, int], ...]:
    """Return ``Cost.functions`` of the epilogue of ``size`` elements."""
    product = TensorType(attrs["accumulate"] or inputs[0].dtype, output.shape)
    return epilogue_functions(product, inputs[2:], attrs, size)


#: The rows and the columns of pixels that a kernel of depthwise convolutions computes together.
_DEPTHWISE_TILE = 2, 4


def _depthwise_cost(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    """Return the cost of the pixels of whole tiles, whose numbers are loaded once for a tile.

    A tile loads each of its positions of x once, and each weight once for a row of pixels.
    """
    batch, *sizes, channels = output.shape
    kernel, stride = attrs["kernel"], attrs["stride"]
    taps, nbytes = math.prod(kernel), output.nbytes + sum(t.nbytes for t in inputs)
    tile = (1,) * (len(sizes) - 2) + _DEPTHWISE_TILE[-len(sizes) :]
    tiles = batch * math.prod(-(-n // each) for n, each in zip(sizes, tile, strict=True))
    computed = tiles * math.prod(tile) * channels
    positions = math.prod(
        (each - 1) * s + k for each, s, k in zip(tile, stride, kernel, strict=True)
    )
    loads = tiles * channels * (positions + taps * math.prod(tile[:-1]))
    flops = 2 * taps * output.size + output.size * len(attrs["code"])
    return Cost(
        flops,
        nbytes,
        padding=2 * taps * (computed - output.size),
        functions=_epilogue(inputs, output, attrs, computed),
        loads=loads,
    )


#: The vector registers of all levels but AVX-512 and NEON, which have 32.
_FEW_REGISTERS = 16


def _winograd_cost(
    tile: int, inputs: Sequence[TensorType], output: TensorType, attrs: Attrs
) -> Cost:
    """Return the cost of the pointwise products of all tiles, and of scratch traffic."""
    batch, *sizes, columns = output.shape
    channels, lanes = inputs[0].shape[-1], computed_columns(columns)
    numbers = (tile + 2) ** 2  # of a tile, each in a vector
    points = batch * winograd.tiles(tuple(sizes), tile) * numbers
    scratch = 4 * points * (whole_panels(channels) + whole_panels(columns))
    return Cost(
        2 * points * channels * columns + output.size * len(attrs["code"]),
        output.nbytes + sum(t.nbytes for t in inputs),
        padding=2 * points * channels * (lanes - columns),
        sums=points * lanes,
        scratch=scratch,
        spilled=scratch if numbers > _FEW_REGISTERS else 0,
        functions=_epilogue(inputs, output, attrs, output.size),
    )


_WEIGHT = (
    "weight is [*kernel, C/groups, O]; output channel o reads the input channels of group "
    "o // (O/groups). Then an epilogue as of MATMUL; accumulate is as of MATMUL too. "
)


def _define(name: str, doc: str, *, native: bool) -> OpDef:
    """Define a convolution: both share everything except the positions that the taps read."""
    return OpDef(
        name=name,
        doc=doc,
        inputs=(2, 2 + MAX_EXTRAS),
        infer=partial(_infer, name),
        evaluate=partial(_evaluate, name),
        attrs={
            "kernel": Attr("ints"),
            "stride": Attr("ints"),
            "padding": Attr("ints", role="padding"),
            "dilation": Attr("ints"),
            "groups": Attr("int", 1),
            "accumulate": Attr("string", ""),
            **({"border": Attr("int", 0)} if name == "CONV" else {}),
            **EPILOGUE,
        },
        strided=EXTRAS,
        inplace=EXTRAS,
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
        "O]. " + _WEIGHT + "padding is low0, high0, low1, high1, ...; what it adds is "
        "zero, of bytes the attr border.",
        native=True,
    ),
    _define(
        "CONV_TRANSPOSE",
        "Transposed convolution of x [N, *spatial, C] to [N, *out, O]: input pixel i and tap t add "
        "to pixel i * stride + t * dilation of the full output. " + _WEIGHT + "padding is how much "
        "of the full output is cut off, low0, high0, low1, ...; what a negative one adds is zero.",
        native=True,
    ),
)
