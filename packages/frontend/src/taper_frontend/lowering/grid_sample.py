"""Lower the sampling of an image at the points of a grid."""

from __future__ import annotations

import itertools
import math
from functools import reduce
from typing import TYPE_CHECKING

from taper_frontend.lowering.channels import channels_first, channels_last
from taper_frontend.lowering.handlers import lowers
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.lowering.context import Lowering, Operand

#: torch's numbers of ``interpolation_mode`` and ``padding_mode``.
_LINEAR, _NEAREST, _CUBIC = 0, 1, 2
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2

#: The parameter of torch's cubic convolution (Keys 1981).
_A = -0.75


class _Tap(NamedTuple):
    """One of the elements along an axis that each point reads.

    Attributes
    ----------
    offset : str
        int64 ``[N, points]``: the distance in pixels from the first element; 0 if it is outside.
    inside : str
        bool ``[N, points]``: whether the element is inside the image.
    weight : str or None
        float ``[N, points]``; None means 1.
    """

    offset: str
    inside: str
    weight: str | None


@lowers("aten.grid_sampler_2d.default", "aten.grid_sampler_3d.default")
def grid_sampler(
    ctx: Lowering,
    x: str,
    grid: str,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> str:
    """Interpolate between the elements around each point; -1 and 1 are the ends of an axis.

    ``x`` is ``[N, C, *spatial]``; ``grid`` is ``[N, *out, dims]``, with the coordinate of the last
    axis first. A coordinate that is NaN, or becomes NaN by reflection, is treated as in torch's CPU
    code: in an image it is the first element of the axis, as documented, and in a volume the last
    one. With zeros as padding, the result is NaN in an image and 0 in a volume.
    """
    images, channels, *spatial = ctx.shape(x)
    out = ctx.shape(grid)[1:-1]
    dims, points, pixels = len(spatial), math.prod(out), math.prod(spatial)
    grid = ctx.reshape(grid, (images, points, dims))
    axes = []
    stride = pixels
    for axis, size in enumerate(spatial):
        stride //= size
        at = ctx.slice(grid, 2, dims - 1 - axis, dims - axis)
        at = ctx.reshape(at, (images, points))
        finder = _Axis(ctx, size, stride, padding_mode, align_corners, is_volume=dims == 3)
        axes.append(finder.taps(at, interpolation_mode))

    rows = ctx.reshape(channels_last(ctx, x), (images * pixels, channels))
    first = ctx.emit("ARANGE", [], start=0, stop=images * pixels, step=pixels)
    first = ctx.reshape(first, (images, 1))
    read = _read_pixel if dims == 2 else _read_voxel
    parts = [read(ctx, rows, first, taps) for taps in itertools.product(*axes)]
    total = reduce(lambda a, b: ctx.emit("ADD", [a, b]), parts)
    return channels_first(ctx, ctx.reshape(total, (images, *out, channels)))


def _read_pixel(ctx: Lowering, rows: str, first: str, taps: Sequence[_Tap]) -> str:
    """Return ``[N, points, C]``: the elements at one tap of every axis times weights, or 0.

    Parameters
    ----------
    rows : str
        The pixels of all images, ``[N * pixels, C]``.
    first : str
        The row of each image's first pixel, int64 ``[N, 1]``.
    """
    values, inside = _values(ctx, rows, first, taps)
    return _weighted(ctx, _or_zero(ctx, inside, values), taps)


def _read_voxel(ctx: Lowering, rows: str, first: str, taps: Sequence[_Tap]) -> str:
    """Return the same for volumes: 0 if a tap is outside, whatever its weight is."""
    values, inside = _values(ctx, rows, first, taps)
    return _or_zero(ctx, inside, _weighted(ctx, values, taps))


def _values(ctx: Lowering, rows: str, first: str, taps: Sequence[_Tap]) -> tuple[str, str]:
    """Return the elements at one tap of every axis, and whether all taps are inside."""
    row = reduce(lambda a, b: ctx.emit("ADD", [a, b]), [first, *(tap.offset for tap in taps)])
    inside = reduce(lambda a, b: ctx.emit("LOGICAL_AND", [a, b]), [tap.inside for tap in taps])
    return ctx.emit("EMBEDDING", [rows, row]), inside


def _weighted(ctx: Lowering, values: str, taps: Sequence[_Tap]) -> str:
    weights = [tap.weight for tap in taps if tap.weight is not None]
    if not weights:
        return values
    weight = reduce(lambda a, b: ctx.emit("MUL", [a, b]), weights)
    return ctx.emit("MUL", [values, _column(ctx, weight)])


def _or_zero(ctx: Lowering, inside: str, values: str) -> str:
    return ctx.apply("WHERE", _column(ctx, inside), values, 0, dtype=ctx.dtype(values))


def _column(ctx: Lowering, values: str) -> str:
    return ctx.reshape(values, (*ctx.shape(values), 1))


class _Axis:
    """Computes which elements of one axis the points read.

    Parameters
    ----------
    size, stride : int
        The size and the stride of the axis, in pixels.
    padding : int
        The padding mode: how places outside are read.
    align_corners : bool
        Whether -1 and 1 are the centres of the outermost elements, or their outer edges.
    is_volume : bool
        Whether places are computed as torch does for volumes. They differ from those of images for
        NaN, and for numbers so large that a step overflows.
    """

    def __init__(
        self,
        ctx: Lowering,
        size: int,
        stride: int,
        padding: int,
        align_corners: bool,
        *,
        is_volume: bool,
    ) -> None:
        self.ctx = ctx
        self.size = size
        self.stride = stride
        self.padding = padding
        self.align_corners = align_corners
        self.is_volume = is_volume

    def taps(self, points: str, mode: int) -> list[_Tap]:
        """Return the taps of the points, float ``[N, points]``, whose range inside is -1 to 1."""
        at = self._apply("ADD", points, 1)
        if self.align_corners:
            at = self._apply("MUL", at, (self.size - 1) / 2)
        elif self.is_volume:
            at = self._apply("SUB", self._apply("MUL", at, self.size), 1)
            at = self._apply("MUL", at, 0.5)
        else:
            at = self._apply("SUB", self._apply("MUL", at, self.size / 2), 0.5)
        if mode != _CUBIC:
            at = self._bring_inside(at)
        if mode == _NEAREST:
            return [self._tap(self.ctx.emit("ROUND", [at]), None)]
        low = self.ctx.emit("FLOOR", [at])
        rest = self.ctx.emit("SUB", [at, low])
        back = self._apply("SUB", 1, rest)
        if mode == _LINEAR:
            return [self._tap(low, back), self._tap(self._apply("ADD", low, 1), rest)]
        weights = (self._far(rest), self._near(rest), self._near(back), self._far(back))
        return [
            self._tap(self._bring_inside(self._apply("ADD", low, offset)), weight)
            for offset, weight in enumerate(weights, -1)
        ]

    def _tap(self, place: str, weight: str | None) -> _Tap:
        """Return the tap at a place that is a whole number, or NaN."""
        inside = self.ctx.emit(
            "LOGICAL_AND", [self._apply("GE", place, 0), self._apply("LT", place, self.size)]
        )
        index = self.ctx.cast(self._apply("WHERE", inside, place, 0), "int64")
        return _Tap(self.ctx.apply("MUL", index, self.stride, dtype="int64"), inside, weight)

    def _near(self, distance: str) -> str:
        """Return the weight of an element less than 1 away: ((a + 2) d - (a + 3)) d^2 + 1."""
        y = self._apply("SUB", self._apply("MUL", distance, _A + 2), _A + 3)
        y = self.ctx.emit("MUL", [y, self.ctx.emit("SQUARE", [distance])])
        return self._apply("ADD", y, 1)

    def _far(self, distance: str) -> str:
        """Return the weight ((a d - 5 a) d + 8 a) d - 4 a of an element d = distance + 1 away."""
        d = self._apply("ADD", distance, 1)
        y = self._apply("SUB", self._apply("MUL", d, _A), 5 * _A)
        y = self._apply("ADD", self.ctx.emit("MUL", [y, d]), 8 * _A)
        return self._apply("SUB", self.ctx.emit("MUL", [y, d]), 4 * _A)

    def _bring_inside(self, at: str) -> str:
        """Move places outside of the axis inside, by the padding mode."""
        if self.padding == _ZEROS:
            return at
        if self.padding == _REFLECTION:
            at = self._reflect(at)
        last = self.size - 1
        if self.is_volume:
            at = self._apply("MAXIMUM", at, 0)
            return self._apply("WHERE", self._apply("LT", at, last), at, last)
        at = self._apply("WHERE", self._apply("GT", at, 0), at, 0)
        return self._apply("MINIMUM", at, last)

    def _reflect(self, at: str) -> str:
        """Reflect places at the outermost centres or edges, as often as necessary."""
        low = 0.0 if self.align_corners else -0.5
        span = self.size - 1 if self.align_corners else self.size
        if span == 0:
            return self._apply("MUL", at, 0)
        away = self.ctx.emit("ABS", [self._apply("SUB", at, low)])
        # a triangular wave of period 2 span
        phase = self._apply("FMOD", away, 2 * span)
        phase = self.ctx.emit("MINIMUM", [phase, self._apply("SUB", 2 * span, phase)])
        return self._apply("ADD", phase, low)

    def _apply(self, op: str, *operands: Operand) -> str:
        return self.ctx.apply(op, *operands, dtype=self.ctx.output.dtype)
