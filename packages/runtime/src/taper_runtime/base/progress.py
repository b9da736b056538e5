"""Show a progress bar on a terminal's stderr if rich is installed."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Seconds between two drawings. Nothing is drawn in the background, which would disturb the timing.
_PAUSE = 0.1


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """Yield a function to call after each of ``total`` steps."""
    if not sys.stderr.isatty() or find_spec("rich") is None:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), auto_refresh=False, transient=True) as bar:
        task = bar.add_task(what, total=total)
        drawn = 0.0

        def advance() -> None:
            nonlocal drawn
            bar.update(task, advance=1)
            if time.monotonic() - drawn >= _PAUSE:
                bar.refresh()
                drawn = time.monotonic()

        bar.refresh()
        yield advance
