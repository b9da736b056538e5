"""Lower interpolation to another size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_frontend.lowering.handlers import lowers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.lowering.context import Lowering
    from taper_frontend.lowering.handlers import Handler

#: For each ATen name without ``upsample_``, the mode of RESAMPLE.
_NEAREST = {
    **{f"upsample_nearest{n}d": "nearest" for n in (1, 2, 3)},
    **{f"_upsample_nearest_exact{n}d": "nearest-exact" for n in (1, 2, 3)},
}
_SMOOTH = {
    "upsample_linear1d": "linear",
    "upsample_bilinear2d": "linear",
    "upsample_trilinear3d": "linear",
    "upsample_bicubic2d": "cubic",
    "_upsample_bilinear2d_aa": "linear-antialias",
    "_upsample_bicubic2d_aa": "cubic-antialias",
}


def _nearest(mode: str) -> Handler:
    def nearest(ctx: Lowering, x: str, output_size: object, *scales: Any) -> str:
        """Return the nearest elements."""
        return _resample(ctx, x, mode, scales)

    return nearest


def _smooth(mode: str) -> Handler:
    def smooth(
        ctx: Lowering, x: str, output_size: object, align_corners: bool, *scales: Any
    ) -> str:
        """Interpolate between neighbouring elements."""
        return _resample(ctx, x, mode, scales, align_corners=align_corners)

    return smooth


def _resample(ctx: Lowering, x: str, mode: str, scales: Sequence[Any], **attrs: bool) -> str:
    """Resample all axes whose size or place changes, at most two at once: the last ones first.

    ``scales`` holds one factor per axis (overload ``default``) or one list of factors (``vec``). If
    one is missing or None, the sizes decide it.
    """
    factors = scales[0] if len(scales) == 1 and isinstance(scales[0], list | tuple) else scales
    n = ctx.rank(x) - 2
    given = [*factors, *[None] * n][:n]
    changed: list[tuple[int, Any, float]] = []
    for axis, (factor, size) in enumerate(zip(given, ctx.output.shape[2:], strict=True), 2):
        old = ctx.shape(x)[axis]
        # torch's own kernels ignore the factor in this case
        by_sizes = {"linear": [old], "nearest": [old, 2 * old] if n == 2 else []}.get(mode, [])
        scale = 0.0 if factor is None or size in by_sizes else float(factor)
        if size != old or scale not in (0, 1):
            changed.append((axis, size, scale))
    while changed:
        axes, sizes, places = zip(*changed[-2:], strict=True)
        del changed[-2:]
        x = ctx.emit("RESAMPLE", [x], axes=axes, sizes=sizes, mode=mode, scales=places, **attrs)
    return x


for _table, _make in ((_NEAREST, _nearest), (_SMOOTH, _smooth)):
    for _name, _mode in _table.items():
        lowers(f"aten.{_name}.default", f"aten.{_name}.vec")(_make(_mode))
