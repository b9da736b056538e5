"""Register which handler lowers which ATen op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

#: ``(ctx, *ATen arguments) -> name of the result``, or one name per result of a multi-output op.
Handler = Callable[..., str | Sequence[str | None] | None]

HANDLERS: dict[str, Handler] = {}

_H = TypeVar("_H", bound=Handler)


def lowers(*targets: str) -> Callable[[_H], _H]:
    """Register the decorated function as the handler of ATen overloads.

    A handler gets the :class:`~taper_frontend.lowering.context.Lowering` and the arguments of the
    op's schema: a tensor as its name in the graph, a list as a list, a dtype as its name, all else
    as it is. Where a result lies is no matter of a plan: ``layout``, ``device``, ``pin_memory``,
    ``memory_format`` and ``non_blocking`` are not passed on. It emits nodes and returns the name of
    the result; a tuple of names for an op with several results, with None for those that are never
    read; None for an op without a result.

    Parameters
    ----------
    *targets : str
        ``"aten.gelu.default"``: namespace, name, overload.

    Raises
    ------
    ValueError
        If a target has a handler already.
    """

    def register(handler: _H) -> _H:
        for target in targets:
            if target in HANDLERS:
                raise ValueError(f"{target} has a handler already")
            HANDLERS[target] = handler
        return handler

    return register
