"""Lower the ops of torchvision that pool an image in boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.lowering.channels import channels_first, channels_last
from taper_frontend.lowering.handlers import lowers

if TYPE_CHECKING:
    from taper_frontend.lowering.context import Lowering


@lowers("torchvision.roi_align.default")
def roi_align(
    ctx: Lowering,
    x: str,
    boxes: str,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> str:
    """Average ``x`` ``[N, C, H, W]`` over the bins of boxes ``[K, 5]``: ``[K, C, *pooled]``.

    A box begins with the number of its image. A ``sampling_ratio`` of 0 or less takes about one
    point of a bin for each pixel.
    """
    y = ctx.emit(
        "ROI_ALIGN",
        [channels_last(ctx, x), boxes],
        scale=spatial_scale,
        size=(pooled_height, pooled_width),
        samples=max(sampling_ratio, 0),
        aligned=aligned,
    )
    return channels_first(ctx, y)
