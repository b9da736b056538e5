"""Lower padding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.lowering.handlers import lowers
from taper_runtime.base.sizes import Size, bounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.lowering.context import Lowering
    from taper_frontend.lowering.handlers import Handler

#: The widest border whose width may depend on sizes: enough to align a size, or to fill a window.
_MAX_WIDTH = 4096


@lowers("aten.constant_pad_nd.default")
def constant_pad_nd(ctx: Lowering, x: str, pad: Sequence[int], value: float = 0) -> str:
    """Add a border of one value; a negative width removes elements."""

    def border(width: int) -> list[str]:
        shape = (*ctx.shape(x)[:axis], width, *ctx.shape(x)[axis + 1 :])
        return [ctx.full(shape, value, ctx.dtype(x))] if width > 0 else []

    for index in range(len(pad) // 2):
        axis = ctx.rank(x) - 1 - index
        before, after = pad[2 * index : 2 * index + 2]
        if any(isinstance(width, Size) for width in (before, after)):
            # Widths that depend on sizes are a part of the widest border, and may be 0.
            (least, most), (least_after, most_after) = bounds(before), bounds(after)
            if least < 0 or least_after < 0 or max(most, most_after) > _MAX_WIDTH:
                ctx.unsupported(
                    f"expected widths from 0 to {_MAX_WIDTH}, got {before} and {after}",
                    "dynamic shape",
                )
            size = before + ctx.shape(x)[axis] + after
            x = ctx.emit("CAT", [*border(most), x, *border(most_after)], axis=axis)
            x = ctx.slice(x, axis, most - before, most - before + size)
            continue
        size = ctx.shape(x)[axis]
        x = ctx.slice(x, axis, max(-before, 0), size - max(-after, 0))
        parts = [*border(before), x, *border(after)]
        if len(parts) > 1:
            x = ctx.emit("CAT", parts, axis=axis)
    return x


@lowers("aten.pad.default")
def pad(
    ctx: Lowering, x: str, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> str:
    """Add a border of one value, or of elements of the tensor."""
    if mode == "constant":
        return constant_pad_nd(ctx, x, pad, value or 0)
    return _pad_by_elements(ctx, x, pad, mode)


def _pad_by(mode: str) -> Handler:
    return lambda ctx, x, padding: _pad_by_elements(ctx, x, padding, mode)


for _n in (1, 2, 3):
    lowers(f"aten.reflection_pad{_n}d.default")(_pad_by("reflect"))
    lowers(f"aten.replication_pad{_n}d.default")(_pad_by("replicate"))


def _pad_by_elements(ctx: Lowering, x: str, widths: Sequence[int], mode: str) -> str:
    """Add borders of the tensor's own elements; a negative width removes elements."""
    for index in range(len(widths) // 2):
        axis = ctx.rank(x) - 1 - index
        low, high = widths[2 * index : 2 * index + 2]
        size = ctx.shape(x)[axis]
        inner = ctx.slice(x, axis, max(-low, 0), size - max(-high, 0))
        if mode == "circular":  # removed elements are not part of the circle
            x = inner
        parts = [inner]
        if low > 0:
            parts.insert(0, _border(ctx, x, axis, low, mode, first=True))
        if high > 0:
            parts.append(_border(ctx, x, axis, high, mode, first=False))
        x = parts[0] if len(parts) == 1 else ctx.emit("CAT", parts, axis=axis)
    return x


def _border(ctx: Lowering, x: str, axis: int, width: int, mode: str, *, first: bool) -> str:
    """Return the border before the first or after the last element of an axis."""
    size = ctx.shape(x)[axis]
    if mode == "replicate":
        start = 0 if first else size - 1
        shape = ctx.shape(x)
        edge = ctx.slice(x, axis, start, start + 1)
        return ctx.expand(edge, (*shape[:axis], width, *shape[axis + 1 :]))
    if mode == "circular":
        start = size - width if first else 0
        return ctx.slice(x, axis, start, start + width)
    start = 1 if first else size - 1 - width
    return ctx.emit("FLIP", [ctx.slice(x, axis, start, start + width)], axes=(axis,))
