"""Call what takes long apart from a server's event loop."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from anyio import to_thread

if TYPE_CHECKING:
    from collections.abc import Callable

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


async def in_thread(
    function: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
) -> _Result:
    """Return a function's result; a request that ends before leaves the call to end by itself."""
    called = partial(function, *args, **kwargs)
    result: _Result = await to_thread.run_sync(called, abandon_on_cancel=True)
    return result
