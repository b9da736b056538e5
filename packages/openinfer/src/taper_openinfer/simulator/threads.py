"""Run the blocks that wait for what ``entry`` yields, each in a thread with its own variables."""

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
    """One block at work in its thread.

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
        self._is_done.wait()  # join alone takes a thread for ended when it is interrupted
        self._thread.join()

    def _work(self) -> None:
        try:
            self.events = self._run(self.block, self.frame)
        except BaseException as error:  # the caller's thread raises it
            self.error = error
        finally:
            self._is_done.set()


class Threads:
    """The blocks that one executor runs beside ``entry``.

    Parameters
    ----------
    blocks : sequence of str
        Those that are neither ``entry`` nor a branch's target.
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
        self.is_waiting = False  # from a yield to its await

    def start(self, frame: ThreadFrame) -> None:
        """Start every block with the variables of ``entry`` as they are now.

        Raises
        ------
        StepError
            If what was yielded before has not been awaited.
        """
        if self.is_waiting:
            raise StepError("expected an await before the second yield")
        self.is_waiting = True
        self._snapshot = frame.values.copy()
        self._running = [Consumer(block, frame.fork(), self._run) for block in self._blocks]

    def join(self, frame: ThreadFrame) -> list[TraceEvent]:
        """Wait for the blocks and give ``entry`` the values of the variables that they wrote.

        The first await of a yield waits for all of them; a further one has nothing to wait for.

        Returns
        -------
        list of TraceEvent
            Of the blocks' nodes, block after block.

        Raises
        ------
        StepError
            If a variable was written in two places.
        BaseException
            The first that a block raised.
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
        """Wait for the blocks of a step that failed; what they did and met is forgotten."""
        for consumer in self._running:
            consumer.wait()
        self._running, self._snapshot, self.is_waiting = [], [], False

    def _merge(self, frame: ThreadFrame, consumers: Sequence[Consumer]) -> None:
        """Take on what was written: values are never changed in place, so that new ones tell."""
        for slot, (before, variable) in enumerate(zip(self._snapshot, self._slots, strict=True)):
            if variable.kind == "temporary":  # each thread has its own
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
