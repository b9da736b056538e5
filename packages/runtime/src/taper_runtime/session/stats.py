"""Collect statistics of a session: ``session.stats()``."""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.base.prometheus import Metric, Sample, metrics_text
from taper_runtime.base.records import NamedTuple
from taper_runtime.plan.compilability import Compilability, compilability

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from taper_runtime.executor._pool import FramePool
    from taper_runtime.executor._run import RunLog
    from taper_runtime.executor.executor import PlanExecutor
    from taper_runtime.executor.memory_layout import MemoryLayout
    from taper_runtime.executor.tuned_choice import TunedNodes
    from taper_runtime.extend.fallbacks import DelegateUse

#: The name of each percentile, and the share of runs that took no longer.
_QUANTILES = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99}


#: How many of the latest runs tell whether a session is slower than at first.
WINDOW_RUNS = 20


class RunTimes(NamedTuple):
    """Times of some runs, including waiting and failed runs.

    Attributes
    ----------
    runs : int
    p50_s, p95_s, p99_s : float
        Seconds that half of them, 95% and 99% took at most; 0 if there was no run.
    runs_per_s : float
        How many of them ended per second, from the first one's begin to the last one's end.
    """

    runs: int
    p50_s: float
    p95_s: float
    p99_s: float
    runs_per_s: float


class FrameStats(NamedTuple):
    """Statistics of a session's frames; each concurrent run uses one frame.

    Attributes
    ----------
    created : int
        Frames made so far.
    in_use, idle : int
        Frames that exist now, used by a run and unused.
    peak : int
        The most frames in use at once. Callers whose runs another thread computes, because all CPUs
        are busy, have no frame of their own.
    waits : int
        Runs that had to wait for a frame.
    waited_s : float
        Seconds that runs waited.
    arena_bytes : int
        Memory of all arenas of all frames.
    """

    created: int
    in_use: int
    idle: int
    peak: int
    waits: int
    waited_s: float
    arena_bytes: int


class Stats(NamedTuple):
    """Statistics of a session since it was opened, over all entries.

    Attributes
    ----------
    runs, errors : int
        Runs that have ended, and runs that raised, including those refused before they began.
    times : RunTimes
        Of the latest 1024 runs.
    window : RunTimes
        Of the latest 20 runs.
    baseline : RunTimes or None
        Of runs 11 to 30, when files are loaded and caches are warm; None before they have ended.
    frames : FrameStats
    fallback_nodes : int
        Nodes of the default entry without a kernel, which numpy computes, for the last run's sizes.
    weights_version : int
        Of the weights that the next run reads.
    packed_bytes : int
        Memory of the process for weights that were packed, or otherwise computed, when the session
        was opened. Sessions of one Plan share it, each of which tells all of it.
    copied_bytes, large_page_bytes : int
        Memory of the process into which weights were copied (``weights_memory="huge"``), and how
        much of it the system has in large pages.
    memory_planning : mapping or None
        If runs compute sizes: ``plan_version``, how many layouts of memory were made; ``outgrown``,
        how often a tensor did not fit its place; ``slab_bytes``; ``bytes_by_algorithm``.
    layout : MemoryLayout or None
        Of the default entry, for the last run's sizes: the ``offset``, ``bytes`` and sharing
        tensors of each root and of each node's scratch (``pieces``), and how many tensors there
        are in place, as views and as slices (``counts()``). None if the executor has no arena.
    tuned : TunedNodes or None
        Of the default entry: which nodes have kernels chosen by measured times. None without
        ``SessionOptions.tuned``.
    compilability : Compilability or None
        Of the default entry, for the last run's sizes: the share of nodes with kernels, and which
        nodes numpy computes.
    delegates : tuple of DelegateUse
        Of the default entry: what computes each delegated subgraph, and why.
    """

    runs: int
    errors: int
    times: RunTimes
    window: RunTimes
    baseline: RunTimes | None
    frames: FrameStats
    fallback_nodes: int
    weights_version: int
    packed_bytes: int
    copied_bytes: int
    large_page_bytes: int
    memory_planning: Mapping[str, Any] | None
    layout: MemoryLayout | None
    tuned: TunedNodes | None = None
    compilability: Compilability | None = None
    delegates: tuple[DelegateUse, ...] = ()

    def prometheus(self, **labels: str) -> str:
        """Return the statistics in Prometheus' text format, version 0.0.4.

        Parameters
        ----------
        **labels : str
            Labels for every line, such as ``model="minilm"``.
        """
        return metrics_text(session_metrics(self, labels))


