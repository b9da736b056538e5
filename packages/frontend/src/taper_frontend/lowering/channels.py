"""Permute between ATen's ``[N, C, *spatial]`` and the ops' ``[N, *spatial, C]``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taper_frontend.lowering.context import Lowering


def channels_last(ctx: Lowering, x: str) -> str:
    """Permute ``[N, C, *spatial]`` to ``[N, *spatial, C]``.

    Every handler permutes its input and its output; passes cancel these permutations.
    """
    return ctx.permute(x, (0, *range(2, ctx.rank(x)), 1))


def channels_first(ctx: Lowering, x: str) -> str:
    """Undo :func:`channels_last`."""
    rank = ctx.rank(x)
    return ctx.permute(x, (0, rank - 1, *range(1, rank - 1)))


def per_channel(ctx: Lowering, values: str, x: str) -> str:
    """Reshape ``values`` to broadcast along axis 1 of ``x``, ``[N, C, *spatial]``."""
    shape = ctx.shape(values)
    return ctx.reshape(values, shape + (1,) * (ctx.rank(x) - 1 - len(shape)))
