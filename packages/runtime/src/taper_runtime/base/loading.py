"""End a load before its time: by a timeout, or because another thread says so.

A load looks, between one tensor, node, step of a recipe or of a proof and the next, whether it is
to go on. What takes long and cannot look is left to a thread of its own, which the load leaves
behind if it is to end meanwhile.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from taper_runtime.base.errors import LoadTimeoutError, StoppedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np

    from taper_runtime.executor._runs import StopFlag

    Check = Callable[[], None]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

#: Bytes that are read, copied or looked through between two looks, or apart: some milliseconds.
PIECE_BYTES = 1 << 24

#: Seconds between two looks while a thread computes something.
_GLANCE_S = 0.01

#: Raises if the load that goes on in this context is to end; None where nothing ends it.
_CHECK: ContextVar[Check | None] = ContextVar("check", default=None)


def current_check() -> Check | None:
    """Return what a load calls between two of its parts, for loops; None where nothing ends it."""
    return _CHECK.get()


def look() -> None:
    """Raise if the load that goes on in this context is to end.

    Raises
    ------
    StoppedError
        Or the LoadTimeoutError that it may be.
    """
    check = _CHECK.get()
    if check is not None:
        check()


@contextmanager
def ended_by(check: Check | None) -> Iterator[None]:
    """Have the load that goes on meanwhile end where ``check`` raises."""
    token = _CHECK.set(check)
    try:
        yield
    finally:
        _CHECK.reset(token)


def load_check(flag: StopFlag, timeout_s: float | None) -> Check:
    """Return what raises once a flag is set, or so many seconds from now on have passed."""
    from time import monotonic

    deadline = None if timeout_s is None else monotonic() + timeout_s

    def check() -> None:
        if flag.is_set:
            raise StoppedError("the load was ended: its options' load cancellation flag is set")
        if deadline is not None and monotonic() >= deadline:
            raise LoadTimeoutError(f"the load did not end within {timeout_s:g} s")

    return check


def apart(
    function: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
) -> _Result:
    """Return what a function returns that takes long and cannot look; a load need not wait for it.

    It is called on a thread of its own where something may end the load. It must not write what
    others read, as it goes on to its end when the load has ended.
    """
    check = _CHECK.get()
    if check is None:
        return function(*args, **kwargs)
    check()
    from _thread import allocate_lock, start_new_thread  # threading takes long to import

    made: list[_Result] = []
    raised: list[BaseException] = []
    running = allocate_lock()
    running.acquire()

    def compute() -> None:
        try:
            made.append(function(*args, **kwargs))
        except BaseException as error:
            raised.append(error)
        finally:
            running.release()

    start_new_thread(copy_context().run, (compute,))
    while not running.acquire(True, _GLANCE_S):
        check()
    if raised:
        raise raised[0]
    return made[0]


def apart_if_large(function: Callable[[np.ndarray], _Result], array: np.ndarray) -> _Result:
    """Do that with a function of an array's bytes, of which few take no time."""
    return function(array) if array.nbytes < PIECE_BYTES else apart(function, array)
