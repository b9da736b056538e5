"""Run plans for serving: every pointer resolved once, one call into C per run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.executor import _native
from taper_runtime.executor.executor import Executor, definition, node_work, operand, refuse
from taper_runtime.executor.inputs import bind_inputs
from taper_runtime.plan.binding import bind_sizes
from taper_runtime.plan.checks import counted_bytes
from taper_runtime.plan.liveness import Block, lifetimes
from taper_runtime.plan.specialize import specialize
from taper_runtime.sizes import nonempty

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from taper_runtime.plan.plan import Plan, PlanNode


class CompiledExecutor(Executor):
    """Nodes as an array of steps with resolved pointers; ``run`` is one call without the GIL.

    Nodes without a native kernel split the array: numpy computes them between two calls. Where the
    plan has size variables, that is done for each set of sizes it meets, and kept for the last few.
    """

    def __init__(
        self,
        program: _native.Program,
        nodes: list[PlanNode],
        repeated: list[int] | None,
    ) -> None:
        self._program = program
        self._nodes = nodes
        # Where each of the plan's outputs stands among the program's, if one stands there twice.
        self._repeated = repeated

    @classmethod
    def compile(
        cls, plan: Plan, *, strict_native: bool = False, threads: int = 1
    ) -> CompiledExecutor:
        """See :meth:`Executor.compile`."""
        constants = {n: i for i, n in enumerate(n for n in plan.constants if n not in plan.states)}
        outputs = list(dict.fromkeys(plan.writes))
        bound = {name: i for i, name in enumerate((*plan.reads, *outputs))}
        nodes = [node for node in plan.nodes if plan.is_executed(node)]
        blocks = arena_blocks(plan, nodes)
        index = {name: i for i, name in enumerate(blocks)}
        variables = list(plan.sizes)

        def bind(arrays: Sequence[np.ndarray]) -> list[int]:
            values = bind_inputs(plan, arrays)
            return [values[variable] for variable in variables]

        def empty(values: Sequence[int]) -> _native.Program:
            sizes = dict(zip(variables, values, strict=True))
            return cls.compile(specialize(plan, sizes), threads=threads)._program

        def place(name: str) -> tuple[int, int, int]:
            """(kind, index, byte offset) of a tensor's first element."""
            root, offset, _ = plan.placements[name]
            if root in bound:
                return _native.BOUND, bound[root], offset
            if root in constants:
                return _native.CONSTANT, constants[root], offset
            return _native.ARENA, index[root], 0 if root == name else offset

        program = _native.Program(
            [plan.tensors[name] for name in plan.reads],
            [plan.tensors[name] for name in outputs],
            [plan.constants[name] for name in constants],
            list(blocks.values()),
            [plan.placements[root].offset for root in blocks],
            plan.arena_bytes,
            threads,
            variables,
            bind,
            empty,
        )
        for node in nodes:
            op, attrs = definition(node)
            names = (*node.inputs, node.output)
            operands = [(*place(name), *operand(plan, name)) for name in names]
            count = _threads_worth(plan, node) if threads > 1 else 1
            label = f"{node.output} ({node.op})"
            program.add(op, attrs, operands, node.scratch, label, count)
        types = {spec.type for spec in plan.tensors.values()} if plan.sizes else ()
        program.finish(_example_sizes(plan), [counted_bytes(tensor) for tensor in types])
        if strict_native:
            kernels = program.kernels()
            refuse([node for node, kernel in zip(nodes, kernels, strict=True) if kernel is None])
        if len(outputs) == len(plan.writes):
            return cls(program, nodes, None)
        return cls(program, nodes, [outputs.index(name) for name in plan.writes])

    @property
    def steps(self) -> list[tuple[PlanNode, str]]:
        """Executed nodes in order, each with its kernel's name, "numpy" where there is none.

        Of the sizes of the last run, where they vary.
        """
        kernels = self._program.kernels()
        return [(n, kernel or "numpy") for n, kernel in zip(self._nodes, kernels, strict=True)]

    def run(
        self, inputs: Sequence[np.ndarray], out: Sequence[np.ndarray | None] | None = None
    ) -> list[np.ndarray]:
        """See :meth:`Executor.run`."""
        if self._repeated is None:
            return self._program.run(inputs, out)
        outputs = self._program.run(inputs, self._distinct(out))
        return [outputs[i] for i in self._repeated]

    def _distinct(
        self, out: Sequence[np.ndarray | None] | None
    ) -> Sequence[np.ndarray | None] | None:
        """Return ``out`` without the second array of an output that stands twice."""
        if out is None or self._repeated is None:
            return out
        return [out[self._repeated.index(i)] for i in range(max(self._repeated) + 1)]

    def profile(
        self, inputs: Sequence[np.ndarray], out: Sequence[np.ndarray | None] | None = None
    ) -> tuple[list[np.ndarray], list[list[tuple[int, int]]]]:
        """Run once as :meth:`run`; returns the outputs, and when workers were at :attr:`steps`.

        That is a list per step, in it per worker the begin and end in nanoseconds of the monotonic
        clock, zeros where the worker had no part in the step.
        """
        outputs, spans = self._program.profile(inputs, self._distinct(out))
        if self._repeated is not None:
            outputs = [outputs[i] for i in self._repeated]
        return outputs, spans


def _threads_worth(plan: Plan, node: PlanNode) -> int:
    from taper_runtime.machine.cost import threads_worth

    return threads_worth(node_work(plan, node))


def arena_blocks(plan: Plan, nodes: Sequence[PlanNode]) -> dict[str, Block]:
    """Return the memory of each root in the arena, and when ``nodes``, in order, need it."""
    roots = {
        name: root
        for name, (root, _, _) in plan.placements.items()
        if plan.tensors[root].role == "intermediate"
    }
    return {
        root: Block(*life, plan.tensors[root].nbytes)
        for root, life in lifetimes(nodes, roots).items()
    }


def _example_sizes(plan: Plan) -> list[int]:
    """Values of the size variables to begin with: the samples', else the least; none is 0."""
    values = bind_sizes(plan, {name: array.shape for name, array in plan.samples.items()})
    return [values.get(name) or nonempty(*limits)[0] for name, limits in plan.sizes.items()]
