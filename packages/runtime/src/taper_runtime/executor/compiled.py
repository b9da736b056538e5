"""Run plans for serving: every pointer is resolved once, and a run is one call into C."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from taper_runtime.executor._program import Weights
from taper_runtime.executor.executor import DEFAULT_SETTINGS, PlanExecutor, Settings, Spans
from taper_runtime.executor.program import constant_names, make_runner
from taper_runtime.executor.sites import Site, sites
from taper_runtime.extend.servers import NumpyServer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from taper_runtime.executor._run import Runner
    from taper_runtime.executor._stop import Stop
    from taper_runtime.executor.memory_layout import MemoryLayout
    from taper_runtime.extend.providers import Dispatch
    from taper_runtime.extend.servers import Server
    from taper_runtime.native.variants import KernelName
    from taper_runtime.plan.plan import Plan, PlanNode


class CompiledExecutor(PlanExecutor):
    """Runs a plan as an array of steps with resolved pointers, in one call without the GIL.

    A node that no native kernel serves becomes a step that calls numpy. If the plan has size
    variables, the array is made for each set of sizes that runs have, and kept for the last few.
    """

    def __init__(
        self,
        runner: Runner,
        plan: Plan,
        dispatch: Dispatch,
        repeated: list[int] | None,
        constants: list[str],
    ) -> None:
        self._runner = runner
        self._plan, self._dispatch = plan, dispatch
        self._constants = constants
        # The layout that was asked for last, and the arena that it is of.
        self._layout: tuple[object, MemoryLayout] | None = None
        # Where each of the plan's outputs stands among the program's, if one stands there twice.
        self._repeated = repeated
        if repeated is None:  # a call less: a twentieth of what a small run takes
            self.run = runner.run  # type: ignore[method-assign]

    @classmethod
    def compile(cls, plan: Plan, settings: Settings = DEFAULT_SETTINGS) -> CompiledExecutor:
        """See :meth:`PlanExecutor.compile`."""
        if plan.states:
            from taper_runtime.executor.rollback import with_saves

            plan = with_saves(plan)
        runner = make_runner(plan, settings)
        if not plan.sizes:
            runner.check_memory()
        outputs = list(dict.fromkeys(plan.writes))
        repeated = None
        if len(outputs) < len(plan.writes):
            places = {name: place for place, name in enumerate(outputs)}
            repeated = [places[name] for name in plan.writes]
        without = plan.without_values()
        return cls(runner, without, settings.dispatch, repeated, constant_names(plan))

    def with_constants(
        self, constants: Mapping[str, np.ndarray], generation: int
    ) -> CompiledExecutor:
        """See :meth:`PlanExecutor.with_constants`; no node is prepared again."""
        weights = Weights([constants[name] for name in self._constants], generation)
        runner = self._runner.with_weights(weights)
        parts = self._plan, self._dispatch, self._repeated, self._constants
        return CompiledExecutor(runner, *parts)

    @cached_property
    def _sites(self) -> list[Site]:
        return sites(self._plan, self._dispatch)

    @property
    def steps(self) -> list[tuple[Site, KernelName]]:
        """See :attr:`PlanExecutor.steps`."""
        from taper_runtime.native.variants import KernelName  # which few sessions need

        named = zip(self._runner.kernels(), self._runner.selections(), strict=True)
        kernels = [
            KernelName(name or "numpy", each.variant if each else None) for name, each in named
        ]
        return [(site, kernels[site.step]) for site in self._sites]

    @property
    def sized_sites(self) -> list[Site] | None:
        """See :attr:`PlanExecutor.sized_sites`."""
        from taper_runtime.plan.binding import bind_sizes
        from taper_runtime.plan.specialize import specialize

        shapes = dict(zip(self._plan.reads, self._runner.shapes(), strict=True))
        values = bind_sizes(self._plan, shapes)
        if self._plan.sizes.keys() - values.keys():
            return None  # sizes that no input has
        found = sites(specialize(self._plan, values), self._dispatch)
        same = [each.node.output for each in found] == [each.node.output for each in self._sites]
        return found if same else None

    @property
    def servers(self) -> list[Server]:
        """See :attr:`PlanExecutor.servers`."""
        return [each for each in self._runner.servers() if not isinstance(each, NumpyServer)]

    def layout(self) -> MemoryLayout:
        """See :meth:`PlanExecutor.layout`."""
        from taper_runtime.executor.memory_layout import layout_of  # which few sessions need

        arena = self._runner.arena()
        if self._layout is None or self._layout[0] != arena:  # of other sizes
            self._layout = arena, layout_of(self._plan, arena)
        layout = self._layout[1]
        return layout._replace(pieces=[*layout.pieces], shared={**layout.shared})

    @property
    def weights_version(self) -> int:
        """See :meth:`PlanExecutor.weights_version`."""
        return self._runner.weights_version

    @property
    def served(self) -> list[tuple[PlanNode, str]]:
        """See :attr:`PlanExecutor.served`."""
        kinds = [each.kind or "" if each else "native" for each in self._runner.selections()]
        return [(site.node, kinds[site.step]) for site in self._sites]

    def run(
        self,
        inputs: Sequence[np.ndarray],
        out: Sequence[np.ndarray | None] | None = None,
        sizes: Sequence[int] | None = None,
        stop: Stop | None = None,
    ) -> list[np.ndarray]:
        """See :meth:`PlanExecutor.run`."""
        if self._repeated is None:
            return self._runner.run(inputs, out, sizes, stop)
        outputs = self._runner.run(inputs, self._distinct(out), sizes, stop)
        return [outputs[i] for i in self._repeated]

    def _distinct(
        self, out: Sequence[np.ndarray | None] | None
    ) -> Sequence[np.ndarray | None] | None:
        """Return ``out`` without the second array of an output that occurs twice."""
        if out is None or self._repeated is None:
            return out
        first: dict[int, np.ndarray | None] = {}
        for place, array in zip(self._repeated, out, strict=False):
            first.setdefault(place, array)
        return list(first.values())

    def profile(
        self,
        inputs: Sequence[np.ndarray],
        out: Sequence[np.ndarray | None] | None = None,
        sizes: Sequence[int] | None = None,
        stop: Stop | None = None,
    ) -> tuple[list[np.ndarray], Spans]:
        """See :meth:`PlanExecutor.profile`."""
        outputs, spans = self._runner.profile(inputs, self._distinct(out), sizes, stop)
        if self._repeated is not None:
            outputs = [outputs[i] for i in self._repeated]
        return outputs, [spans[site.step] for site in self._sites]
