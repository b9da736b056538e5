"""Effects of a plan on memory, found by running it: every byte has the mark of its element."""

import numpy as np

from taper_runtime.base.dtypes import DTYPES
from taper_runtime.ops import REGISTRY
from taper_runtime.plan.plan import Plan

_GARBAGE = -1


class MemoryFault(Exception):
    """The plan leaves its memory, or reads what something else has overwritten."""


class Machine:
    """Memory of one run. An element is a number; its bytes are marked number * 8 + position."""

    def __init__(self, plan: Plan, layout: tuple[dict[str, int], int] | None = None) -> None:
        """``layout``: where each root lies in the arena, and its bytes; else each has its own."""
        self.plan = plan
        self.memory = {
            name: np.full(spec.nbytes, _GARBAGE)
            for name, spec in plan.tensors.items()
            if plan.placements[name].root == name
        }
        if layout is not None:
            offsets, nbytes = layout
            arena = np.full(nbytes, _GARBAGE)
            for name, offset in offsets.items():
                self.memory[name] = arena[offset : offset + plan.tensors[name].nbytes]
        self.values: dict[str, np.ndarray] = {}
        self.count = 0

    def cells(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """The memory a tensor lies in, and the index there of each byte of each element."""
        spec, placement = self.plan.tensors[name], self.plan.placements[name]
        itemsize = DTYPES[spec.dtype].size
        index = np.zeros(spec.shape, np.int64)
        for axis, (size, stride) in enumerate(zip(spec.shape, placement.strides, strict=True)):
            steps = np.arange(size) * stride * itemsize
            index += steps.reshape([-1 if a == axis else 1 for a in range(len(spec.shape))])
        index = index[..., None] + np.arange(itemsize) + placement.offset
        room = self.plan.tensors[placement.root].nbytes
        if index.size and not (index.min() >= 0 and index.max() < room):
            raise MemoryFault(f"{name} leaves {placement.root}")
        return self.memory[placement.root], index

    def root(self, name: str) -> str:
        return self.plan.placements[name].root

    def marks(self, name: str) -> np.ndarray:
        itemsize = DTYPES[self.plan.tensors[name].dtype].size
        return self.values[name][..., None] * 8 + np.arange(itemsize)

    def write(self, name: str) -> None:
        spec = self.plan.tensors[name]
        size = spec.type.size
        self.values[name] = np.arange(self.count, self.count + size).reshape(spec.shape)
        self.count += size
        memory, index = self.cells(name)
        memory[index] = self.marks(name)

    def read(self, name: str) -> None:
        memory, index = self.cells(name)
        if not np.array_equal(memory[index], self.marks(name)):
            raise MemoryFault(f"{name} is overwritten before it is read")

    def run(self) -> None:
        plan = self.plan
        for name, spec in plan.tensors.items():
            if spec.role in ("input", "constant"):
                self.write(name)
        for node in plan.nodes:
            for name in node.inputs:
                self.read(name)
            op = REGISTRY[node.op]
            if not plan.is_executed(node):
                attrs = op.complete(node.attrs)
                inputs = [self.values[name] for name in node.inputs]
                self.values[node.output] = op.evaluate(inputs, attrs)
                self.read(node.output)
                continue
            memory, index = self.cells(node.output)
            for position, name in enumerate(node.inputs):
                cells, where = self.cells(name)
                in_place = position in op.inplace and np.array_equal(where, index)
                if not (in_place and self.root(name) == self.root(node.output)):
                    self._check_apart(index, memory, where, cells)
            self.write(node.output)
        for name, spec in plan.tensors.items():
            if spec.role != "intermediate":
                self.read(name)

    def _check_apart(
        self, index: np.ndarray, memory: np.ndarray, other: np.ndarray, other_memory: np.ndarray
    ) -> None:
        if memory is other_memory and np.intersect1d(index, other).size:
            raise MemoryFault("a node writes over what it still needs")
