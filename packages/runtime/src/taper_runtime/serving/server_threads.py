"""Call slow functions in threads, outside of a server's event loop."""

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
    """Call a function in a thread; return its result. Cancelling does not stop the call."""
    called = partial(function, *args, **kwargs)
    result: _Result = await to_thread.run_sync(called, abandon_on_cancel=True)
    return result
