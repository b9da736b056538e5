"""Types of the extension; see _native.pyx."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from taper_runtime.executor.program import Variables
from taper_runtime.ops.opdef import OpDef, TensorType
from taper_runtime.plan.liveness import Block
from taper_runtime.plan.plan import TensorSpec

#: dtype, shape, strides in elements
Type = tuple[TensorType, tuple[int, ...]]
ARENA: int
CONSTANT: int
EXTERNAL: int

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
def kernel_signatures(op: str) -> list[str]: ...
def list_kernels() -> list[tuple[str, str, dict[str, str]]]: ...

class PreparedNode:
    @property
    def kernel_name(self) -> str: ...
    @property
    def tasks(self) -> int: ...
    @property
    def scratch_bytes(self) -> int: ...
    def run(self, inputs: Sequence[np.ndarray | None], outputs: Sequence[np.ndarray]) -> None: ...

def prepare(
    op: OpDef, attrs: Mapping[str, Any], inputs: Sequence[Type | None], outputs: Sequence[Type]
) -> PreparedNode | None: ...
def assign_offsets(blocks: Sequence[Block]) -> tuple[list[int], int]: ...

class Operand:
    def __init__(
        self, kind: int, index: int, offset: int, type: TensorType, strides: tuple[int, ...]
    ) -> None: ...

class Program:
    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        constants: Sequence[np.ndarray],
        blocks: Sequence[Block],
        workers: int,
        variables: Variables,
    ) -> None: ...
    def add(
        self,
        op: OpDef,
        attrs: dict[str, Any],
        operands: list[Operand],
        label: str,
        threads: int,
    ) -> None: ...
    def add_restore(
        self, saved_by: int, op: OpDef, attrs: dict[str, Any], operands: list[Operand]
    ) -> None: ...
    def finish(self, sizes: Sequence[int], tensor_bytes: Sequence[int]) -> None: ...
    def kernels(self) -> list[str | None]: ...
    def arena(self) -> tuple[list[tuple[int, int, int]], list[int], int]: ...
    def run(
        self,
        arrays: Sequence[np.ndarray],
        out: Sequence[np.ndarray | None] | None = None,
        sizes: Sequence[int] | None = None,
    ) -> list[np.ndarray]: ...
    def profile(
        self,
        arrays: Sequence[np.ndarray],
        out: Sequence[np.ndarray | None] | None = None,
        sizes: Sequence[int] | None = None,
    ) -> tuple[list[np.ndarray], list[list[tuple[int, int]]]]: ...
