"""Run plans in which nodes compute sizes: one segment after the other, as sizes become known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.base.errors import InputError
from taper_runtime.base.size_values import size_at
from taper_runtime.executor._pool import FramePool
from taper_runtime.executor.compiled import CompiledExecutor
from taper_runtime.executor.executor import DEFAULT_SETTINGS, PlanExecutor, Settings
from taper_runtime.executor.inputs import bind_inputs, check_measured
from taper_runtime.executor.memory_planner import MemoryPlanner, Slab
from taper_runtime.plan.segments import cut
from taper_runtime.plan.specialize import substitute

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taper_runtime.executor._stop import Stop
    from taper_runtime.executor.executor import Spans
    from taper_runtime.executor.sites import Site
    from taper_runtime.extend.servers import Server
    from taper_runtime.native.variants import KernelName
    from taper_runtime.plan.plan import Plan, PlanNode
    from taper_runtime.plan.segments import Segment


class SegmentedExecutor(PlanExecutor):
    """Runs a plan's segments, each of which is a plan with an executor of its own.

    Between two segments, the sizes that nodes have computed are read and checked. Tensors that
    cross from one segment to another lie in a slab that a planner has laid out, as do the arenas.
    """

    def __init__(
        self,
        plan: Plan,
        segments: list[Segment],
        executors: Sequence[PlanExecutor],
        planner: MemoryPlanner,
    ) -> None:
        self._plan = plan.without_values()
        self._segments = [s._replace(plan=s.plan.without_values()) for s in segments]
        self._executors = executors
        self._planner = planner
        self._reads, self._writes = plan.reads, plan.writes
        self._written = set(plan.writes)
        self._ends = [(each.plan.reads, each.plan.writes) for each in self._segments]

    @classmethod
    def compile(
        cls,
        plan: Plan,
        settings: Settings = DEFAULT_SETTINGS,
        base: type[PlanExecutor] = CompiledExecutor,
    ) -> SegmentedExecutor:
        """See :meth:`PlanExecutor.compile`; ``base`` compiles the segments."""
        segments = cut(plan)
        settings = settings._replace(pool=settings.pool or FramePool())
        executors = [base.compile(segment.plan, settings) for segment in segments]
        planner = MemoryPlanner(_lives(plan, segments), settings.planning)
        return cls(plan, segments, executors, planner)

    def with_constants(
        self, constants: Mapping[str, np.ndarray], generation: int
    ) -> SegmentedExecutor:
        """See :meth:`PlanExecutor.with_constants`."""
        executors = [each.with_constants(constants, generation) for each in self._executors]
        return SegmentedExecutor(self._plan, self._segments, executors, self._planner)

    @property
    def servers(self) -> list[Server]:
        """See :attr:`PlanExecutor.servers`."""
        return [each for executor in self._executors for each in executor.servers]

    @property
    def steps(self) -> list[tuple[Site, KernelName]]:
        """See :attr:`PlanExecutor.steps`."""
        return [step for executor in self._executors for step in executor.steps]

    @property
    def weights_version(self) -> int:
        """See :meth:`PlanExecutor.weights_version`."""
        return max((int(executor.weights_version) for executor in self._executors), default=0)

    def memory_planning(self) -> dict[str, Any]:
        """See :meth:`PlanExecutor.memory_planning`."""
        return self._planner.stats()

    @property
    def served(self) -> list[tuple[PlanNode, str]]:
        """See :attr:`PlanExecutor.served`."""
        return [each for executor in self._executors for each in executor.served]

    def run(
        self,
        inputs: Sequence[np.ndarray],
        out: Sequence[np.ndarray | None] | None = None,
        sizes: Sequence[int] | None = None,
        stop: Stop | None = None,
    ) -> list[np.ndarray]:
        """See :meth:`PlanExecutor.run`."""
        return self._run(inputs, out, stop, None)[0]

    def profile(
        self,
        inputs: Sequence[np.ndarray],
        out: Sequence[np.ndarray | None] | None = None,
        sizes: Sequence[int] | None = None,
        stop: Stop | None = None,
    ) -> tuple[list[np.ndarray], Spans]:
        """See :meth:`PlanExecutor.profile`."""
        spans: Spans = []
        return self._run(inputs, out, stop, spans)[0], spans

    def sizes(self, inputs: Sequence[np.ndarray]) -> dict[str, int]:
        """Run once; return the values of all size variables."""
        return self._run(inputs, None, None, None)[1]

    def _run(
        self,
        inputs: Sequence[np.ndarray],
        out: Sequence[np.ndarray | None] | None,
        stop: Stop | None,
        spans: Spans | None,
    ) -> tuple[list[np.ndarray], dict[str, int]]:
        """Run all segments; return the outputs and the values of the size variables."""
        plan = self._plan
        if len(inputs) != len(self._reads):
            raise InputError(f"expected {len(self._reads)} inputs, got {len(inputs)}")
        if out is not None and len(out) != len(self._writes):
            raise InputError(f"out: expected {len(self._writes)} arrays, got {len(out)}")
        values = bind_inputs(plan, inputs)
        arrays = dict(zip(self._reads, inputs, strict=True))
        given: dict[str, np.ndarray] = {}
        for name, array in zip(self._writes, out or (), strict=out is not None):
            if array is not None:
                given.setdefault(name, array)
        with Slab(self._planner) as slab:
            for index, segment in enumerate(self._segments):
                for name, (root, offset) in segment.measured.items():
                    value = int(_at(arrays[root], offset))
                    check_measured(plan, name, value, values)
                    values[name] = value
                self._run_segment(index, arrays, given, values, slab, stop, spans)
        return [arrays[name] for name in self._writes], values

    def _run_segment(
        self,
        index: int,
        arrays: dict[str, np.ndarray],
        given: dict[str, np.ndarray],
        values: dict[str, int],
        slab: Slab,
        stop: Stop | None,
        spans: Spans | None,
    ) -> None:
        """Run one segment; add what it writes to ``arrays``, and its times to ``spans``."""
        plan, executor = self._segments[index].plan, self._executors[index]
        reads, writes = self._ends[index]
        if not plan.nodes:
            return
        out = [
            given.get(name) if name in self._written else self._crossing(plan, name, values, slab)
            for name in writes
        ]
        read = [arrays[name] for name in reads]
        sizes = [values[name] for name in plan.sizes]
        if spans is None:
            results = executor.run(read, out, sizes, stop)
        else:
            results, more = executor.profile(read, out, sizes, stop)
            spans += more
        arrays.update(zip(writes, results, strict=True))

    def _crossing(self, plan: Plan, name: str, values: dict[str, int], slab: Slab) -> np.ndarray:
        """Return memory for a root that later segments read."""
        spec = plan.tensors[name]
        shape = substitute(spec.shape, lambda size: size_at(size, values))
        return slab.array(name, shape, spec.dtype)


def _lives(plan: Plan, segments: Sequence[Segment]) -> dict[str, tuple[int, int]]:
    """Return the first and the last segment that need each root which crosses between segments."""
    lives: dict[str, tuple[int, int]] = {}
    for index, (part, measured) in enumerate(segments):
        for name in (*part.reads, *part.writes, *(root for root, _ in measured.values())):
            lives[name] = lives.get(name, (index, index))[0], index
    ends = {*plan.reads, *plan.writes}
    return {name: life for name, life in lives.items() if name not in ends}


def _at(array: np.ndarray, offset: int) -> Any:
    """Return the int64 at a byte offset of an array, counted as in its contiguous copy."""
    octets = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return octets[offset : offset + 8].view(np.int64)[0]
