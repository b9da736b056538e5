"""Lower padding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.lowering.handlers import lowers
from taper_runtime.base.sizes import Size, bounds, largest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.lowering.context import Lowering
    from taper_frontend.lowering.handlers import Handler


@lowers("aten.constant_pad_nd.default")
def constant_pad_nd(ctx: Lowering, x: str, pad: Sequence[int], value: float = 0) -> str:
    """Add a border of one value; a negative width removes elements."""

    def border(width: int) -> list[str]:
        shape = (*ctx.shape(x)[:axis], width, *ctx.shape(x)[axis + 1 :])
        return [ctx.full(shape, value, ctx.dtype(x))] if width != 0 else []

    for index in range(len(pad) // 2):
        axis = ctx.rank(x) - 1 - index
        before, after = pad[2 * index : 2 * index + 2]
        size = before + ctx.shape(x)[axis] + after
        low, high = (_room(width) for width in (before, after))
        parts = [*border(low), x, *border(high)]
        if len(parts) > 1:
            x = ctx.emit("CAT", parts, axis=axis)
        x = ctx.slice(x, axis, low - before, low - before + size)
    return x


def _room(width: int) -> int:
    """Return how wide a tensor is that holds a border; a tensor has at least one element.

    A border that may have no width gets one more: so the sizes of what is padded stay sums, of
    which more can be proved than of a maximum.
    """
    is_always_there = not isinstance(width, Size) or bounds(width)[0] > 0
    return largest(width, 0) + (0 if is_always_there else 1)


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
    rank = ctx.rank(x)
    borders = [
        (rank - 1 - index, widths[2 * index], widths[2 * index + 1])
        for index in range(len(widths) // 2)
    ][::-1]
    if mode == "circular":  # removed elements are not part of the circle
        x = _cut(ctx, x, borders)
    added = [(axis, max(low, 0), max(high, 0)) for axis, low, high in borders]
    added = [border for border in added if border[1:] != (0, 0)]
    if added:
        axes, low, high = zip(*added, strict=True)
        x = ctx.emit("PAD", [x], axes=axes, low=low, high=high, mode=mode)
    return x if mode == "circular" else _cut(ctx, x, borders)


def _cut(ctx: Lowering, x: str, borders: Sequence[tuple[int, int, int]]) -> str:
    """Remove elements before and after some axes, as many as the widths are negative."""
    for axis, low, high in borders:
        x = ctx.slice(x, axis, max(-low, 0), ctx.shape(x)[axis] - max(-high, 0))
    return x
