"""Tell what an export is doing, to a function of the caller's or on a bar."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: What an export does, in order. Some come again where the first capture is of no use.
STEPS = ("capture", "lower", "optimize", "plan", "verify")


class ExportProgress:
    """Calls a function with the name of each step before it runs.

    Parameters
    ----------
    tell : callable, optional
        Without it nobody is told.
    within : str
        The step that these are parts of; it stands before the name of each, ``within: name``.
    """

    def __init__(self, tell: Callable[[str], None] | None = None, within: str = "") -> None:
        self._tell = tell
        self._within = within

    def __call__(self, name: str) -> None:
        """Tell the name of the step that begins."""
        if self._tell is not None:
            self._tell(f"{self._within}: {name}" if self._within else name)

    def inside(self, step: str) -> ExportProgress:
        """Return what tells the parts of a step."""
        return ExportProgress(self._tell, step)


#: Tells nobody.
QUIET = ExportProgress()


@contextmanager
def show_progress(show: bool | Callable[[str], None]) -> Iterator[ExportProgress]:
    """Yield what is to be called with each step: a bar shows it, a function gets it, or neither."""
    if show is not True:
        yield ExportProgress(show or None)
        return
    from rich.console import Console
    from rich.progress import Progress

    # the stream as it is now: what torch writes to it is dropped
    with Progress(console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("export", total=len(STEPS))

        def move(name: str) -> None:
            of_all = STEPS.index(name.partition(":")[0])
            bar.update(task, description=f"export: {name}", completed=of_all)

        yield ExportProgress(move)
