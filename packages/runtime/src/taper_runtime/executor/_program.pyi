"""Types of the extension; see _program.pyx."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from taper_runtime.executor.program import Variables
from taper_runtime.extend.servers import Server
from taper_runtime.machine.choices import Choice
from taper_runtime.native._kernels import Kernel
from taper_runtime.ops.opdef import TensorType
from taper_runtime.plan.liveness import LiveRange
from taper_runtime.plan.plan import TensorSpec

ARENA: int
CONSTANT: int
EXTERNAL: int
BRANCH: int
LOOP: int
SCAN: int

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
        *,
        predicate: Operand | None = None,
        trips: int = 0,
        enter: Sequence[Copy] = (),
        next: Sequence[Copy] = (),
    ) -> None: ...

class Body:
    def __init__(self, first: int, count: int, roots: Iterable[LiveRange]) -> None: ...

class Step:
    def __init__(
        self,
        op: Any,
        attrs: dict[str, Any],
        inputs: list[Operand | None],
        outputs: list[Operand],
        *,
        label: str,
        threads: int = 1,
        kernels: Sequence[Kernel | str | None] = (),
        server: Server | None = None,
        control: Control | None = None,
        choice: Choice | None = None,
    ) -> None: ...

class Weights:
    def __init__(self, arrays: Sequence[np.ndarray], generation: int = 0) -> None: ...
    @property
    def generation(self) -> int: ...

class Precedence:
    def __init__(self, before: Sequence[int]) -> None: ...

def assign_offsets(
    ranges: Sequence[LiveRange], precedence: Precedence | None = None
) -> tuple[list[int], int]: ...

class StepOrder:
    def __init__(
        self, producers: Sequence[Sequence[int]], before: Sequence[int], leaders: int
    ) -> None: ...

class Program:
    def __init__(
        self,
        *,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        n_constants: int,
        steps: list[Step],
        bodies: list[Body],
        restores: list[tuple[int, Step]],
        threads: int,
        short_threads: int,
        short_work: int,
        variables: Variables,
        tensor_bytes: Sequence[int],
        refuse: Callable[[list[int]], None],
        order: StepOrder | None = None,
        memory_budget: int = 0,
    ) -> None: ...
