"""Define GRID_SAMPLE: interpolate an image or a volume at the points of a grid, as torch does."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.ops.opdef import Attr, Attrs, Cost, OpDef, TensorType
from taper_runtime.ops.region import WHOLE, Same
from taper_runtime.ops.type_rules import FLOATS, check_dtype, fail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_runtime.ops.region import Region

#: For each mode, how many elements along an axis a point reads.
TAPS = {"linear": 2, "nearest": 1, "cubic": 4}
PADDINGS = ("zeros", "border", "reflection")
#: The parameter of torch's cubic convolution (Keys 1981).
_A = -0.75


def _infer(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    """Check the image, the grid and the attrs; return the type of what the grid reads."""
    x, grid = inputs
    mode, padding = attrs["mode"], attrs["padding"]
    if mode not in TAPS:
        fail("GRID_SAMPLE", f"a mode of {', '.join(TAPS)}", repr(mode))
    if padding not in PADDINGS:
        fail("GRID_SAMPLE", f"a padding of {', '.join(PADDINGS)}", repr(padding))
    check_dtype("GRID_SAMPLE", "x", x.dtype, FLOATS)
    if grid.dtype != x.dtype:
        fail("GRID_SAMPLE", f"a grid of {x.dtype}", grid.dtype)
    dims = len(x.shape) - 2
    if dims not in (2, 3) or (dims == 3 and mode == "cubic"):
        fail("GRID_SAMPLE", "x of rank 4, or of rank 5 if the mode is not cubic", list(x.shape))
    first = attrs["channels_first"]
    if first and dims != 2:
        fail("GRID_SAMPLE", "x of rank 4 if channels come first", list(x.shape))
    if len(grid.shape) != dims + 2 or grid.shape[0] != x.shape[0] or grid.shape[-1] != dims:
        got = [list(x.shape), list(grid.shape)]
        form = f"[N, C, {dims} sizes]" if first else f"[N, {dims} sizes, C]"
        fail("GRID_SAMPLE", f"a grid [N, {dims} sizes, {dims}] for x {form}", got)
    if any(size < 1 for size in (x.shape[2:] if first else x.shape[1:-1])):
        fail("GRID_SAMPLE", "an image with pixels", list(x.shape))
    images, *sizes = grid.shape[:-1]
    shape = (images, x.shape[1], *sizes) if first else (images, *sizes, x.shape[-1])
    return TensorType(x.dtype, shape)


class _Axis:
    """Finds the elements along one axis that points read.

    Images and volumes differ, as in torch, for NaN and for numbers so large that a step overflows.
    """

    def __init__(self, size: int, attrs: Attrs, is_volume: bool, real: Any) -> None:
        self.size, self.attrs, self.is_volume, self.real = size, attrs, is_volume, real

    def taps(self, points: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the place of each tap, a whole number or NaN, and its weight."""
        real, size = self.real, self.size
        at = points + real(1)
        if self.attrs["align_corners"]:
            at = at * real((size - 1) / 2)
        elif self.is_volume:
            at = (at * real(size) - real(1)) * real(0.5)
        else:
            at = at * real(size / 2) - real(0.5)
        mode = self.attrs["mode"]
        if mode != "cubic":
            at = self.bring_inside(at)
        if mode == "nearest":
            return [(np.round(at), np.ones_like(at))]
        low = np.floor(at)
        rest = at - low
        back = real(1) - rest
        if mode == "linear":
            return [(low, back), (low + real(1), rest)]
        weights = (self.far(rest), self.near(rest), self.near(back), self.far(back))
        return [
            (self.bring_inside(low + real(offset)), weight)
            for offset, weight in enumerate(weights, -1)
        ]

    def near(self, d: np.ndarray) -> np.ndarray:
        """Return the weight of an element less than 1 away."""
        real = self.real
        return (d * real(_A + 2) - real(_A + 3)) * (d * d) + real(1)

    def far(self, distance: np.ndarray) -> np.ndarray:
        """Return the weight of an element ``distance + 1`` away."""
        real = self.real
        d = distance + real(1)
        return ((d * real(_A) - real(5 * _A)) * d + real(8 * _A)) * d - real(4 * _A)

    def bring_inside(self, at: np.ndarray) -> np.ndarray:
        """Move places outside of the axis inside, by the padding."""
        real, last = self.real, self.real(self.size - 1)
        if self.attrs["padding"] == "zeros":
            return at
        if self.attrs["padding"] == "reflection":
            at = self.reflect(at)
        if self.is_volume:
            at = np.maximum(at, real(0))
            return np.where(at < last, at, last)
        return np.minimum(np.where(at > 0, at, real(0)), last)

    def reflect(self, at: np.ndarray) -> np.ndarray:
        """Reflect places at the outermost centres or edges, as often as necessary."""
        real, align = self.real, self.attrs["align_corners"]
        low = real(0 if align else -0.5)
        span = real(self.size - 1 if align else self.size)
        if span == 0:
            return at * real(0)
        phase = np.fmod(np.abs(at - low), 2 * span)
        return np.minimum(phase, 2 * span - phase) + low


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    """Sum the elements at all combinations of taps, in float64."""
    x, grid = inputs
    if attrs["channels_first"]:
        y = _evaluate([np.moveaxis(x, 1, -1), grid], {**attrs, "channels_first": False})
        return np.ascontiguousarray(np.moveaxis(y, -1, 1))
    n, *spatial, channels = x.shape
    dims = len(spatial)
    is_volume = dims == 3
    images = np.arange(n).reshape(n, *[1] * dims)
    result = np.zeros((*grid.shape[:-1], channels))
    with np.errstate(all="ignore"):
        axes = [
            _Axis(size, attrs, is_volume, x.dtype.type).taps(grid[..., dims - 1 - axis])
            for axis, size in enumerate(spatial)
        ]
        for taps in itertools.product(*axes):
            inside = np.ones(grid.shape[:-1], bool)
            weight = np.ones(grid.shape[:-1], x.dtype)
            places = []
            for (place, factor), size in zip(taps, spatial, strict=True):
                held = (place >= 0) & (place < size)
                inside &= held
                weight = weight * factor
                places.append(np.where(held, place, 0).astype(np.int64))
            values = x[(images, *places)].astype(np.float64)
            if is_volume:
                result += np.where(inside[..., None], values * weight[..., None], 0)
            else:
                result += np.where(inside[..., None], values, 0) * weight[..., None]
        return result.astype(x.dtype)


