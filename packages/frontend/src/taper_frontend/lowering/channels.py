"""Permute between ATen's ``[N, C, *spatial]`` and the windowed ops' ``[N, *spatial, C]``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taper_frontend.lowering.context import Lowering


def channels_last(ctx: Lowering, x: str) -> str:
    """Return ``[N, C, *spatial]`` as ``[N, *spatial, C]``.

    Every handler permutes on the way in and on the way out; passes make the permutations meet.
    """
    return ctx.permute(x, (0, *range(2, ctx.rank(x)), 1))


def channels_first(ctx: Lowering, x: str) -> str:
    """Undo :func:`channels_last`."""
    rank = ctx.rank(x)
    return ctx.permute(x, (0, rank - 1, *range(1, rank - 1)))


def per_channel(ctx: Lowering, values: str, x: str) -> str:
    """Return ``values`` in the shape that broadcasts along the dimensions of ``x`` from 1 on."""
    shape = ctx.shape(values)
    return ctx.reshape(values, shape + (1,) * (ctx.rank(x) - 1 - len(shape)))
