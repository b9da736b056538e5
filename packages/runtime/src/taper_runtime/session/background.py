"""Run without waiting for the result: ``run_async``."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    #: Called with the outputs, the caller's ``user_data``, and the text of an error, empty if none.
    Callback = Callable[[list[np.ndarray], Any, str], None]


class Background:
    """Threads for a session's asynchronous runs, as many at once as the session has threads."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, "taper_runtime")
        self._process = os.getpid()

    @property
    def usable(self) -> bool:
        """Return whether the threads exist: a forked child does not have those of its parent."""
        return self._process == os.getpid()

    def close(self) -> None:
        """Stop the threads after they have finished all pending runs."""
        self._pool.shutdown(wait=False)

    def submit(
        self, run: Callable[[], list[np.ndarray]], callback: Callback, user_data: Any
    ) -> None:
        """Call ``run`` on a thread, then ``callback`` on the same thread."""
        self._pool.submit(_run, run, callback, user_data)


def _run(run: Callable[[], list[np.ndarray]], callback: Callback, user_data: Any) -> None:
    outputs: list[np.ndarray] = []
    message = ""
    try:
        outputs = run()
    except Exception as error:  # the callback is told
        message = str(error) or type(error).__name__
    try:
        callback(outputs, user_data, message)
    # nobody waits for this thread, so the error is shown like that of any thread
    except BaseException:
        kind, value, trace = sys.exc_info()
        args = threading.ExceptHookArgs((kind, value, trace, threading.current_thread()))
        threading.excepthook(args)
