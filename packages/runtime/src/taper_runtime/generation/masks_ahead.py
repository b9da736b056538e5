"""Compute what a step needs after its run in a thread beside the run."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def beside(*functions: Callable[[], None]) -> Iterator[None]:
    """Call functions that raise nothing, one after the other, in a thread.

    The block ends after the last one, also if it fails. Without functions there is no thread.
    """
    if not functions:
        yield
        return
    # one of its own, which no fork loses; it costs less than a token
    thread = Thread(target=_call, args=(functions,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _call(functions: tuple[Callable[[], None], ...]) -> None:
    for each in functions:
        each()
