"""Run plans for serving: every pointer resolved once, one call into C per run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.executor.executor import Executor, refuse
from taper_runtime.executor.program import all_nodes, executed_nodes, make_runner
from taper_runtime.executor.rollback import with_saves

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from taper_runtime.executor._frames import Runner
    from taper_runtime.plan.plan import Plan, PlanNode


class CompiledExecutor(Executor):
    """Nodes as an array of steps with resolved pointers; ``run`` is one call without the GIL.

    What no native kernel serves is a step that calls numpy. Where the plan has size variables, the
    array is made for each set of sizes it meets, and kept for the last few.
    """

    def __init__(
        self,
        runner: Runner,
        nodes: list[PlanNode],
        repeated: list[int] | None,
    ) -> None:
        self._runner = runner
        self._nodes = nodes
        # Where each of the plan's outputs stands among the program's, if one stands there twice.
        self._repeated = repeated

    @classmethod
    def compile(
        cls, plan: Plan, *, strict_native: bool = False, threads: int = 1
    ) -> CompiledExecutor:
        """See :meth:`Executor.compile`."""
        plan = with_saves(plan)
        runner = make_runner(plan, threads)
        nodes = executed_nodes(plan)
        if strict_native:
            kernels = runner.kernels()
            refuse(
                plan,
                [n for n, kernel in zip(all_nodes(plan), kernels, strict=True) if kernel is None],
            )
        outputs = list(dict.fromkeys(plan.writes))
        if len(outputs) == len(plan.writes):
            return cls(runner, nodes, None)
        return cls(runner, nodes, [outputs.index(name) for name in plan.writes])

    @property
    def steps(self) -> list[tuple[PlanNode, str]]:
        """Executed nodes in order, each with its kernel's name, "numpy" where there is none.

        Those in blocks are left out: a node of control flow stands for them.
        Of the sizes of the last run, where they vary.
        """
        kernels = self._runner.kernels()  # those in blocks come last
        return [(n, kernel or "numpy") for n, kernel in zip(self._nodes, kernels, strict=False)]

    def run(
        self,
        inputs: Sequence[np.ndarray],
        out: Sequence[np.ndarray | None] | None = None,
        sizes: Sequence[int] | None = None,
    ) -> list[np.ndarray]:
        """See :meth:`Executor.run`."""
        if self._repeated is None:
            return self._runner.run(inputs, out, sizes)
        outputs = self._runner.run(inputs, self._distinct(out), sizes)
        return [outputs[i] for i in self._repeated]

    def _distinct(
        self, out: Sequence[np.ndarray | None] | None
    ) -> Sequence[np.ndarray | None] | None:
        """Return ``out`` without the second array of an output that stands twice."""
        if out is None or self._repeated is None:
            return out
        return [out[self._repeated.index(i)] for i in range(max(self._repeated) + 1)]

    def profile(
        self,
        inputs: Sequence[np.ndarray],
        out: Sequence[np.ndarray | None] | None = None,
        sizes: Sequence[int] | None = None,
    ) -> tuple[list[np.ndarray], list[list[tuple[int, int]]]]:
        """Run once as :meth:`run`; returns the outputs, and when workers were at :attr:`steps`.

        That is a list per step, in it per worker the begin and end in nanoseconds of the monotonic
        clock, zeros where the worker had no part in the step.
        """
        outputs, spans = self._runner.profile(inputs, self._distinct(out), sizes)
        if self._repeated is not None:
            outputs = [outputs[i] for i in self._repeated]
        return outputs, spans[: len(self._nodes)]
