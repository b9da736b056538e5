"""Define the instructions that blocks are compiled to: control nodes, caches and stretches.

Names are resolved when an instruction is made. ``run(frame)`` returns whether the block has
returned.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from taper_openinfer.dtypes import DTYPES, from_float32, to_float32
from taper_openinfer.errors import OpenInferError, StepError
from taper_openinfer.language.graph import describe
from taper_openinfer.simulator.variables import is_true
from taper_runtime.base.errors import NodeInputError, OpError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from taper_openinfer.language.graph import Node
    from taper_openinfer.simulator.access import Index, Keep
    from taper_openinfer.simulator.frame import ThreadFrame

    Bounds = Callable[[ThreadFrame], tuple[int, int]]
    Indices = Callable[[ThreadFrame], Sequence[Index]]

#: The limit on nested branches: each takes a few levels of Python's stack.
MAX_DEPTH = 100


class Instruction(ABC):
    """The interface of an instruction.

    Attributes
    ----------
    node : Node
        The node; for a stretch, its first node.
    block : str
    """

    def __init__(self, node: Node, block: str) -> None:
        self.node, self.block = node, block

    @abstractmethod
    def run(self, frame: ThreadFrame) -> bool | None:
        """Execute the node; return whether the block has returned."""


def run_all(instructions: Sequence[Instruction], frame: ThreadFrame) -> bool:
    """Run instructions in order; return whether one of them returned from the block.

    Raises
    ------
    StepError
        If a node fails; the message names it.
    """
    instruction = None
    try:
        for instruction in instructions:
            if instruction.run(frame):
                return True
    except (OpenInferError, OpError) as error:
        assert instruction is not None
        raise located(error, instruction.node) from error
    return False


def located(error: Exception, node: Node) -> StepError:
    """Return ``error`` as a StepError that names the node, unless it already is one."""
    if not isinstance(error, StepError):
        text = error.reason if isinstance(error, NodeInputError) else str(error)
        return StepError(text, describe(node.kind), node.place)
    if not error.node:
        error.node, error.place = describe(node.kind), node.place
    return error


class Nothing(Instruction):
    """``barrier`` and ``dep``, which do nothing: nodes run in order anyway."""

    def run(self, frame: ThreadFrame) -> None:
        """Do nothing."""


class Restart(Instruction):
    """``assign``: resets a temporary to zeros."""

    def __init__(self, node: Node, block: str, slot: int) -> None:
        super().__init__(node, block)
        self._slot = slot

    def run(self, frame: ThreadFrame) -> None:
        """Reset the value."""
        frame.values[self._slot] = None


class ReturnInstruction(Instruction):
    """``return``: ends the block."""

    def run(self, frame: ThreadFrame) -> bool:
        """Return from the block."""
        return True


class TransferInstruction(Instruction):
    """``transfer``: sets a variable to the value of another."""

    def __init__(self, node: Node, block: str, source: int, target: int) -> None:
        super().__init__(node, block)
        self._source, self._target = source, target

    def run(self, frame: ThreadFrame) -> None:
        """Share the array: arrays are never written to."""
        value, target = frame.get(self._source), frame.get(self._target)
        if value.shape != target.shape:
            raise StepError(
                f"transfer: expected a value of shape {target.shape}, got {value.shape}"
            )
        # A view of a cache must be copied: the cache does not know this variable as a reader.
        frame.values[self._target] = value if value.base is None else value.copy()


# -- caches ------------------------------------------------------------------------------------


class CacheInstruction(Instruction):
    """The base of the instructions about one persistent variable.

    Parameters
    ----------
    node, block
        See :class:`Instruction`.
    cache : int
        The number of the persistent variable.
    indices : callable
        Evaluates the indices of the access.
    readers : sequence of int
        The slots that may hold views of the cache's memory.
    """

    def __init__(
        self, node: Node, block: str, cache: int, indices: Indices, readers: Sequence[int] = ()
    ) -> None:
        super().__init__(node, block)
        self.cache, self.indices, self.readers = cache, indices, tuple(readers)

    def keep(self, frame: ThreadFrame) -> Keep | None:
        """Return a callback that copies the views of cells which are about to change."""
        values, cache = frame.values, frame.caches[self.cache]
        for slot in self.readers:
            if values[slot] is not None:
                break
        else:
            return None

        def copy_views(cells: np.ndarray) -> None:
            for slot in self.readers:
                value = values[slot]
                if value is not None and cache.holds(value) and np.may_share_memory(value, cells):
                    values[slot] = value.copy()

        return copy_views


class Read(CacheInstruction):
    """``cache.read``: sets a variable to the selected entries."""

    def __init__(
        self,
        node: Node,
        block: str,
        cache: int,
        indices: Indices,
        target: int,
        is_copied: bool,
    ) -> None:
        super().__init__(node, block, cache, indices)
        self._target, self._is_copied = target, is_copied

    def run(self, frame: ThreadFrame) -> None:
        """Set the variable."""
        value = frame.caches[self.cache].read(self.indices(frame))
        frame.values[self._target] = value.copy() if self._is_copied else value


class Write(CacheInstruction):
    """``cache.write``: writes a variable's value to an entry."""

    def __init__(
        self,
        node: Node,
        block: str,
        cache: int,
        indices: Indices,
        readers: Sequence[int],
        source: int,
    ) -> None:
        super().__init__(node, block, cache, indices, readers)
        self._source = source

    def run(self, frame: ThreadFrame) -> None:
        """Write the value."""
        value = frame.values[self._source]
        if value is None:
            value = frame.get(self._source)
        keep = self.keep(frame) if self.readers else None
        frame.caches[self.cache].write(self.indices(frame), value, keep)