def _region(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> list[Region]:
    rank = len(output.shape)
    first = 2 if attrs["channels_first"] else 1
    sizes = range(first, first + rank - 2)
    x = tuple(WHOLE if axis in sizes else Same(axis) for axis in range(rank))
    return [x, (Same(0), *map(Same, sizes), WHOLE)]


def _cost(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    x, grid = inputs
    dims = len(x.shape) - 2
    taps = TAPS[attrs["mode"]] ** dims
    flops = 2 * taps * output.size + 16 * grid.size
    return Cost(flops, x.nbytes + grid.nbytes + output.nbytes)


GRID_SAMPLE = OpDef(
    name="GRID_SAMPLE",
    doc="x `[N, *spatial, C]` interpolated at the points of the grid `[N, *out, dims]`, as in "
    "torch: `[N, *out, C]`. A point has the coordinate of the last axis first; -1 and 1 are the "
    "ends of an axis: with align_corners the centres of its outermost elements, else their outer "
    "edges. What is outside is 0 (zeros), the nearest element inside (border), or reflected "
    "(reflection). A tap outside of an image adds 0 times its weight, one outside of a volume "
    "nothing. With channels_first, images and the result are `[N, C, height, width]`.",
    inputs=(2, 2),
    infer=_infer,
    evaluate=_evaluate,
    attrs={
        "mode": Attr("string"),
        "padding": Attr("string"),
        "align_corners": Attr("bool", False),
        "channels_first": Attr("bool", False),
    },
    region=_region,
    cost=_cost,
)

OPS = (GRID_SAMPLE,)