def read_stats(
    log: RunLog,
    pool: FramePool,
    executor: PlanExecutor,
    weights: tuple[int, int, int],
    tuned: TunedNodes | None,
    delegates: tuple[DelegateUse, ...],
) -> Stats:
    """Return the statistics of a session with these parts.

    ``weights`` are ``packed_bytes``, ``copied_bytes`` and ``large_page_bytes``.
    """
    served = executor.served
    breaks = [(node.output, node.op) for node, kind in served if kind == "numpy"]
    return Stats(
        log.timed,
        log.errors,
        _times(*log.latest()),
        _times(*log.latest(WINDOW_RUNS)),
        None if (first := log.baseline()) is None else _baseline_times(*first),
        FrameStats(
            pool.created,
            pool.in_use,
            pool.n_idle,
            pool.peak,
            pool.waits,
            pool.waited_s,
            pool.arena_bytes,
        ),
        len(breaks),
        executor.weights_version,
        *weights,
        executor.memory_planning(),
        executor.layout(),
        tuned,
        compilability(len(served), breaks),
        delegates,
    )


def _times(times: bytes, span: int) -> RunTimes:
    """Return percentiles, by nearest rank, and the rate of runs; see :meth:`.RunLog.latest`."""
    durations = np.frombuffer(times, np.int64)
    count = len(durations)
    if not count:
        return RunTimes(0, 0.0, 0.0, 0.0, 0.0)
    ranks = [ceil(share * count) - 1 for share in _QUANTILES.values()]
    p50, p95, p99 = (1e-9 * each for each in np.partition(durations, ranks)[ranks].tolist())
    return RunTimes(count, p50, p95, p99, count / (1e-9 * span) if span else 0.0)


#: The times of baselines, which stay the same.
_baseline_times = lru_cache(maxsize=64)(_times)


#: Name, type and meaning of each metric.
_METRICS = {
    "runs_total": ("counter", "Runs that have ended."),
    "run_errors_total": ("counter", "Runs that raised, or were refused."),
    "run_seconds": ("gauge", "Seconds that the latest runs took, by quantile."),
    "runs_per_second": ("gauge", "Runs that ended per second, of the latest 20."),
    "frames_created_total": ("counter", "Frames made."),
    "frames_in_use": ("gauge", "Frames with a run."),
    "frames_idle": ("gauge", "Frames without a run."),
    "frames_peak": ("gauge", "The most frames in use at once."),
    "frame_waits_total": ("counter", "Runs that had to wait for a frame."),
    "frame_wait_seconds_total": ("counter", "Seconds that runs waited for frames."),
    "arena_bytes": ("gauge", "Memory for what runs compute."),
    "fallback_nodes": ("gauge", "Nodes that numpy computes."),
    "delegate_failures_total": ("counter", "Runs in which a delegate failed at a subgraph."),
    "delegate_fallbacks_total": (
        "counter",
        "Runs of subgraphs in the place of delegates that refused or failed.",
    ),
    "weights_version": ("gauge", "Version of the weights."),
    "packed_bytes": ("gauge", "Memory for weights packed when the session was opened."),
    "copied_bytes": ("gauge", "Memory for weights copied when the session was opened."),
    "large_page_bytes": ("gauge", "Memory for copied weights that is in large pages."),
}


def session_metrics(stats: Stats, labels: Mapping[str, str]) -> Iterator[Metric]:
    """Yield each metric of a session, with these labels."""
    frames = stats.frames
    plain = (
        stats.runs,
        stats.errors,
        None,
        stats.window.runs_per_s,
        frames.created,
        frames.in_use,
        frames.idle,
        frames.peak,
        frames.waits,
        frames.waited_s,
        frames.arena_bytes,
        stats.fallback_nodes,
        sum(each.failures for each in stats.delegates),
        sum(each.fallbacks for each in stats.delegates),
        stats.weights_version,
        stats.packed_bytes,
        stats.copied_bytes,
        stats.large_page_bytes,
    )
    for (name, (kind, text)), value in zip(_METRICS.items(), plain, strict=True):
        if value is not None:
            yield Metric(name, kind, text, [Sample(labels, value)])
            continue
        times = [
            Sample({**labels, "quantile": f"{share:g}"}, getattr(stats.times, field))
            for field, share in _QUANTILES.items()
        ]
        yield Metric(name, kind, text, times)
