"""Lower deformable convolutions (Dai et al. 2017; with a mask: Zhu et al. 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_frontend.lowering.channels import channels_first, channels_last
from taper_frontend.lowering.handlers import lowers

if TYPE_CHECKING:
    from taper_frontend.lowering.context import Lowering


@lowers("torchvision.deform_conv2d.default")
def deform_conv2d(
    ctx: Lowering,
    x: str,
    weight: str,
    offset: str,
    mask: str,
    bias: str,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    groups: int,
    offset_groups: int,
    use_mask: bool,
) -> str:
    """Convolve ``x`` ``[N, C, H, W]`` by taps that ``offset`` moves and ``mask`` weighs.

    The taps of all outputs are sampled, side by side: ``[N, height, width * taps, C]``. So the
    convolution of the samples has windows that do not overlap.

    ``offset`` is ``[N, offset_groups * taps * 2, height, width]``, rows before columns; ``mask`` is
    ``[N, offset_groups * taps, height, width]``. The channels of an offset group move together.
    """
    images, _, *image = ctx.shape(x)
    height, width = ctx.shape(offset)[2:]
    columns, per_group, kernel_h, kernel_w = ctx.shape(weight)
    taps = kernel_h * kernel_w
    steps_h = dilation_h * np.repeat(np.arange(kernel_h), kernel_w)
    steps_w = dilation_w * np.tile(np.arange(kernel_w), kernel_h)
    places = (
        ctx.reshape(_places(ctx, height, stride_h, pad_h, steps_h), (height, 1, taps, 1)),
        ctx.reshape(_places(ctx, width, stride_w, pad_w, steps_w), (1, width, taps, 1)),
    )
    moves = ctx.reshape(
        _by_group(ctx, channels_last(ctx, offset), offset_groups),
        (images * offset_groups, height, width, taps, 2),
    )
    grid = [
        _relative(ctx, ctx.slice(moves, 4, axis, axis + 1), places[axis], image[axis])
        for axis in (1, 0)  # as GRID_SAMPLE reads them
    ]
    points = (images * offset_groups, height, width * taps)
    samples = ctx.emit(
        "GRID_SAMPLE",
        [
            _by_group(ctx, channels_last(ctx, x), offset_groups),
            ctx.reshape(ctx.emit("CAT", grid, axis=4), (*points, 2)),
        ],
        mode="linear",
        padding="zeros",
    )
    if use_mask:
        weights = _by_group(ctx, channels_last(ctx, mask), offset_groups)
        samples = ctx.emit("MUL", [samples, ctx.reshape(weights, (*points, 1))])
    flat_weight = ctx.reshape(ctx.permute(weight, (2, 3, 1, 0)), (1, taps, per_group, columns))
    y = ctx.emit(
        "CONV",
        [_together(ctx, samples, offset_groups), flat_weight],
        kernel=(1, taps),
        stride=(1, taps),
        padding=(0, 0, 0, 0),
        dilation=(1, 1),
        groups=groups,
    )
    return channels_first(ctx, ctx.emit("ADD", [y, bias]))


def _places(ctx: Lowering, outputs: int, stride: int, padding: int, steps: np.ndarray) -> str:
    """Return where the taps of outputs lie along an axis before they move: [outputs, taps].

    ``steps`` ``[taps]`` are their distances from the first one.
    """
    first = ctx.emit("ARANGE", [], start=-padding, stop=outputs * stride - padding, step=stride)
    return ctx.emit("ADD", [ctx.reshape(first, (outputs, 1)), ctx.constant(steps)])


def _relative(ctx: Lowering, moves: str, places: str, size: int) -> str:
    """Return moved places, in pixels, as GRID_SAMPLE has them: from -1 to 1 between outer edges."""
    dtype = ctx.dtype(moves)
    at = ctx.apply("ADD", moves, places, dtype=dtype)
    edges = ctx.apply("ADD", ctx.apply("MUL", at, 2, dtype=dtype), 1, dtype=dtype)
    return ctx.apply("SUB", ctx.apply("DIV", edges, size, dtype=dtype), 1, dtype=dtype)


def _by_group(ctx: Lowering, x: str, groups: int) -> str:
    """Make an image of each group of channels: ``[N * groups, H, W, channels / groups]``."""
    images, height, width, channels = ctx.shape(x)
    each = channels // groups
    moved = ctx.permute(ctx.reshape(x, (images, height, width, groups, each)), (0, 3, 1, 2, 4))
    return ctx.reshape(moved, (images * groups, height, width, each))


def _together(ctx: Lowering, x: str, groups: int) -> str:
    """Undo :func:`_by_group`."""
    images, height, width, each = ctx.shape(x)
    split = ctx.reshape(x, (images // groups, groups, height, width, each))
    moved = ctx.permute(split, (0, 2, 3, 1, 4))
    return ctx.reshape(moved, (images // groups, height, width, groups * each))
