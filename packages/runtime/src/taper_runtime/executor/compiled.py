"""The executor for serving: every pointer resolved once, one call into C per run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.executor import _native
from taper_runtime.executor.executor import Executor, definition, node_cost, operand, refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from taper_runtime.plan.plan import Plan, PlanNode


class CompiledExecutor(Executor):
    """Nodes as an array of steps with resolved pointers; ``run`` is one call without the GIL.

    Nodes without a native kernel split the array: numpy computes them between two calls.
    """

    def __init__(
        self,
        program: _native.Program,
        steps: list[tuple[PlanNode, str]],
        repeated: list[int] | None,
    ) -> None:
        self._program = program
        # Where each of the plan's outputs stands among the program's, if one stands there twice.
        self._repeated = repeated
        #: Executed nodes in order, each with its kernel's name, "numpy" where there is none.
        self.steps = steps

    @classmethod
    def compile(
        cls, plan: Plan, *, strict_native: bool = False, threads: int = 1
    ) -> CompiledExecutor:
        """See :meth:`Executor.compile`."""
        constants = {name: i for i, name in enumerate(plan.constants)}
        outputs = list(dict.fromkeys(plan.outputs))
        bound = {name: i for i, name in enumerate((*plan.inputs, *outputs))}
        program = _native.Program(
            [plan.tensors[name] for name in plan.inputs],
            [plan.tensors[name] for name in outputs],
            plan.arena_bytes,
            list(plan.constants.values()),
            threads,
        )

        def place(name: str) -> tuple[int, int, int]:
            """(kind, index, byte offset) of a tensor's first element."""
            placement = plan.placements[name]
            root = plan.placements[placement.root]
            if placement.root in bound:
                return _native.BOUND, bound[placement.root], placement.offset
            if placement.root in constants:
                return _native.CONSTANT, constants[placement.root], placement.offset
            inside = 0 if placement.root == name else placement.offset
            return _native.ARENA, 0, root.offset + inside

        steps: list[tuple[PlanNode, str]] = []
        fallbacks: list[PlanNode] = []
        for node in plan.nodes:
            if not plan.is_executed(node):
                continue
            op, attrs = definition(node)
            names = (*node.inputs, node.output)
            types = [operand(plan, name) for name in names]
            prepared = _native.prepare(op, attrs, types[:-1], types[-1])
            if prepared is not None:
                steps.append((node, prepared.kernel_name))
                label = f"{node.output} ({node.op})"
                workers = min(threads, prepared.tasks, _workers_worth(plan, node))
                places = [place(n) for n in names]
                program.add_native(prepared, places, node.scratch, label, workers)
            else:
                steps.append((node, "numpy"))
                fallbacks.append(node)
                evaluate = _bind_attrs(op.evaluate, attrs)
                operands = [(*place(n), *t) for n, t in zip(names, types, strict=True)]
                program.add_numpy(evaluate, operands)
        if strict_native:
            refuse(fallbacks)
        if len(outputs) == len(plan.outputs):
            return cls(program, steps, None)
        return cls(program, steps, [outputs.index(name) for name in plan.outputs])

    def run(
        self, inputs: Sequence[np.ndarray], out: Sequence[np.ndarray | None] | None = None
    ) -> list[np.ndarray]:
        """See :meth:`Executor.run`."""
        if out is not None and self._repeated is not None:
            out = [out[self._repeated.index(i)] for i in range(max(self._repeated) + 1)]
        outputs = self._program.run(inputs, out)
        return outputs if self._repeated is None else [outputs[i] for i in self._repeated]

    def profile(
        self, inputs: Sequence[np.ndarray]
    ) -> tuple[list[np.ndarray], list[list[tuple[int, int]]]]:
        """Run once; returns the outputs, and when each worker was at each of :attr:`steps`.

        That is a list per step, in it per worker the begin and end in nanoseconds of the monotonic
        clock, zeros where the worker had no part in the step.
        """
        return self._program.profile(inputs)


#: What one core does in a nanosecond, roughly: enough to tell a small node from a large one.
_FLOPS_PER_NS, _BYTES_PER_NS = 60, 10
#: Work that pays for waking one more worker and meeting it again, in nanoseconds.
_WORTH_NS = 8000


def _workers_worth(plan: Plan, node: PlanNode) -> int:
    """How many threads a node is worth, at least one."""
    flops, nbytes = node_cost(plan, node)
    return max(1, int(max(flops / _FLOPS_PER_NS, nbytes / _BYTES_PER_NS) / _WORTH_NS))


def _bind_attrs(
    evaluate: Callable[..., np.ndarray], attrs: dict[str, object]
) -> Callable[[Sequence[np.ndarray]], np.ndarray]:
    return lambda arrays: evaluate(arrays, attrs)
