"""Run plans node by node and compare each result with the op's definition, for debugging."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.errors import KernelError
from taper_runtime.executor.executor import Settings, input_types, output_types
from taper_runtime.executor.interpreted import InterpretedExecutor, Kept, NodeStep
from taper_runtime.extend.providers import NUMPY
from taper_runtime.extend.servers import label_of
from taper_runtime.plan.compare import describe, difference, readable, tolerance
from taper_runtime.plan.features import is_undefined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_runtime.plan.plan import Plan, PlanNode


class CheckedExecutor(InterpretedExecutor):
    """Interpreter that computes each node twice: by what serves it, and by its op's definition.

    A run ends with a :class:`KernelError` at the first node whose results differ by more than
    rounding. Both get the same inputs, so an error names the kernel that made it, not a later one.
    Calls without a definition are not compared.
    """

    @classmethod
    def make_step(
        cls, plan: Plan, node: PlanNode, settings: Settings, kept: Kept
    ) -> NodeStep | None:
        """See :meth:`InterpretedExecutor.make_step`."""
        step = super().make_step(plan, node, settings, kept)
        if step is None or step.kind == "numpy" or is_undefined(node):
            return step
        dispatch = settings.dispatch._replace(providers=(NUMPY,), delegates={})
        by_definition = Settings(dispatch=dispatch)
        reference = InterpretedExecutor.make_step(plan, node, by_definition, Kept({}))
        if reference is None:
            return step
        return step._replace(compute=_ComputedTwice(plan, step, reference))


class _ComputedTwice:
    """Function that computes a node twice and raises an error if the results differ."""

    def __init__(self, plan: Plan, step: NodeStep, reference: NodeStep) -> None:
        self._step, self._reference = step, reference
        self._inputs, self._outputs = input_types(plan, step.node), output_types(plan, step.node)
        types = [each for each in (*self._inputs, *self._outputs) if each is not None]
        self._tolerance = tolerance(types)
        self._rounds = any("float" in each.dtype for each in types)

    def __call__(self, inputs: Sequence[np.ndarray | None], outputs: Sequence[np.ndarray]) -> None:
        """Write the outputs as :data:`taper_runtime.extend.servers.Compute`."""
        # An output may lie in the memory of an input.
        before = [None if array is None else np.array(array) for array in inputs]
        self._step.compute(inputs, outputs)
        wanted = [np.empty_like(array) for array in outputs]
        self._reference.compute(before, wanted)
        for name, got, want in zip(self._step.node.outputs, outputs, wanted, strict=True):
            if not self._agree(got, want):
                raise KernelError(
                    f"{label_of(self._step.node)}: {name}, computed by {self._step.kernel}, "
                    f"differs from the op's definition: {describe(got, want, self._tolerance)}"
                )

    def _agree(self, got: np.ndarray, want: np.ndarray) -> bool:
        """Return whether two results differ by rounding alone.

        An integer that is computed of floats may be rounded to a neighbour, or be the place of the
        other one of two equal floats: one element in 1000 may differ, and one of fewer.
        """
        if got.dtype.kind in "iub" and readable(got) is got and self._rounds:
            return int(np.count_nonzero(got != want)) <= max(1, got.size // 1000)
        return difference(got, want).relative <= self._tolerance
