"""Register the handlers of ATen ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

#: A function ``(ctx, *ATen arguments) -> name of the result``, or a tuple of names for several
#: results.
Handler = Callable[..., str | Sequence[str | None] | None]

HANDLERS: dict[str, Handler] = {}

_H = TypeVar("_H", bound=Handler)


def lowers(*targets: str, replace: bool = False) -> Callable[[_H], _H]:
    """Register the decorated function as the handler of ATen overloads.

    A handler gets the :class:`~taper_frontend.lowering.context.Lowering` and the arguments of the
    op's schema: a tensor as its name in the graph, a dtype as its name, all else as it is.
    Arguments about the memory of the result are not passed: ``layout``, ``device``, ``pin_memory``,
    ``memory_format`` and ``non_blocking``. The handler emits nodes and returns the name of the
    result. For an op with several results it returns a tuple of names, with None for results that
    are never read; for an op without a result it returns None.

    Parameters
    ----------
    *targets : str
        Namespace, name and overload: ``"aten.gelu.default"``.
    replace : bool
        Whether to replace the handler of a target that has one. To put the old one back, register
        it again: it is in :data:`HANDLERS`.

    Raises
    ------
    ValueError
        If a target has a handler already, and ``replace`` is not set.
    """

    def register(handler: _H) -> _H:
        if taken := [target for target in targets if target in HANDLERS and not replace]:
            raise ValueError(
                f"{', '.join(taken)}: expected an op without a handler, or replace=True"
            )
        HANDLERS.update(dict.fromkeys(targets, handler))
        return handler

    return register
