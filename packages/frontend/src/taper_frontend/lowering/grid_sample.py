"""Lower the sampling of an image at the points of a grid."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.lowering.channels import channels_first, channels_last
from taper_frontend.lowering.handlers import lowers

if TYPE_CHECKING:
    from taper_frontend.lowering.context import Lowering

#: torch's numbers of ``interpolation_mode`` and ``padding_mode``.
_MODES = ("linear", "nearest", "cubic")
_PADDINGS = ("zeros", "border", "reflection")
#: The most channels of an image with which it is faster to leave them first, as ATen has them.
_FEW = {"linear": 4, "nearest": 16, "cubic": 4}


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
    mode = _MODES[interpolation_mode]
    channels = ctx.shape(x)[1]
    attrs = {
        "mode": mode,
        "padding": _PADDINGS[padding_mode],
        "align_corners": align_corners,
    }
    if ctx.rank(x) == 4 and type(channels) is int and channels <= _FEW[mode]:
        return ctx.emit("GRID_SAMPLE", [x, grid], channels_first=True, **attrs)
    return channels_first(ctx, ctx.emit("GRID_SAMPLE", [channels_last(ctx, x), grid], **attrs))
