"""Compute windows that slide over the spatial dims of a channels-last ``[N, *spatial, C]``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.ops.region import Window
from taper_runtime.ops.type_rules import fail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_runtime.ops.opdef import Attrs, Shape, TensorType

#: The most spatial dims.
MAX_SPATIAL = 3
#: The bound of sizes, steps and paddings: positions computed from them fit in 64 bits.
LIMIT = 2**31


def check_ints(op: str, attrs: Attrs, name: str, count: int, low: int) -> Shape:
    """Return the attr if it has ``count`` integers in ``[low, LIMIT)``."""
    values: Shape = attrs[name]
    if len(values) != count or not all(low <= v < LIMIT for v in values):
        fail(op, f"{name} of {count} integers from {low} to {LIMIT - 1}", list(values))
    return values


def check_spatial(op: str, x: TensorType, attrs: Attrs) -> Shape:
    """Return the spatial sizes of ``x``, one per entry of ``kernel``, after checking them."""
    n = len(attrs["kernel"])
    if not 1 <= n <= MAX_SPATIAL:
        fail(op, f"a kernel of 1 to {MAX_SPATIAL} dims", n)
    check_ints(op, attrs, "kernel", n, 1)
    if len(x.shape) != n + 2:
        fail(op, f"x of rank {n + 2}: [N, *spatial, C]", list(x.shape))
    return x.shape[1:-1]


def window_sizes(op: str, spatial: Shape, attrs: Attrs) -> Shape:
    """Return the number of windows along each spatial dim.

    Raises
    ------
    OpError
        If an attr is out of range, or no window fits.
    """
    n = len(spatial)
    kernel, stride = attrs["kernel"], check_ints(op, attrs, "stride", n, 1)
    padding = check_ints(op, attrs, "padding", 2 * n, 0)
    dilation = check_ints(op, attrs, "dilation", n, 1) if "dilation" in attrs else (1,) * n
    sizes = []
    for d, size in enumerate(spatial):
        room = size + padding[2 * d] + padding[2 * d + 1] - dilation[d] * (kernel[d] - 1) - 1
        if room < 0:
            fail(op, "windows within the padded input", [list(spatial), list(kernel)])
        sizes.append(room // stride[d] + 1)
    return tuple(sizes)


def window_region(attrs: Attrs) -> list[Window]:
    """Return the window of each spatial dim of x that the same dim of the output needs."""
    dilation = attrs.get("dilation") or (1,) * len(attrs["kernel"])
    return [
        Window(
            axis=1 + d,
            first=-attrs["padding"][2 * d],
            stride=attrs["stride"][d],
            length=dilation[d] * (size - 1) + 1,
            padding=("padding", 2 * d),
        )
        for d, size in enumerate(attrs["kernel"])
    ]


def window_positions(output: Sequence[int], attrs: Attrs) -> list[np.ndarray]:
    """Return, per spatial dim, the input position of each tap of each window: ``[out, kernel]``."""
    dilation = attrs.get("dilation") or (1,) * len(output)
    return [
        np.arange(size)[:, None] * attrs["stride"][d]
        - attrs["padding"][2 * d]
        + np.arange(attrs["kernel"][d]) * dilation[d]
        for d, size in enumerate(output)
    ]


def gather_windows(x: np.ndarray, positions: Sequence[np.ndarray], fill: float) -> np.ndarray:
    """Return the elements at the positions, ``[N, *out, *kernel, C]``; ``fill`` outside x."""
    n = len(positions)
    for d, at in enumerate(positions):
        axis = 1 + 2 * d  # each earlier dim has become two
        size = x.shape[axis]
        outside = np.full((*x.shape[:axis], 1, *x.shape[axis + 1 :]), fill, x.dtype)
        at = np.where((at >= 0) & (at < size), at, size)
        x = np.take(np.concatenate([x, outside], axis), at, axis)
    return x.transpose(0, *range(1, 2 * n, 2), *range(2, 2 * n + 1, 2), 2 * n + 1)
