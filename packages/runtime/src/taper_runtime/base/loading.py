"""Stop a load early: on a timeout, or when another thread asks for it.

A load regularly checks whether it should stop: between tensors, nodes, and steps of recipes and
proofs. A long computation that cannot check runs in its own thread, which the load abandons if it
should stop. Garbage collection is paused during such a load: with a hundred thousand tensors it
takes tenths of a second, during which nothing is checked.
"""

from __future__ import annotations

import gc
from _thread import allocate_lock  # threading takes long to import
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from itertools import islice
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from taper_runtime.base.errors import LoadTimeoutError, StoppedError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator

    import numpy as np

    Check = Callable[[], None]
    FilePath = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_Item = TypeVar("_Item")

#: Bytes that are read or copied between two checks: some milliseconds. More run in their own
#: thread.
PIECE_BYTES = 1 << 24

#: Tensors or nodes between two checks: each takes up to some tenths of a millisecond.
_ITEMS = 16

#: Seconds between two checks while another thread computes.
_GLANCE_S = 0.01

#: Raises if the load in this context should stop; None if nothing can stop it.
_CHECK: ContextVar[Check | None] = ContextVar("check", default=None)


#: The number of loads that can be stopped, and whether to enable garbage collection after them.
_loads = 0
_collects = False
_LOADS = allocate_lock()


def current_check() -> Check | None:
    """Return the function that checks whether to stop, for loops; None if nothing stops it."""
    return _CHECK.get()


def watched(items: Iterable[_Item]) -> Iterable[_Item]:
    """Return ``items`` for a loop, checking regularly whether the load should stop.

    If nothing can stop the load the loop costs nothing extra. Items may be fetched some time before
    the loop gets them.
    """
    check = _CHECK.get()
    return items if check is None else _between_looks(items, check)


def _between_looks(items: Iterable[_Item], check: Check) -> Iterator[_Item]:
    rest = iter(items)
    while some := tuple(islice(rest, _ITEMS)):
        check()
        yield from some


def look() -> None:
    """Raise an error if the load in this context should stop.

    Raises
    ------
    StoppedError
        If it should; on a timeout this is a LoadTimeoutError.
    """
    check = _CHECK.get()
    if check is not None:
        check()


@contextmanager
def ended_by(check: Check | None) -> Iterator[None]:
    """Let ``check`` stop the load inside the context by raising."""
    if check is None:
        yield
        return
    _pause(1)
    token = _CHECK.set(check)
    try:
        yield
    finally:
        _CHECK.reset(token)
        _pause(-1)


def _pause(change: int) -> None:
    """Pause garbage collection while a load that may be stopped is in progress."""
    global _loads, _collects
    with _LOADS:
        if not _loads:
            _collects = gc.isenabled()
            gc.disable()
        _loads += change
        if not _loads and _collects:
            gc.enable()


def load_check(is_cancelled: Callable[[], bool], timeout_s: float | None) -> Check:
    """Return a function that raises if the load is cancelled, or this many seconds from now."""
    from time import monotonic

    deadline = None if timeout_s is None else monotonic() + timeout_s

    def check() -> None:
        if is_cancelled():
            raise StoppedError(
                "the load was cancelled: the load cancellation flag of its options is set"
            )
        if deadline is not None and monotonic() >= deadline:
            raise LoadTimeoutError(f"the load did not end within {timeout_s:g} s")

    return check


def apart(
    function: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
) -> _Result:
    """Call a long function that cannot check for a stop; the load need not wait for it.

    If something may stop the load, the function runs in its own thread. It must not write to shared
    objects, because it continues after the load has stopped.
    """
    check = _CHECK.get()
    if check is None:
        return function(*args, **kwargs)
    check()
    from _thread import start_new_thread

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
    """Compute a function of an array, in its own thread if the array is large."""
    return function(array) if array.nbytes < PIECE_BYTES else apart(function, array)
