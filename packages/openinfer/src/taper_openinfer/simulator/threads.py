"""Run each block that waits for what ``entry`` yields in a thread with its own variables."""

from __future__ import annotations

from threading import Event, Thread
from typing import TYPE_CHECKING

from taper_openinfer.errors import StepError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from taper_openinfer.simulator.events import TraceEvent
    from taper_openinfer.simulator.frame import ThreadFrame, VariableSlot


class Consumer:
    """A block that runs in its own thread.

    Parameters
    ----------
    block : str
    frame : ThreadFrame
    run : callable
        Runs the block and returns the events of its nodes.
    """

    def __init__(
        self, block: str, frame: ThreadFrame, run: Callable[[str, ThreadFrame], list[TraceEvent]]
    ) -> None:
        self.block, self.frame = block, frame
        self.events: list[TraceEvent] = []
        self.error: BaseException | None = None
        self._run = run
        self._is_done = Event()
        self._thread = Thread(target=self._work, name=f"taper-{block}", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the block has ended."""
        self._is_done.wait()  # an interrupted join would consider the thread ended
        self._thread.join()

    def _work(self) -> None:
        try:
            self.events = self._run(self.block, self.frame)
        except BaseException as error:  # join() raises it in the caller's thread
            self.error = error
        finally:
            self._is_done.set()


class Threads:
    """The blocks that an executor runs beside ``entry``.

    Parameters
    ----------
    blocks : sequence of str
        The blocks that are neither ``entry`` nor the target of a branch.
    slots : sequence of VariableSlot
    run : callable
        Runs a block on a frame and returns the events of its nodes.
    """

    def __init__(
        self,
        blocks: Sequence[str],
        slots: Sequence[VariableSlot],
        run: Callable[[str, ThreadFrame], list[TraceEvent]],
    ) -> None:
        self._blocks, self._slots, self._run = blocks, slots, run
        self._running: list[Consumer] = []
        self._snapshot: list[np.ndarray | None] = []
        self.is_waiting = False  # the running blocks, between a yield and its await

    def start(self, frame: ThreadFrame) -> None:
        """Start every block with a copy of the current variables of ``entry``.

        Raises
        ------
        StepError
            If an earlier yield has not been awaited yet.
        """
        if self.is_waiting:
            raise StepError("expected an await before the second yield")
        self.is_waiting = True
        self._snapshot = frame.values.copy()
        self._running = [Consumer(block, frame.fork(), self._run) for block in self._blocks]

    def join(self, frame: ThreadFrame) -> list[TraceEvent]:
        """Wait for the blocks, and set the variables of ``entry`` to what they wrote.

        The first await after a yield waits for all blocks; further ones do nothing.

        Returns
        -------
        list of TraceEvent
            The events of the blocks' nodes, block by block.

        Raises
        ------
        StepError
            If two threads wrote the same variable.
        BaseException
            The first exception that a block raised.
        """
        if not self.is_waiting:
            return []
        consumers = self._running
        for consumer in consumers:
            consumer.wait()
        self._running, self.is_waiting = [], False
        for consumer in consumers:
            if consumer.error is not None:
                raise consumer.error
        self._merge(frame, consumers)
        return [event for consumer in consumers for event in consumer.events]

    def end(self) -> None:
        """Wait for the blocks of a step that failed, and discard their results and errors."""
        for consumer in self._running:
            consumer.wait()
        self._running, self._snapshot, self.is_waiting = [], [], False

    def _merge(self, frame: ThreadFrame, consumers: Sequence[Consumer]) -> None:
        """Take over written values; a changed array shows that a variable was written."""
        for slot, (before, variable) in enumerate(zip(self._snapshot, self._slots, strict=True)):
            if variable.kind == "temporary":  # each thread has its own temporaries
                continue
            first = before if before is not None else frame.executor.known_first(slot)
            writers = [
                (who, values[slot])
                for who, values in (
                    ("entry", frame.values),
                    *((consumer.block, consumer.frame.values) for consumer in consumers),
                )
                if values[slot] is not None and values[slot] is not first
            ]
            if len(writers) > 1 and any(who != "entry" for who, _ in writers):
                blocks = " and ".join(who for who, _ in writers)
                raise StepError(
                    f"{variable.name}: expected at most one block to write it between yield and "
                    f"await, got {blocks}",
                    variable=variable.name,
                )
            if writers:
                frame.values[slot] = writers[0][1]
        self._snapshot = []
