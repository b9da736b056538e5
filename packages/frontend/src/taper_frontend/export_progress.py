"""Report the steps of an export to a function of the caller's, or on a progress bar."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Steps of an export, in order. Some are repeated if the first capture cannot be used.
STEPS = ("capture", "lower", "optimize", "plan", "verify")


class ExportProgress:
    """Calls a function with the name of each step before it runs.

    Parameters
    ----------
    tell : callable, optional
        The function; with None, nothing is called.
    within : str
        The step that the reported ones are parts of; it is put before their names: ``within:
        name``.
    """

    def __init__(self, tell: Callable[[str], None] | None = None, within: str = "") -> None:
        self._tell = tell
        self._within = within

    def __call__(self, name: str) -> None:
        """Report that the step of this name begins."""
        if self._tell is not None:
            self._tell(f"{self._within}: {name}" if self._within else name)

    def inside(self, step: str) -> ExportProgress | None:
        """Return a progress object for the parts of a step; None if nothing is called."""
        return None if self._tell is None else ExportProgress(self._tell, step)


#: Reports to nobody.
QUIET = ExportProgress()


@contextmanager
def show_progress(show: bool | Callable[[str], None]) -> Iterator[ExportProgress]:
    """Yield a function to call with each step's name; it updates a bar or calls the user's."""
    if show is not True:
        yield ExportProgress(show or None)
        return
    from rich.console import Console
    from rich.progress import Progress

    # the present stream: while torch runs, sys.stderr is replaced and what it writes is dropped
    with Progress(console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("export", total=len(STEPS))

        def move(name: str) -> None:
            of_all = STEPS.index(name.partition(":")[0])
            bar.update(task, description=f"export: {name}", completed=of_all)

        yield ExportProgress(move)
