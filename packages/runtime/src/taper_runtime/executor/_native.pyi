"""Types of the extension; see _native.pyx."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from taper_runtime.ops.opdef import OpDef
from taper_runtime.plan.plan import TensorSpec

Operand = tuple[str, tuple[int, ...], tuple[int, ...]]  # dtype, shape, strides in elements
Place = tuple[int, int, int]  # kind, index, byte offset

ARENA: int
CONSTANT: int
BOUND: int

def available_isas() -> list[str]: ...
def active_isa() -> str: ...
def cpu_count() -> int: ...
def cache_bytes(level: int) -> int: ...

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
    op: OpDef, attrs: Mapping[str, Any], inputs: Sequence[Operand], output: Operand
) -> PreparedNode | None: ...

class Program:
    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        arena_bytes: int,
        constants: Sequence[np.ndarray],
        workers: int,
    ) -> None: ...
    def add_native(
        self,
        node: PreparedNode,
        operands: Sequence[Place],
        scratch: tuple[int, int],
        label: str,
        workers: int,
    ) -> None: ...
    def add_numpy(
        self,
        evaluate: Callable[[Sequence[np.ndarray]], np.ndarray],
        operands: Sequence[tuple[Any, ...]],
    ) -> None: ...
    def run(
        self, arrays: Sequence[np.ndarray], out: Sequence[np.ndarray | None] | None = None
    ) -> list[np.ndarray]: ...
    def profile(
        self, arrays: Sequence[np.ndarray]
    ) -> tuple[list[np.ndarray], list[list[tuple[int, int]]]]: ...
