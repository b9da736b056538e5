"""Borders around a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_frontend.lowering.registry import lowers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.lowering.context import Lowering
    from taper_frontend.lowering.registry import Handler

#: Mode of torch -> mode of :func:`numpy.pad`.
_MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@lowers("aten.constant_pad_nd.default")
def constant_pad_nd(ctx: Lowering, x: str, pad: Sequence[int], value: float = 0) -> str:
    """Add a border of one value; a negative width takes elements away."""
    for index in range(len(pad) // 2):
        axis = ctx.rank(x) - 1 - index
        before, after = pad[2 * index : 2 * index + 2]
        size = ctx.shape(x)[axis]
        x = ctx.slice(x, axis, max(-before, 0), size - max(-after, 0))
        shape = ctx.shape(x)
        border = [
            ctx.full((*shape[:axis], width, *shape[axis + 1 :]), value, ctx.dtype(x))
            if width > 0
            else None
            for width in (before, after)
        ]
        parts = [part for part in (border[0], x, border[1]) if part is not None]
        if len(parts) > 1:
            x = ctx.emit("CAT", parts, axis=axis)
    return x


@lowers("aten.pad.default")
def pad(
    ctx: Lowering, x: str, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> str:
    """Add a border of one value or of elements of the tensor."""
    if mode == "constant":
        return constant_pad_nd(ctx, x, pad, value or 0)
    return _pad_by_elements(ctx, x, pad, _MODES[mode])


def _pad_by(mode: str) -> Handler:
    return lambda ctx, x, padding: _pad_by_elements(ctx, x, padding, mode)


for _n in (1, 2, 3):
    lowers(f"aten.reflection_pad{_n}d.default")(_pad_by("reflect"))
    lowers(f"aten.replication_pad{_n}d.default")(_pad_by("edge"))


def _pad_by_elements(ctx: Lowering, x: str, widths: Sequence[int], mode: str) -> str:
    """Take each axis at the places that ``numpy.pad`` gives; a negative width leaves some out."""
    for index in range(len(widths) // 2):
        axis = ctx.rank(x) - 1 - index
        low, high = widths[2 * index : 2 * index + 2]
        places = np.pad(np.arange(ctx.shape(x)[axis]), (max(low, 0), max(high, 0)), mode)  # type: ignore[call-overload]
        places = places[max(-low, 0) : len(places) - max(-high, 0)]
        if low or high:
            x = ctx.emit("INDEX_SELECT", [x, ctx.constant(places)], axis=axis)
    return x
