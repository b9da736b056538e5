"""Types of the extension; see _native.pyx."""

from collections.abc import Iterable, Mapping, Sequence
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
BRANCH: int
LOOP: int
SCAN: int

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
        self,
        kind: int,
        index: int,
        offset: int,
        type: TensorType,
        strides: tuple[int, ...],
        along: tuple[tuple[int, int], ...] = (),
    ) -> None: ...

class Copy:
    def __init__(self, target: Operand, source: Operand) -> None: ...

class Control:
    def __init__(
        self,
        kind: int,
        bodies: Sequence[int],
        predicate: Operand | None = None,
        trips: int = 0,
        enter: Sequence[Copy] = (),
        next: Sequence[Copy] = (),
    ) -> None: ...

class Body:
    def __init__(self, first: int, count: int, roots: Iterable[Block]) -> None: ...

class Step:
    def __init__(
        self,
        op: Any,
        attrs: dict[str, Any],
        inputs: list[Operand | None],
        outputs: list[Operand],
        label: str,
        threads: int,
        control: Control | None = None,
    ) -> None: ...

class Weights:
    def __init__(self, arrays: Sequence[np.ndarray]) -> None: ...

class Program:
    def __init__(
        self,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        weights: Weights,
        steps: list[Step],
        bodies: list[Body],
        restores: list[tuple[int, Step]],
        workers: int,
        variables: Variables,
        sizes: Sequence[int],
        tensor_bytes: Sequence[int],
    ) -> None: ...
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
    ) -> tuple[list[np.ndarray], list[list[tuple[int, int, int]]]]: ...
