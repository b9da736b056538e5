"""Repeat work periodically on a background thread, for as long as its owner lives."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

_Owner = TypeVar("_Owner")


def start(owner: _Owner, work: Callable[[_Owner], bool], interval_s: float, name: str) -> None:
    """Call ``work(owner)`` every ``interval_s`` seconds, until it returns False.

    The thread, called ``name``, ends with its owner, which it does not keep alive.
    """
    import threading  # which takes as long to import as ten files of ours

    stop = threading.Event()
    finalizer = weakref.finalize(owner, stop.set)
    threading.Thread(
        target=_repeat,
        args=(weakref.ref(owner), work, interval_s, stop, finalizer),
        name=name,
        daemon=True,
    ).start()


def _repeat(
    owner: weakref.ref[_Owner],
    work: Callable[[_Owner], bool],
    interval_s: float,
    stop: threading.Event,
    finalizer: weakref.finalize[..., _Owner],
) -> None:
    while not stop.wait(interval_s):
        # in a call, or the owner would live as long as the next wait
        if not _work(owner, work):
            finalizer.detach()
            return


def _work(owner: weakref.ref[_Owner], work: Callable[[_Owner], bool]) -> bool:
    this = owner()
    return this is not None and work(this)
