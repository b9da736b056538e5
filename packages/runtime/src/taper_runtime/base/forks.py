"""Tell objects of a child process that they are in one: threads and their runs are not."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Protocol

    class Forked(Protocol):
        """What a fork has to mend."""

        def after_fork(self) -> None:
            """Forget, in the child, what only the parent's other threads would end."""


_WATCHED: weakref.WeakSet[Forked] = weakref.WeakSet()


def watch(thing: Forked) -> None:
    """Call ``thing.after_fork()`` in every forked child, for as long as ``thing`` is alive."""
    _WATCHED.add(thing)


def _tell_all() -> None:
    for thing in list(_WATCHED):
        thing.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tell_all)
