"""Time every run of a session node by node, for a trace (``enable_profiling``)."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from taper_runtime.base.records import NamedTuple
from taper_runtime.executor.executor import DEFAULT_SETTINGS, PlanExecutor, Settings, Spans
from taper_runtime.executor.executor_kinds import compile_plan
from taper_runtime.native._kernels import active_isa
from taper_runtime.reports.profile import node_events, write_trace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from taper_runtime.executor._stop import Stop
    from taper_runtime.executor.memory_layout import MemoryLayout
    from taper_runtime.executor.sites import Site
    from taper_runtime.extend.servers import Server
    from taper_runtime.native.variants import KernelName
    from taper_runtime.plan.plan import Plan, PlanNode

#: Recording stops after so many timed nodes: some hundred megabytes.
MAX_EVENTS = 1_000_000


class _Run(NamedTuple):
    caller: int
    begin: int
    end: int
    steps: list[tuple[Site, KernelName]]
    spans: Spans


class RecordingExecutor(PlanExecutor):
    """Runs another executor and records when each worker was at each node.

    Attributes
    ----------
    executor : PlanExecutor
        The executor that runs.
    start_ns : int
        When recording began, in nanoseconds since the epoch.
    """

    def __init__(self, executor: PlanExecutor, isa: str) -> None:
        self.executor = executor
        self._isa = isa
        self.start_ns = time.time_ns()
        self._origin = time.monotonic_ns()
        self._runs: list[_Run] = []
        self._events = 0
        self._missed = 0

    @classmethod
    def compile(cls, plan: Plan, settings: Settings = DEFAULT_SETTINGS) -> RecordingExecutor:
        """See :meth:`PlanExecutor.compile`."""
        return cls(compile_plan(plan, settings), active_isa(settings.dispatch.isa))

    @property
    def served(self) -> list[tuple[PlanNode, str]]:
        """See :attr:`PlanExecutor.served`."""
        return self.executor.served

    @property
    def servers(self) -> list[Server]:
        """See :attr:`PlanExecutor.servers`."""
        return self.executor.servers

    def with_constants(
        self, constants: Mapping[str, np.ndarray], generation: int
    ) -> RecordingExecutor:
        """See :meth:`PlanExecutor.with_constants`; the recording goes on."""
        self.executor = self.executor.with_constants(constants, generation)
        return self

    @property
    def steps(self) -> list[tuple[Site, KernelName]]:
        """See :attr:`PlanExecutor.steps`."""
        return self.executor.steps

    @property
    def weights_version(self) -> int:
        """See :meth:`PlanExecutor.weights_version`."""
        return self.executor.weights_version

    def memory_planning(self) -> dict[str, Any] | None:
        """See :meth:`PlanExecutor.memory_planning`."""
        return self.executor.memory_planning()

    def layout(self) -> MemoryLayout | None:
        """See :meth:`PlanExecutor.layout`."""
        return self.executor.layout()

    def run(
        self,
        inputs: Sequence[np.ndarray],
        out: Sequence[np.ndarray | None] | None = None,
        sizes: Sequence[int] | None = None,
        stop: Stop | None = None,
    ) -> list[np.ndarray]:
        """See :meth:`PlanExecutor.run`."""
        if self._events >= MAX_EVENTS:
            self._missed += 1
            return self.executor.run(inputs, out, sizes, stop)
        return self.profile(inputs, out, sizes, stop)[0]

    def profile(
        self,
        inputs: Sequence[np.ndarray],
        out: Sequence[np.ndarray | None] | None = None,
        sizes: Sequence[int] | None = None,
        stop: Stop | None = None,
    ) -> tuple[list[np.ndarray], Spans]:
        """See :meth:`PlanExecutor.profile`; the run is recorded."""
        executor = self.executor
        begin = time.monotonic_ns()
        outputs, spans = executor.profile(inputs, out, sizes, stop)
        end = time.monotonic_ns()
        self._events += len(spans)
        self._runs.append(_Run(threading.get_ident(), begin, end, executor.steps, spans))
        return outputs, spans

    def save(self, prefix: str) -> str:
        """Write a trace of all runs; returns its path, ``prefix``, the date and the time.

        The trace is in the Trace Event Format, in microseconds since the session was opened: one
        complete event ("X") per run, and one per node and worker inside it. Each calling thread is
        a process of the trace, and its workers are threads. ``otherData`` has the ISA level, and
        the number of runs that were not recorded because they came after the first million nodes.
        """
        callers: dict[int, int] = {}
        events: list[dict[str, object]] = []
        for run in self._runs:
            caller = callers.setdefault(run.caller, len(callers))
            events.append(
                {
                    "name": "run",
                    "cat": "session",
                    "ph": "X",
                    "pid": caller,
                    "tid": 0,
                    "ts": (run.begin - self._origin) / 1e3,
                    "dur": (run.end - run.begin) / 1e3,
                }
            )
            events += node_events(run.steps, run.spans, self._origin, caller)
        second, rest = divmod(self.start_ns, 10**9)
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(second))
        path = f"{prefix}_{stamp}_{rest // 10**6:03d}.json"
        with open(path, "x") as file:
            write_trace(file, events, {"isa": self._isa, "runs_missed": self._missed})
        return path
