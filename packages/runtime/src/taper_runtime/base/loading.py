"""Stop a load early: on a timeout, or when another thread asks for it.

A load looks, between some tensors, nodes, steps of a recipe or of a proof and the next, whether it
is to go on. What takes long and cannot look is left to a thread of its own, which the load leaves
behind if it is to end meanwhile. Meanwhile Python does not collect garbage, which takes tenths of a
second in which nothing looks where a plan has a hundred thousand tensors.
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
    from collections.abc import Callable, Iterable, Iterator

    import numpy as np

    from taper_runtime.executor._stop import StopFlag

    Check = Callable[[], None]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_Item = TypeVar("_Item")

#: Bytes that are read, copied or looked through between two looks, or apart: some milliseconds.
PIECE_BYTES = 1 << 24

#: Tensors or nodes between two looks: each takes up to some tenths of a millisecond.
_ITEMS = 16

#: Seconds between two looks while a thread computes something.
_GLANCE_S = 0.01

#: Raises if the load that goes on in this context is to end; None where nothing ends it.
_CHECK: ContextVar[Check | None] = ContextVar("check", default=None)


#: How many loads there are that something may end, and whether garbage is collected after them.
_loads = 0
_collects = False
_LOADS = allocate_lock()


def current_check() -> Check | None:
    """Return what a load calls between two of its parts, for loops; None where nothing ends it."""
    return _CHECK.get()


def watched(items: Iterable[_Item]) -> Iterable[_Item]:
    """Return ``items`` for a loop that looks now and then whether the load is to end.

    The loop is as fast as without where nothing can end it. It may get items some time after they
    were taken.
    """
    check = _CHECK.get()
    return items if check is None else _between_looks(items, check)


def _between_looks(items: Iterable[_Item], check: Check) -> Iterator[_Item]:
    rest = iter(items)
    while some := tuple(islice(rest, _ITEMS)):
        check()
        yield from some


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
    """Let ``check`` end the load inside the context by raising."""
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
    """Compute a function of an array, on a thread of its own if the array is large."""
    return function(array) if array.nbytes < PIECE_BYTES else apart(function, array)
