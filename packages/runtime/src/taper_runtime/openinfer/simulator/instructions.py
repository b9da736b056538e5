"""What a block is compiled to: one small object for each control node and each stretch of ops.

Names were resolved when it was made. ``run(frame)`` returns whether the block has returned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.errors import OpError
from taper_runtime.openinfer.dtypes import DTYPES, from_float32, to_float32
from taper_runtime.openinfer.errors import OpenInferError, StepError
from taper_runtime.openinfer.simulator.values import is_true

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from taper_runtime.openinfer.graph import Node
    from taper_runtime.openinfer.simulator.caches import Cache, Index
    from taper_runtime.openinfer.simulator.frame import Frame

    Number = Callable[[Frame], int]
    Indices = Callable[[Frame], Sequence[Index]]

#: Branches that may be inside each other: each takes a few levels of Python's own stack.
MAX_DEPTH = 100


class Instruction:
    """One node at work.

    Attributes
    ----------
    node : Node
        For a stretch of several, the first.
    block : str
    """

    def __init__(self, node: Node, block: str) -> None:
        self.node, self.block = node, block

    def run(self, frame: Frame) -> bool | None:
        """Do what the node says."""
        raise NotImplementedError


def run_all(instructions: Sequence[Instruction], frame: Frame) -> bool:
    """Run instructions in order; return whether one of them returned from the block.

    Raises
    ------
    StepError
        Naming the node that failed.
    """
    instruction = None
    try:
        for instruction in instructions:
            if instruction.run(frame):
                return True
    except (OpenInferError, OpError) as error:
        assert instruction is not None
        raise located(error, instruction.node, instruction.block) from error
    return False


def located(error: Exception, node: Node, block: str) -> StepError:
    """Return ``error`` as one that says at which node, unless it says so already."""
    if isinstance(error, StepError) and error.node is not None:
        return error
    return StepError(str(error), node, block)


class Nothing(Instruction):
    """``barrier`` and ``dep``: nodes run in their order as it is."""

    def run(self, frame: Frame) -> None:
        """Do nothing."""


class Restart(Instruction):
    """``assign``: a temporary is zeros from here on."""

    def __init__(self, node: Node, block: str, slot: int) -> None:
        super().__init__(node, block)
        self._slot = slot

    def run(self, frame: Frame) -> None:
        """Forget the value."""
        frame.values[self._slot] = None


class Return(Instruction):
    """``return``."""

    def run(self, frame: Frame) -> bool:
        """Return from the block."""
        return True


class Transfer(Instruction):
    """``transfer``: one variable takes on the value of another."""

    def __init__(self, node: Node, block: str, source: int, target: int) -> None:
        super().__init__(node, block)
        self._source, self._target = source, target

    def run(self, frame: Frame) -> None:
        """Share the array: nobody writes to one."""
        value, target = frame.get(self._source), frame.get(self._target)
        if value.shape != target.shape:
            raise StepError(f"transfer: expected a value of shape {target.shape}, got {value.shape}")
        # A view of a cache would change with it, unseen by the cache's borrowers.
        frame.values[self._target] = value if value.base is None else value.copy()


# -- caches ------------------------------------------------------------------------------------


class CacheInstruction(Instruction):
    """A node about one persistent variable.

    Attributes
    ----------
    cache : int
        Its number.
    readers : tuple of int
        The slots that may hold views of the cache's memory.
    """

    def __init__(
        self, node: Node, block: str, cache: int, indices: Indices, readers: Sequence[int]
    ) -> None:
        super().__init__(node, block)
        self.cache, self.indices, self.readers = cache, indices, tuple(readers)

    def keep_views(self, frame: Frame, cache: Cache) -> None:
        """Copy what variables have read from the cache, which is about to change."""
        values = frame.values
        for slot in self.readers:
            value = values[slot]
            if value is not None and cache.holds(value):
                values[slot] = value.copy()


class Read(CacheInstruction):
    """``cache.read``."""

    def __init__(
        self,
        node: Node,
        block: str,
        cache: int,
        indices: Indices,
        target: int,
        is_copied: bool,
    ) -> None:
        super().__init__(node, block, cache, indices, ())
        self._target, self._is_copied = target, is_copied

    def run(self, frame: Frame) -> None:
        """Put what is selected into a variable."""
        value = frame.caches[self.cache].read(self.indices(frame))
        frame.values[self._target] = value.copy() if self._is_copied else value


class Write(CacheInstruction):
    """``cache.write``."""

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

    def run(self, frame: Frame) -> None:
        """Write a variable's value."""
        cache = frame.caches[self.cache]
        value = frame.get(self._source)
        self.keep_views(frame, cache)
        cache.write(self.indices(frame), value)


class Reset(CacheInstruction):
    """``cache.reset``."""

    def run(self, frame: Frame) -> None:
        """Go back to the first value."""
        cache = frame.caches[self.cache]
        self.keep_views(frame, cache)
        cache.reset(self.indices(frame))


class Add(CacheInstruction):
    """``cache.increment`` and ``cache.decrement``: integers wrap in their width, floats add."""

    def __init__(
        self,
        node: Node,
        block: str,
        cache: int,
        readers: Sequence[int],
        dtype: str,
        amount: int,
    ) -> None:
        super().__init__(node, block, cache, lambda _: (), readers)
        self._dtype = DTYPES[dtype]
        self._amount = amount

    def run(self, frame: Frame) -> None:
        """Add to the one number."""
        cache = frame.caches[self.cache]
        self.keep_views(frame, cache)
        cache.write((), self._sum(cache.read()))

    def _sum(self, value: np.ndarray) -> np.ndarray:
        name, _, storage, bits, kind, low, _ = self._dtype
        if kind == "float":
            if name == "f64":
                return value + self._amount
            wide = to_float32(name, value) + storage.type(0) + self._amount
            return (
                wide if name == "f32" else from_float32(name, wide)
            )
        wrapped = (int(value) + self._amount - int(low)) % (1 << bits) + int(low)
        return _as_array(wrapped, storage)


def _as_array(value: int, storage: np.dtype) -> np.ndarray:
    import numpy as np

    return np.array(value, storage)
