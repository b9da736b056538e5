"""Run plans node by node, for looking inside: every root has memory of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from taper_runtime.dtypes import DTYPES
from taper_runtime.errors import InputError
from taper_runtime.executor import _kernels
from taper_runtime.executor._pool import FramePool, Lease, Stop
from taper_runtime.executor.executor import Executor, definition, input_types, operand, refuse
from taper_runtime.executor.inputs import bind_inputs, check_input, check_output
from taper_runtime.ops.opdef import BlockFunction
from taper_runtime.plan.plan import Block, Plan, PlanNode
from taper_runtime.plan.specialize import specialize

#: Computes a node: fills the output arrays from the inputs, None where one is absent.
Step = Callable[[Sequence[np.ndarray | None], Sequence[np.ndarray]], None]
#: Makes the step for a node, or None where this backend does not serve it.
Backend = Callable[[Plan, PlanNode], Step | None]


def native_backend(plan: Plan, node: PlanNode) -> Step | None:
    """The kernels the compiled executor runs too."""
    if node.blocks:
        return None
    op, attrs = definition(node)
    inputs = [None if name is None else operand(plan, name) for name in node.inputs]
    prepared = _kernels.prepare(op, attrs, inputs, [operand(plan, name) for name in node.outputs])
    return None if prepared is None else prepared.run


def numpy_backend(plan: Plan, node: PlanNode) -> Step:
    """The op's own evaluator: serves every node."""
    op, attrs = definition(node)
    types = [*input_types(plan, node), *(plan.tensors[name].type for name in node.outputs)]
    blocks = [block_function(plan, block) for block in node.blocks]

    def step(inputs: Sequence[np.ndarray | None], outputs: Sequence[np.ndarray]) -> None:
        op.compute(inputs, attrs, outputs, types, blocks)

    return step


def block_function(plan: Plan, block: Block) -> BlockFunction:
    """A block of a plan without size variables as its op's evaluator calls it."""
    return BlockFunction(block.signature, InterpretedExecutor.compile(plan.body(block)).run)


class InterpretedExecutor(Executor):
    """Node by node over a chain of backends; the first that serves a node computes it.

    Every intermediate stays readable until the run ends (see :meth:`trace`): for debugging, and for
    ablation with another ``backends`` chain. A plan with size variables is made static anew for
    the sizes of each run.
    """

    #: In order of preference.
    backends: tuple[Backend, ...] = (native_backend, numpy_backend)

    def __init__(
        self,
        plan: Plan,
        steps: list[tuple[PlanNode, Step]],
        strict_native: bool,
        pool: FramePool,
        n_fallbacks: int,
    ) -> None:
        self._plan = plan
        self._steps = steps
        self._strict_native = strict_native
        self._pool = pool
        self._n_fallbacks = n_fallbacks

    @property
    def fallback_nodes(self) -> int:
        """See :meth:`Executor.fallback_nodes`; 0 where sizes vary, as nothing is kept of a run."""
        return self._n_fallbacks

    @classmethod
    def compile(
        cls,
        plan: Plan,
        *,
        strict_native: bool = False,
        threads: int = 1,
        nodes_at_once: int = 1,
        pool: FramePool | None = None,
        share_memory: bool = True,
    ) -> InterpretedExecutor:
        """See :meth:`Executor.compile`.

        Every node runs on the caller's thread, no two roots share memory.
        """
        if nodes_at_once > 1:
            raise InputError(
                "execution_mode: expected sequential, for the interpreted executor runs one node "
                "after the other; got parallel"
            )
        steps = []
        fallbacks = []
        for node in () if plan.sizes else filter(plan.is_executed, plan.nodes):
            made = ((backend, backend(plan, node)) for backend in cls.backends)
            backend, step = next((b, s) for b, s in made if s is not None)
            steps.append((node, step))
            if backend is not native_backend:
                fallbacks.append(node)
        if strict_native:
            refuse([(plan, node) for node in fallbacks])
        return cls(plan, steps, strict_native, pool or FramePool(), len(fallbacks))

    def with_constants(
        self, constants: Mapping[str, np.ndarray], generation: int
    ) -> InterpretedExecutor:
        """See :meth:`Executor.with_constants`."""
        own = {name: constants.get(name, array) for name, array in self._plan.constants.items()}
        plan = self._plan._replace(constants=own)
        return self.compile(plan, strict_native=self._strict_native)

    def _for_sizes(
        self, inputs: Sequence[np.ndarray], sizes: Sequence[int] | None = None
    ) -> InterpretedExecutor:
        """Return the executor for these sizes, else for those of the inputs."""
        values = (
            bind_inputs(self._plan, inputs)
            if sizes is None
            else dict(zip(self._plan.sizes, sizes, strict=True))
        )
        plan = specialize(self._plan, values)
        return self.compile(plan, strict_native=self._strict_native)

    def run(
        self,
        inputs: Sequence[np.ndarray],
        out: Sequence[np.ndarray | None] | None = None,
        sizes: Sequence[int] | None = None,
        stop: Stop | None = None,
    ) -> list[np.ndarray]:
        """See :meth:`Executor.run`."""
        with Lease(self._pool, self, stop):
            if not self._plan.sizes:
                return self._run(inputs, out, stop)
            return self._for_sizes(inputs, sizes)._run(inputs, out, stop)

    def _run(
        self,
        inputs: Sequence[np.ndarray],
        out: Sequence[np.ndarray | None] | None,
        stop: Stop | None,
    ) -> list[np.ndarray]:
        plan = self._plan
        memory = self._bind(inputs)
        given: dict[str, np.ndarray] = {}
        for name, array in zip(plan.writes, out or (), strict=out is not None):
            if array is not None and name not in given:
                given[name] = check_output(plan.tensors[name], array, [*inputs, *given.values()])
                memory[name] = _as_bytes(array)
        kept = {
            name: memory[name].copy() for name in plan.states if plan.is_in_place(name)
        }  # in a run that fails, the states stay
        try:
            for _ in self._execute(memory):
                if stop is not None:
                    stop.check()
        except BaseException:
            for name, before in kept.items():
                memory[name][...] = before
            raise
        return [given[n] if n in given else self._array(memory, n) for n in plan.writes]

    def trace(self, inputs: Sequence[np.ndarray]) -> Iterator[tuple[PlanNode, list[np.ndarray]]]:
        """Run, yielding each executed node with its outputs before the next one runs.

        The arrays are the live memory: a later node may compute in place over them. What the nodes
        of blocks compute is not among them. The states among the inputs stay as they are.
        """
        if self._plan.sizes:
            return self._for_sizes(inputs).trace(inputs)
        return self._execute(self._bind([np.array(array) for array in inputs]))

    def _bind(self, inputs: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Memory of every root, as bytes."""
        plan = self._plan
        memory = {name: _as_bytes(array) for name, array in plan.constants.items()}
        written = {plan.placements[name].root for name in plan.outputs}
        for name, array in zip(plan.reads, inputs, strict=True):
            array = check_input(plan.tensors[name], array)
            memory[name] = _as_bytes(array.copy() if name in written else array)
        for name, placement in plan.placements.items():
            if placement.root == name and name not in memory:
                memory[name] = np.empty(plan.tensors[name].nbytes, np.uint8)
        return memory

    def _execute(
        self, memory: dict[str, np.ndarray]
    ) -> Iterator[tuple[PlanNode, list[np.ndarray]]]:
        for node, step in self._steps:
            outputs = [self._array(memory, name) for name in node.outputs]
            step([None if n is None else self._array(memory, n) for n in node.inputs], outputs)
            yield node, outputs

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
