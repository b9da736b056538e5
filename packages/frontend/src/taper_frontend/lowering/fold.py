"""Images summed up from overlapping windows."""

from __future__ import annotations

import math
from functools import reduce
from typing import TYPE_CHECKING

from taper_frontend.lowering.pad import constant_pad_nd
from taper_frontend.lowering.registry import lowers

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
    """Add the windows in ``x``, ``[N, C * taps, windows]``, where they lie in the image.

    The sum is separable: windows become rows, then rows the image.
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


def _overlap(ctx: Lowering, x: str, size: int, dilation: int, stride: int) -> str:
    """Add windows to where they lie.

    From ``[M, taps, others, windows, *rest]`` to ``[M, others, size, *rest]``: tap i of window j
    lies at ``dilation * i + stride * j``.
    """
    images, taps, others, windows, *rest = ctx.shape(x)
    later = [0, 0] * len(rest)
    whole = (images, others, windows * stride, *rest)
    if dilation == 1 and taps == stride:  # side by side
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
