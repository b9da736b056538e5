"""Run plans node by node, for looking inside: every root has memory of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from taper_runtime.dtypes import DTYPES
from taper_runtime.executor import _native
from taper_runtime.executor.executor import Executor, definition, operand, refuse
from taper_runtime.executor.inputs import bind_inputs, check_input, check_output
from taper_runtime.plan.plan import Plan, PlanNode
from taper_runtime.plan.specialize import specialize

#: Computes a node: fills the output array (last) from the inputs.
Step = Callable[[Sequence[np.ndarray], np.ndarray], None]
#: Makes the step for a node, or None where this backend does not serve it.
Backend = Callable[[Plan, PlanNode], Step | None]


def native_backend(plan: Plan, node: PlanNode) -> Step | None:
    """The kernels the compiled executor runs too."""
    op, attrs = definition(node)
    prepared = _native.prepare(
        op, attrs, [operand(plan, name) for name in node.inputs], operand(plan, node.output)
    )
    return None if prepared is None else prepared.run


def numpy_backend(plan: Plan, node: PlanNode) -> Step:
    """The op's own evaluator: serves every node."""
    op, attrs = definition(node)
    types = [plan.tensors[name].type for name in (*node.inputs, node.output)]

    def step(inputs: Sequence[np.ndarray], output: np.ndarray) -> None:
        op.compute(inputs, attrs, [output], types)

    return step


class InterpretedExecutor(Executor):
    """Node by node over a chain of backends; the first that serves a node computes it.

    Every intermediate stays readable until the run ends (see :meth:`trace`): for debugging, and for
    ablation with another ``backends`` chain. A plan with size variables is made static anew for
    the sizes of each run.
    """

    #: In order of preference.
    backends: tuple[Backend, ...] = (native_backend, numpy_backend)

    def __init__(self, plan: Plan, steps: list[tuple[PlanNode, Step]], strict_native: bool) -> None:
        self._plan = plan
        self._steps = steps
        self._strict_native = strict_native

    @classmethod
    def compile(
        cls, plan: Plan, *, strict_native: bool = False, threads: int = 1
    ) -> InterpretedExecutor:
        """See :meth:`Executor.compile`; every node runs on the caller's thread."""
        steps = []
        fallbacks = []
        for node in () if plan.sizes else filter(plan.is_executed, plan.nodes):
            made = ((backend, backend(plan, node)) for backend in cls.backends)
            backend, step = next((b, s) for b, s in made if s is not None)
            steps.append((node, step))
            if backend is not native_backend:
                fallbacks.append(node)
        if strict_native:
            refuse(plan, fallbacks)
        return cls(plan, steps, strict_native)

    def _for_sizes(self, inputs: Sequence[np.ndarray]) -> InterpretedExecutor:
        """Return the executor for the sizes of these inputs."""
        plan = specialize(self._plan, bind_inputs(self._plan, inputs))
        return self.compile(plan, strict_native=self._strict_native)

    def run(
        self, inputs: Sequence[np.ndarray], out: Sequence[np.ndarray | None] | None = None
    ) -> list[np.ndarray]:
        """See :meth:`Executor.run`."""
        if self._plan.sizes:
            return self._for_sizes(inputs).run(inputs, out)
        plan = self._plan
        memory = self._bind(inputs)
        given: dict[str, np.ndarray] = {}
        for name, array in zip(plan.writes, out or (), strict=out is not None):
            if array is not None and name not in given:
                given[name] = check_output(plan.tensors[name], array, [*inputs, *given.values()])
                memory[name] = _as_bytes(array)
        for _ in self._execute(memory):
            pass
        return [given[n] if n in given else self._array(memory, n) for n in plan.writes]

    def trace(self, inputs: Sequence[np.ndarray]) -> Iterator[tuple[PlanNode, np.ndarray]]:
        """Run, yielding each executed node with its output before the next one runs.

        The array is the live memory: a later node may compute in place over it.
        """
        if self._plan.sizes:
            return self._for_sizes(inputs).trace(inputs)
        return self._execute(self._bind(inputs))

    def _bind(self, inputs: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Memory of every root, as bytes."""
        plan = self._plan
        memory = {name: _as_bytes(array) for name, array in plan.constants.items()}
        for name, array in zip(plan.reads, inputs, strict=True):
            memory[name] = _as_bytes(check_input(plan.tensors[name], array))
        for name, placement in plan.placements.items():
            if placement.root == name and name not in memory:
                memory[name] = np.empty(plan.tensors[name].nbytes, np.uint8)
        return memory

    def _execute(self, memory: dict[str, np.ndarray]) -> Iterator[tuple[PlanNode, np.ndarray]]:
        for node, step in self._steps:
            output = self._array(memory, node.output)
            step([self._array(memory, name) for name in node.inputs], output)
            yield node, output

    def _array(self, memory: dict[str, np.ndarray], name: str) -> np.ndarray:
        dtype, shape, _ = self._plan.tensors[name].storage
        placement = self._plan.placements[name]
        storage = DTYPES[dtype].storage
        return np.ndarray(
            shape,
            storage,
            memory[placement.root],
            placement.offset,
            [stride * storage.itemsize for stride in placement.strides],
        )


def _as_bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)