class Reset(CacheInstruction):
    """``cache.reset``: restores initial values."""

    def run(self, frame: ThreadFrame) -> None:
        """Restore the initial values."""
        frame.caches[self.cache].reset(self.indices(frame), self.keep(frame))


class Add(Instruction):
    """``cache.increment`` and ``cache.decrement``: integers wrap in their width, floats add."""

    def __init__(self, node: Node, block: str, cache: int, dtype: str, amount: int) -> None:
        super().__init__(node, block)
        self._cache, self._amount = cache, amount
        self._dtype = DTYPES[dtype]

    def run(self, frame: ThreadFrame) -> None:
        """Add to the number."""
        cache = frame.caches[self._cache]
        cache.write((), self._sum(cache.read()))

    def _sum(self, value: np.ndarray) -> np.ndarray:
        row = self._dtype
        if row.kind != "float":
            low = int(row.low)
            return np.array((int(value) + self._amount - low) % (1 << row.bits) + low, row.storage)
        if row.name in ("f32", "f64"):
            return np.array(value + row.storage.type(self._amount))
        total = to_float32(row.name, value) + np.float32(self._amount)
        return np.array(from_float32(row.name, total))


# -- control -------------------------------------------------------------------------------------


class LoopInstruction(Instruction):
    """``loop``: runs the body; afterwards its variable has its earlier value again."""

    def __init__(
        self, node: Node, block: str, variable: int, bounds: Bounds, body: Sequence[Instruction]
    ) -> None:
        super().__init__(node, block)
        self.variable, self._bounds, self.body = variable, bounds, body

    def run(self, frame: ThreadFrame) -> bool:
        """Run the body for each value; return whether it returned from the block."""
        return any(run_all(self.body, frame) for _ in self.rounds(frame))

    def rounds(self, frame: ThreadFrame) -> Iterator[int]:
        """Set the loop's variable to each of its values and yield it."""
        loops, variable, executor = frame.loops, self.variable, frame.executor
        before = loops[variable]
        try:
            for value in range(*self._bounds(frame)):
                if executor.is_stopped and frame.is_consumer:
                    raise StepError("the step was ended")
                loops[variable] = value
                yield value
        finally:
            loops[variable] = before


class BranchInstruction(Instruction):
    """``branch``: runs another block and continues when it returns."""

    def __init__(
        self,
        node: Node,
        block: str,
        condition: tuple[int, str] | None,
        targets: tuple[str, str | None],
        blocks: Mapping[str, Sequence[Instruction]],
    ) -> None:
        super().__init__(node, block)
        self._condition, self._targets, self._blocks = condition, targets, blocks

    def run(self, frame: ThreadFrame) -> None:
        """Run the chosen block."""
        with self.inside(frame):
            run_all(self._blocks[self.target(frame)], frame)

    @contextmanager
    def inside(self, frame: ThreadFrame) -> Iterator[None]:
        """Count the nested branches while the body of the with statement runs.

        Raises
        ------
        StepError
            If there are too many: a block branches to itself.
        """
        if frame.depth >= MAX_DEPTH:
            raise StepError(f"expected at most {MAX_DEPTH} nested branches, got more")
        frame.depth += 1
        try:
            yield
        finally:
            frame.depth -= 1

    def target(self, frame: ThreadFrame) -> str:
        """Return the name of the chosen block."""
        then, otherwise = self._targets
        if self._condition is None or otherwise is None:
            return then
        slot, dtype = self._condition
        value = frame.get(slot)
        if value.size != 1:
            raise StepError(f"expected one number as condition, got shape {value.shape}")
        return then if is_true(dtype, value) else otherwise


class YieldInstruction(Instruction):
    """``yield``: in ``entry``, starts the waiting blocks; in these, does nothing.

    A waiting block hands back what it has changed, which :class:`AwaitInstruction` finds by itself.
    """

    def __init__(self, node: Node, block: str, slots: Sequence[int]) -> None:
        super().__init__(node, block)
        self._slots = slots

    def run(self, frame: ThreadFrame) -> None:
        """Start threads with snapshots of the variables."""
        for slot in self._slots:
            frame.get(slot)
        if not frame.is_consumer:
            frame.executor.threads.start(frame)


class AwaitInstruction(Instruction):
    """``await``: in ``entry``, waits for the blocks; in these, does nothing."""

    def run(self, frame: ThreadFrame) -> None:
        """Join the threads and merge what they have changed."""
        if not frame.is_consumer:
            frame.executor.threads.join(frame)


class Locked(Instruction):
    """An instruction about a persistent variable, under a lock: several threads may run."""

    def __init__(self, inner: Instruction) -> None:
        super().__init__(inner.node, inner.block)
        self._inner = inner

    def run(self, frame: ThreadFrame) -> bool | None:
        """Run the instruction while no other thread uses a persistent variable."""
        with frame.executor.lock:
            return self._inner.run(frame)
