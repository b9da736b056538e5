"""Run a program's steps, and hold its state between them."""

from __future__ import annotations

from threading import RLock
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from taper_openinfer.errors import OpenInferError, StepError, shown, similar
from taper_openinfer.language import graph as g
from taper_openinfer.simulator import instructions as i
from taper_openinfer.simulator.caches import make_cache
from taper_openinfer.simulator.compiling import Compiler
from taper_openinfer.simulator.frame import ThreadFrame
from taper_openinfer.simulator.threads import Threads
from taper_openinfer.simulator.variables import (
    VariableState,
    filled,
    python_scalar,
    scalar_array,
    taken,
    zero,
)
from taper_openinfer.simulator.walking import walk
from taper_runtime.base.text import is_one_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    import numpy as np

    from taper_openinfer.language.graph import Node
    from taper_openinfer.simulator.caches import Cache
    from taper_openinfer.simulator.compiling import Blocks
    from taper_openinfer.simulator.events import TraceEvent
    from taper_openinfer.simulator.simulator import Simulator
    from taper_openinfer.simulator.variables import Scalar


class Executor:
    """Runs a program step by step, with persistent variables of its own.

    Only one thread may use it at a time. A step that fails or is interrupted ends there: the
    failing node has changed nothing, writes of earlier nodes to persistent variables remain, and
    the next step starts as usual.

    Attributes
    ----------
    names : Names
        The meaning of names in indices.
    """

    def __init__(self, simulator: Simulator) -> None:
        """Create the persistent variables and the first frame; blocks are compiled when needed."""
        self._simulator = simulator
        self.names = simulator.names
        self._program = program = simulator.program
        self._slots = simulator.slots
        self._numbers = {slot.name: number for number, slot in enumerate(self._slots)}
        self._dynamic = {
            slot.name: number for number, slot in enumerate(self._slots) if slot.kind == g.DYNAMIC
        }
        self._firsts: list[np.ndarray | None] = [None] * len(self._slots)
        self._read_tables: set[str] = set()
        self._caches: dict[str, Cache] = {
            name: make_cache(
                name,
                variable.shape,
                zero(variable.dtype)
                if variable.init is None
                else scalar_array(variable.dtype, variable.init),
                variable.declaration.table_indices,
                variable.declaration.auto_dim,
                variable.declaration.fixed,
            )
            for name, variable in program.variables.items()
            if variable.declaration.kind == g.PERSISTENT
        }
        self._cache_list = list(self._caches.values())
        self._no_loops: list[int | None] = [None] * len(self.names.loops)
        self._compiled: dict[bool, Blocks] = {}
        self._events: list[TraceEvent] = []
        self._walk: Generator[TraceEvent, None, None] | None = None
        self._is_looked_at = False
        self._has_stepped = False
        self._frame = self._new_frame()
        self.is_stopped = False
        #: Held while a thread uses a persistent variable, if there are several threads.
        self.lock = RLock()
        self.threads = Threads(program.graph.blocks_beside(), self._slots, self._run_beside)

    # -- what a user does ------------------------------------------------------------------------

    def insert_dynamic(self, name: str, value: np.ndarray | Scalar) -> None:
        """Set a dynamic variable for the next step.

        Parameters
        ----------
        name : str
        value : numpy.ndarray
            An array of the variable's shape, in the storage form of its dtype; it is copied. A
            variable without dims also accepts a Python number.

        Raises
        ------
        OpenInferError
            If the variable is unknown or not dynamic, or the shape or the dtype is wrong.
        """
        if not is_one_of(name, self._dynamic):
            known = [slot.name for slot in self._slots if slot.kind == g.DYNAMIC]
            raise OpenInferError(
                f"insert_dynamic: expected a dynamic variable ({', '.join(known) or 'none'}), "
                f"got {shown(name)}{similar(name, known)}"
            )
        number = self._dynamic[name]
        _, _, dtype, shape, _, _ = self._slots[number]
        array = taken(name, dtype, shape, value)
        if self._has_stepped:
            self._end_walk()
            self._has_stepped = False
            self._frame = self._new_frame()
        self._frame.values[number] = array

    def step(self) -> None:
        """Run the program once; if traced, record every node and print its line.

        Raises
        ------
        StepError
            If a node fails.
        """
        if self._simulator.has_trace:
            for event in self.iterate():
                print(event.line())
            return
        frame = self._begin()
        blocks = self._compiled.get(False) or self._blocks(is_split=False)
        try:
            i.run_all(blocks[g.ENTRY], frame)
            self._await_rest(frame)
        finally:
            self._end()

    run_step = step

    def iterate(self) -> Iterator[TraceEvent]:
        """Run the program once, node by node; variables can be fetched between nodes.

        Yields
        ------
        TraceEvent
            The event of the node that has just run. Loops have no event.

        Raises
        ------
        StepError
            If a node fails, or another step was started meanwhile.
        """
        frame = self._begin()
        self._walk = self._walked(frame)
        return self._walk

    def fetch(self, name: str) -> np.ndarray | Scalar:
        """Return a copy of a variable's value; a Python number if it has no dims.

        A persistent variable with indices is returned whole. Temporaries can be fetched during
        :meth:`iterate`, and dynamic variables until the next step begins.

        Raises
        ------
        OpenInferError
            If the variable is unknown, or has no value now.
        """
        if is_one_of(name, self._caches):
            variable = self._program.variables[name]
            array = self._caches[name].read()
            if variable.declaration.table_indices or variable.shape:
                return array.copy()
            return python_scalar(variable.dtype, array)
        if not is_one_of(name, self._numbers):
            raise self._unknown(name)
        number = self._numbers[name]
        slot = self._slots[number]
        if slot.kind == "temporary" and not self._is_looked_at:
            raise OpenInferError(f"{name}: expected a running step for a temporary, got none")
        array = self._frame.get(number)
        return array.copy() if array.shape or slot.shape else python_scalar(slot.dtype, array)

    def state(self, name: str) -> VariableState:
        """Return whether a variable's data are in memory.

        Raises
        ------
        OpenInferError
            If there is no such variable.
        """
        if is_one_of(name, self._caches):
            return VariableState.of(self._caches[name].is_loaded)
        if is_one_of(name, self._numbers):
            number = self._numbers[name]
            values = (self._frame.values[number], self._firsts[number])
            return VariableState.of(any(value is not None for value in values))
        if is_one_of(name, self._program.variables):  # a table of weights
            return VariableState.of(name in self._read_tables)
        raise self._unknown(name)

    def trace(self) -> list[TraceEvent]:
        """Return the events of all steps so far; empty without tracing."""
        return list(self._events)

    def loaded(self) -> dict[str, np.ndarray]:
        """Return the values of the variables whose data are in memory, without loading any.

        The arrays are read-only. Those of variables with indices are whole, and the next node may
        change them.
        """
        pairs = zip(self._slots, self._frame.values, strict=True)
        found = {slot.name: value for slot, value in pairs if value is not None}
        caches = {name: cache.read() for name, cache in self._caches.items() if cache.is_loaded}
        return found | caches

    def loops(self) -> dict[str, int]:
        """Return the variables of the loops around the last node that ran, with their values."""
        pairs = zip(self.names.loops, self._frame.loops, strict=True)
        return {name: value for name, value in pairs if value is not None}

    # -- what a step asks ------------------------------------------------------------------------

    def first_value(self, number: int) -> np.ndarray:
        """Return a variable's initial value, by its slot's number.

        Raises
        ------
        StepError
            If the variable is dynamic and was not set.
        """
        slot = self._slots[number]
        if slot.kind == g.DYNAMIC:
            raise StepError(
                f"{slot.name}: expected a value for this step of a dynamic variable, got none",
                variable=slot.name,
            )
        if slot.kind == "temporary":
            return filled(slot.dtype, slot.shape, None)
        value = self._firsts[number]
        if value is None:
            value = self._firsts[number] = self._simulator.first_value(number)
        return value

    def known_first(self, number: int) -> np.ndarray | None:
        """Return a variable's initial value if it is already in memory, else None."""
        return self._firsts[number]

    def entry(self, table: str, tensor: str) -> np.ndarray:
        """Return an entry of a prefix table, a tensor of the file."""
        self._read_tables.add(table)
        return self._simulator.tensor(tensor)

    def single(self, node: Node) -> i.Instruction:
        """Return an instruction that runs one op alone."""
        waiting = [made for block in self._blocks(is_split=True).values() for made in block]
        while waiting:
            made = waiting.pop()
            if made.node is node and not isinstance(made, i.LoopInstruction):
                return made
            waiting += made.body if isinstance(made, i.LoopInstruction) else ()
        raise KeyError(node.index)

    # -- a step ----------------------------------------------------------------------------------

    def _blocks(self, is_split: bool) -> Blocks:
        if is_split not in self._compiled:
            simulator = self._simulator
            compiler = Compiler(self._program, self._slots, simulator.stretches, is_split)
            self._compiled[is_split] = compiler.compile()
        return self._compiled[is_split]

    def _new_frame(self) -> ThreadFrame:
        """Return the frame that a step starts with."""
        return ThreadFrame(self, self._firsts.copy(), self._no_loops.copy(), self._cache_list)

    def _begin(self) -> ThreadFrame:
        self._end_walk()
        if self._has_stepped:  # nothing was set since the last step
            self._frame = self._new_frame()
        self._has_stepped = True
        self.is_stopped = False
        return self._frame

    def _end(self) -> None:
        """End a step, whether it succeeded or failed."""
        self.is_stopped = True
        self.threads.end()

    def _end_walk(self) -> None:
        """End a step that :meth:`iterate` has not finished."""
        walk, self._walk = self._walk, None
        if walk is not None:
            walk.close()

    def _walked(self, frame: ThreadFrame) -> Generator[TraceEvent, None, None]:
        """Run a step node by node and yield its events."""
        self._is_looked_at = True
        has_trace = self._simulator.has_trace
        try:
            for event in walk(g.ENTRY, self._blocks(is_split=True), frame, self._clock):
                if has_trace:
                    self._events.append(event)
                yield event
            self._await_rest(frame)
        finally:
            self._is_looked_at = False
            self._end()

    @property
    def _clock(self) -> Any:
        return perf_counter_ns if self._simulator.has_timer else None

    def _await_rest(self, frame: ThreadFrame) -> None:
        """Wait for the blocks that run beside a step which ended before its await."""
        if self.threads.is_waiting:
            self.threads.join(frame)

    def _run_beside(self, block: str, frame: ThreadFrame) -> list[TraceEvent]:
        """Run a block in its own thread; return its events."""
        if not self._is_looked_at:
            i.run_all(self._blocks(is_split=False)[block], frame)
            return []
        return list(walk(block, self._blocks(is_split=True), frame, self._clock))

    def _unknown(self, name: str) -> OpenInferError:
        hint = similar(name, [*self._numbers, *self._caches])
        return OpenInferError(f"expected a variable of the program, got {shown(name)}{hint}")
