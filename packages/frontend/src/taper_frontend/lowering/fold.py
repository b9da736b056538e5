"""Lower ops that add up overlapping windows."""

from __future__ import annotations

import math
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from taper_frontend.lowering.handlers import lowers
from taper_frontend.lowering.pad import constant_pad_nd

if TYPE_CHECKING:
    from taper_frontend.lowering.context import Lowering


@lowers("aten.col2im.default")
def col2im(
    ctx: Lowering,
    x: str,
    output_size: list[int],
    kernel_size: list[int],
    dilation: list[int],
    padding: list[int],
    stride: list[int],
) -> str:
    """Add the windows in ``x``, ``[N, C * taps, windows]``, at their places in the image.

    The sum is separable: windows are added to rows, then rows to the image.
    """
    shape = ctx.output.shape
    windows = [
        (size + 2 * pad - spread * (taps - 1) - 1) // step + 1
        for size, taps, spread, pad, step in zip(
            output_size, kernel_size, dilation, padding, stride, strict=True
        )
    ]
    x = ctx.reshape(x, (math.prod(shape[:-2]), *kernel_size, *windows))
    for size, spread, pad, step in zip(output_size, dilation, padding, stride, strict=True):
        x = _overlap(ctx, x, size + 2 * pad, spread, step)
        x = ctx.slice(x, 2, pad, pad + size)
    return ctx.reshape(x, shape)


#: The most overlapping windows that are added as whole runs; more are added by SCATTER.
_MAX_RUNS = 32


@lowers("aten.unfold_backward.default")
def unfold_backward(
    ctx: Lowering, windows: str, input_sizes: list[int], dim: int, size: int, step: int
) -> str:
    """Add windows along the last axis at the places from which ``unfold`` has taken them.

    A window is split into runs of one step each. The first runs of all windows are adjacent, and so
    are the second ones, one step further. torch.istft overlaps its frames in this way.
    """
    shape = ctx.output.shape
    axis = dim % len(shape)
    count = ctx.shape(windows)[axis]
    windows = ctx.permute(windows, [*(i for i in range(len(shape)) if i != axis), axis, len(shape)])
    outer = ctx.shape(windows)[:-2]
    runs = -(-size // step)
    if runs > _MAX_RUNS:
        y = _scattered(ctx, windows, shape[axis], size, step)
    else:
        windows = constant_pad_nd(ctx, windows, [0, runs * step - size])
        parts = [
            constant_pad_nd(
                ctx,
                ctx.slice(windows, len(outer) + 1, j * step, (j + 1) * step),
                [0, 0, j, runs - 1 - j],
            )
            for j in range(runs)
        ]
        y = reduce(lambda a, b: ctx.emit("ADD", [a, b]), parts)
        length = (count + runs - 1) * step
        y = constant_pad_nd(ctx, ctx.reshape(y, (*outer, length)), [0, shape[axis] - length])
    last = len(shape) - 1
    y = ctx.permute(y, [*range(axis), last, *range(axis, last)])
    return ctx.expand(y, shape)  # torch.istft adds one row of windows for all rows


def _scattered(ctx: Lowering, windows: str, length: int, size: int, step: int) -> str:
    """Add windows one element at a time."""
    *outer, count, _ = ctx.shape(windows)
    first = ctx.emit("ARANGE", [], start=0, stop=count * step, step=step)
    within = ctx.constant(np.arange(size))
    places = ctx.emit("ADD", [ctx.reshape(first, (count, 1)), within])
    index = ctx.expand(ctx.reshape(places, (count * size,)), (*outer, count * size))
    flat = ctx.reshape(windows, (*outer, count * size))
    zeros = ctx.full((*outer, length), 0, ctx.dtype(windows))
    return ctx.emit("SCATTER", [zeros, index, flat], axis=len(outer), reduce="sum")


def _overlap(ctx: Lowering, x: str, size: int, dilation: int, stride: int) -> str:
    """Add windows at their places.

    From ``[M, taps, others, windows, *rest]`` to ``[M, others, size, *rest]``: tap i of window j
    lies at ``dilation * i + stride * j``.
    """
    images, taps, others, windows, *rest = ctx.shape(x)
    later = [0, 0] * len(rest)
    whole = (images, others, windows * stride, *rest)
    if dilation == 1 and taps == stride:  # adjacent
        x = ctx.permute(x, (0, 2, 3, 1, *range(4, ctx.rank(x))))
        return constant_pad_nd(ctx, ctx.reshape(x, whole), [*later, 0, size - whole[2]])
    parts = []
    for tap in range(taps):
        part = ctx.slice(x, 1, tap, tap + 1)
        part = ctx.reshape(part, (images, others, windows, 1, *rest))
        part = ctx.reshape(constant_pad_nd(ctx, part, [*later, 0, stride - 1]), whole)
        before = dilation * tap
        parts.append(constant_pad_nd(ctx, part, [*later, before, size - before - whole[2]]))
    return reduce(lambda a, b: ctx.emit("ADD", [a, b]), parts)
