"""Notify objects in a forked child process, where the parent's threads and runs are gone."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Protocol

    class Forked(Protocol):
        """The interface of an object that must be reset in a forked child."""

        def after_fork(self) -> None:
            """Reset, in the child, state that only the parent's other threads would reset."""


_WATCHED: weakref.WeakSet[Forked] = weakref.WeakSet()


def watch(thing: Forked) -> None:
    """Call ``thing.after_fork()`` in every forked child while ``thing`` is alive."""
    _WATCHED.add(thing)


def _tell_all() -> None:
    for thing in list(_WATCHED):
        thing.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tell_all)
