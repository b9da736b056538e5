"""Types of the extension; see _native.pyx."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from taper_runtime.ops.opdef import OpDef, TensorType
from taper_runtime.plan.liveness import Block
from taper_runtime.plan.plan import TensorSpec

#: dtype, shape, strides in elements
Type = tuple[TensorType, tuple[int, ...]]
#: kind, index, byte offset; dtype, shape, strides in elements
Operand = tuple[int, int, int, TensorType, tuple[int, ...]]

ARENA: int
CONSTANT: int
BOUND: int

def available_isas() -> list[str]: ...
def active_isa() -> str: ...
def cpu_count() -> int: ...
def cache_bytes(level: int) -> int: ...
def memory_bytes() -> int: ...

class Buffer:
    def __init__(self, size: int) -> None: ...
    @property
    def size(self) -> int: ...

def measure(
    isa: str, probe: str, workers: int, memory: Buffer, each: int, passes: int
) -> tuple[float, int] | None: ...
def list_kernels() -> list[tuple[str, str, dict[str, str]]]: ...

class PreparedNode:
    @property
    def kernel_name(self) -> str: ...
    @property
    def tasks(self) -> int: ...
    @property
    def scratch_bytes(self) -> int: ...
    def run(self, inputs: Sequence[np.ndarray], output: np.ndarray) -> None: ...

def prepare(
    op: OpDef, attrs: Mapping[str, Any], inputs: Sequence[Type], output: Type
) -> PreparedNode | None: ...
def assign_offsets(blocks: Sequence[Block]) -> tuple[list[int], int]: ...

class Program:
    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        constants: Sequence[np.ndarray],
        blocks: Sequence[Block],
        offsets: Sequence[int],
        arena_bytes: int,
        workers: int,
        sizes: Sequence[str],
        bind: Callable[[Sequence[np.ndarray]], Sequence[int]],
        empty: Callable[[Sequence[int]], Program],
    ) -> None: ...
    def add(
        self,
        op: OpDef,
        attrs: dict[str, Any],
        operands: Sequence[Operand],
        scratch: tuple[int, int],
        label: str,
        threads: int,
    ) -> None: ...
    def finish(self, sizes: Sequence[int], tensor_bytes: Sequence[int]) -> None: ...
    def kernels(self) -> list[str | None]: ...
    def run(
        self, arrays: Sequence[np.ndarray], out: Sequence[np.ndarray | None] | None = None
    ) -> list[np.ndarray]: ...
    def profile(
        self, arrays: Sequence[np.ndarray], out: Sequence[np.ndarray | None] | None = None
    ) -> tuple[list[np.ndarray], list[list[tuple[int, int]]]]: ...
