"""Time a run node by node, and compare each node with the machine's limits."""

from __future__ import annotations

import json
import statistics
from io import StringIO
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from taper_runtime.base.records import NamedTuple
from taper_runtime.base.text import counted, printable
from taper_runtime.executor.executor import (
    Settings,
    definition,
    input_types,
    node_work,
    output_types,
)
from taper_runtime.executor.executor_kinds import DEFAULT_KIND, compile_plan
from taper_runtime.executor.memory_use import memory_use
from taper_runtime.executor.rollback import with_saves
from taper_runtime.executor.sites import sites, summed
from taper_runtime.machine.cost import Locality, cost, traffic_ns
from taper_runtime.machine.measure import limits_data
from taper_runtime.native._kernels import active_isa
from taper_runtime.native.variants import KernelName
from taper_runtime.plan.binding import bind_sizes
from taper_runtime.plan.plan import STORED
from taper_runtime.plan.specialize import specialize
from taper_runtime.reports.report import module_path

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from taper_runtime.executor.executor import Spans
    from taper_runtime.executor.sites import Site
    from taper_runtime.machine.limits import MachineLimits
    from taper_runtime.plan.plan import Plan


class Profile(NamedTuple):
    """The times of one plan.

    Attributes
    ----------
    plan : Plan
        The plan, specialized to the sizes of the run.
    sizes : mapping of str to int
        The values of the size variables.
    threads : int
    steps : list of (Site, KernelName)
        The executed nodes in order, each with its kernel's name.
    times : list of int
        How often each node runs in one run.
    ns : list of float
        The least time of each step over the runs, from its first worker's start to its last one's
        end: other work on the machine only makes a step longer. For a step that runs several times
        per run, the times are added.
    medians : list of float
        The median of the same times.
    fastest : list
        The times at which each worker was at each step in the fastest run.
    """

    plan: Plan
    sizes: Mapping[str, int]
    threads: int
    steps: list[tuple[Site, KernelName]]
    times: list[int]
    ns: list[float]
    medians: list[float]
    fastest: Spans

    @property
    def sites(self) -> list[Site]:
        """Return the executed nodes in order."""
        return [site for site, _ in self.steps]

    @property
    def total(self) -> float:
        """Return the nanoseconds of the run; nodes in blocks are counted once."""
        return self._sum(self.ns)

    @property
    def spread(self) -> float:
        """Return how many times as long as the least times the median ones are."""
        return self._sum(self.medians) / max(self.total, 1.0)

    def _sum(self, ns: Sequence[float]) -> float:
        return sum(each for site, each in zip(self.sites, ns, strict=True) if not site.depth)


def profile_plan(
    plan: Plan,
    feed: Mapping[str, np.ndarray],
    *,
    runs: int,
    threads: int,
    executor: str = DEFAULT_KIND,
    advance: Callable[[], None] = lambda: None,
) -> Profile:
    """Run a plan ``runs`` times after a warm-up, and record when each worker was at which node.

    Sizes that nodes compute are taken from an earlier run. Each run starts with the states' initial
    values. ``executor`` is the kind of executor; ``advance`` is called after each run.
    """
    sizes = _sizes(plan, feed)
    plan = with_saves(specialize(plan, sizes))
    made = compile_plan(plan, Settings(threads=threads), executor)
    made.run(_arrays(plan, feed))
    taken = []
    for _ in range(runs):
        taken.append(made.profile(_arrays(plan, feed))[1])
        advance()
    durations = [[_duration(workers) for workers in spans] for spans in taken]
    ns = [min(step) for step in zip(*durations, strict=True)]
    medians = [statistics.median(step) for step in zip(*durations, strict=True)]
    fastest = taken[min(range(runs), key=lambda run: sum(durations[run]))]
    times = [max(often for *_, often in workers) for workers in fastest]
    return Profile(plan, sizes, threads, made.steps, times, ns, medians, fastest)


def _sizes(plan: Plan, feed: Mapping[str, np.ndarray]) -> dict[str, int]:
    if plan.origins:
        from taper_runtime.executor.segmented import SegmentedExecutor

        return SegmentedExecutor.compile(plan).sizes(_arrays(plan, feed))
    return bind_sizes(plan, {name: array.shape for name, array in feed.items()})


def _arrays(plan: Plan, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the arrays that a run reads; it may write to states."""
    states = {name: np.array(plan.first_value(name)) for name in plan.states}
    return [states[name] if name in states else feed[name] for name in plan.reads]


def _duration(workers: Sequence[tuple[int, int, int]]) -> float:
    part = [(begin, end) for begin, end, times in workers if times]
    if not part:  # a node without tasks, or in a branch that was not taken
        return 0.0
    return max(end for _, end in part) - min(begin for begin, _ in part)


def least_ns(
    plan: Plan, limits: MachineLimits, found: Sequence[Site] = (), times: Sequence[int] = ()
) -> list[float]:
    """Return a lower bound of the time of each executed node, in order.

    The bound is the node's cost by limits without overheads, with all traffic overlapping
    arithmetic.

    Parameters
    ----------
    plan : Plan
        A plan without size variables.
    limits : MachineLimits
    found : sequence of Site, optional
        The sites of the plan.
    times : sequence of int, optional
        How often each node runs; by default as often as the sizes say.
    """
    found = found or sites(plan)
    bound = sum(plan.tensors[name].nbytes for name in (*plan.inputs, *plan.outputs))
    memory = memory_use(plan)
    resident = memory.arena + bound + memory.weights
    often = times or [site.trips for site in found]
    least = [_least(site, limits, resident) * n for site, n in zip(found, often, strict=True)]
    return summed(found, least)


def _least(site: Site, limits: MachineLimits, resident: int) -> float:
    """Return a lower bound of one node's time; for control flow, that of the nodes inside."""
    plan, node = site.plan, site.node
    if site.runs_blocks:
        return 0.0
    op, attrs = definition(node)
    inputs, outputs = input_types(plan, node), output_types(plan, node)
    moved = op.work(inputs, outputs, attrs).bytes
    written = min(sum(output.nbytes for output in outputs), moved)
    names = {name for name in node.reads if plan.tensors[plan.placements[name].root].role in STORED}
    constant = min(sum(plan.tensors[name].nbytes for name in names), moved - written)
    read = moved - written - constant
    place = Locality(streamed=traffic_ns(limits, constant, read, written, resident))
    return cost(op, inputs, outputs, attrs, place, limits)


def work_done(found: Sequence[Site], times: Sequence[int]) -> list[tuple[int, int]]:
    """Return flops and bytes of static nodes with these run counts; blocks count for their node."""
    works = [(0, 0) if site.runs_blocks else node_work(site.plan, site.node)[:2] for site in found]
    flops, nbytes = (
        summed(found, [work[i] * n for work, n in zip(works, times, strict=True)]) for i in (0, 1)
    )
    return list(zip(map(int, flops), map(int, nbytes), strict=True))


#: From which spread on a machine was busy while it was measured.
_BUSY_SPREAD = 1.5

#: How far a node may be above the machine's limit, as both are measured.
_OVER = 1.05


def is_over(least: float, ns: float) -> bool:
    """Return whether a node is faster than the machine's limit, which is then not to be trusted."""
    return least > _OVER * max(ns, 1.0)


def busy_words(profile: Profile, least: Sequence[float]) -> list[str]:
    """Say how the profile shows that the machine did other work; empty if it does not.

    Parameters
    ----------
    profile : Profile
    least : sequence of float
        What :func:`least_ns` returns for the nodes of the profile.
    """
    words = []
    over = sum(is_over(floor, ns) for floor, ns in zip(least, profile.ns, strict=True) if ns)
    if over:
        words.append(
            f"{counted(over, 'node')} {'is' if over == 1 else 'are'} faster than the machine's "
            "limit: the machine was busy when the limit was measured"
        )
    if profile.spread > _BUSY_SPREAD:
        words.append(
            f"the median times of the nodes are {profile.spread:.1f} times the least ones: the "
            "machine was busy"
        )
    return [f"{text}. Shares of the limit are not to be trusted; measure again." for text in words]


class Total(NamedTuple):
    """The time of some nodes together: their op or module, how many they are, nanoseconds."""

    name: str
    nodes: int
    ns: float


def totals(profile: Profile) -> tuple[list[Total], list[Total]]:
    """Return the time of each op, longest first, and of each module, in run order.

    A module's time is that of all nodes in it and in the modules inside it. What runs in blocks is
    counted where it runs, and not again for the node that has the blocks.
    """
    ops: dict[str, Total] = {}
    modules: dict[str, Total] = {}
    for (site, _), ns in zip(profile.steps, profile.ns, strict=True):
        if site.runs_blocks:
            continue
        module = module_path(site.node.source) or ""
        parts = module.split(".") if module else []
        paths = [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
        for table, name in ((ops, site.node.op), *((modules, path) for path in paths)):
            _, nodes, before = table.get(name, Total(name, 0, 0.0))
            table[name] = Total(name, nodes + 1, before + ns)
    return sorted(ops.values(), key=lambda total: -total.ns), [*modules.values()]


def profile_data(profile: Profile, limits: MachineLimits) -> dict[str, Any]:
    """Return a profile with the machine's limits as plain data for JSON.

    Shares are fractions of the run. A node's roofline is the fraction of the limit that it reaches.
    """
    total = max(profile.total, 1.0)
    nodes: list[dict[str, Any]] = []
    least = least_ns(profile.plan, limits, profile.sites, profile.times)
    work = work_done(profile.sites, profile.times)
    rows = zip(profile.steps, profile.times, profile.ns, least, work, strict=True)
    for (site, kernel), times, ns, floor, (flops, nbytes) in rows:
        nodes.append(
            {
                "node": site.node.output,
                "op": site.node.op,
                "depth": site.depth,
                "times": times,
                "kernel": kernel.name,
                "variant": kernel.variant,
                "us": ns / 1e3,
                "share": ns / total,
                "flops": flops,
                "bytes": nbytes,
                "roofline": floor / max(ns, 1.0),
                "source": site.node.source,
            }
        )
    floor = sum(ns for site, ns in zip(profile.sites, least, strict=True) if not site.depth)
    ops, modules = (
        [
            {"name": name, "nodes": count, "us": ns / 1e3, "share": ns / total}
            for name, count, ns in table
        ]
        for table in totals(profile)
    )
    return {
        "threads": profile.threads,
        "us": total / 1e3,
        "roofline": floor / total,
        "nodes": nodes,
        "ops": ops,
        "modules": modules,
        "limits": limits_data(limits),
    }


def describe_profile(profile: Profile, limits: MachineLimits) -> str:
    """Return a table: microseconds, share of the run, work, share of the roofline, kernel, node.

    Nodes in blocks follow their node, indented, with the number of runs unless it is 1. The time of
    each op and of each module follows.
    """
    data = profile_data(profile, limits)
    lines = [f"{'us':>9} {'share':>6} {'Mflop':>9} {'kB':>9} {'roofline':>8}  kernel  node  source"]
    for item in data["nodes"]:
        kernel = KernelName(item["kernel"], item["variant"])
        times = {0: " (not run)", 1: ""}.get(item["times"], f" ({item['times']} times)")
        lines.append(
            f"{item['us']:9.1f} {item['share']:6.1%} {item['flops'] / 1e6:9.2f} "
            f"{item['bytes'] / 1e3:9.1f} {item['roofline']:8.0%}  {'  ' * item['depth']}"
            f"{kernel}  {item['node']} = {item['op']}{times}  {item['source']}"
        )
    for what in ("ops", "modules"):
        if data[what]:
            lines.append(f"{'us':>9} {'share':>6} {'nodes':>5}  {what}")
        lines += [
            f"{item['us']:9.1f} {item['share']:6.1%} {item['nodes']:5}  {item['name']}"
            for item in data[what]
        ]
    lines += busy_words(profile, least_ns(profile.plan, limits, profile.sites, profile.times))
    lines.append(
        f"{data['us']:9.1f} us in {len(data['nodes'])} nodes; {data['roofline']:.0%} of the "
        f"roofline of {counted(limits.threads, 'thread')} of "
        f"{limits.isa}: {limits.flops:.0f} GFLOP/s, "
        + ", ".join(f"{m.name} {m.read:.0f}" for m in limits.memory)
        + " GB/s"
    )
    return "\n".join(map(printable, lines))


def save_trace(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Write the fastest run in the Trace Event Format, which Chrome and Perfetto show.

    One complete event ("X") per node and worker, in microseconds from the run's start; the worker
    is the thread.
    """
    with open(path, "w") as file:
        file.write(trace_text(profile))


def trace_text(profile: Profile) -> str:
    """Return what :func:`save_trace` writes."""
    start = min((begin for step in profile.fastest for begin, end, _ in step if end), default=0)
    events = node_events(profile.steps, profile.fastest, start)
    file = StringIO()
    write_trace(file, events, {"isa": active_isa(), "threads": profile.threads})
    return file.getvalue()


def node_events(
    steps: Sequence[tuple[Site, KernelName]], spans: Spans, start: int, process: int = 0
) -> list[dict[str, object]]:
    """Return the events of one run; times are counted from ``start``, in nanoseconds.

    A node of control flow has one event, with the microseconds of the nodes inside.
    """
    found = [site for site, _ in steps]
    static = not any(site.plan.sizes for site in found)  # otherwise the work varies
    work = work_done(found, [max(n for *_, n in each) for each in spans]) if static else ()
    events: list[dict[str, object]] = []
    for at, ((site, kernel), workers) in enumerate(zip(steps, spans, strict=True)):
        if site.depth:
            continue
        node = site.node
        args: dict[str, object] = {"kernel": kernel.name, "source": node.source}
        if kernel.variant:
            args["variant"] = kernel.variant
        if work:
            args["flops"], args["bytes"] = work[at]
        if site.inside:
            inside = range(at + 1, at + 1 + site.inside)
            args["inside"] = {_title(found[i]): _duration(spans[i]) / 1e3 for i in inside}
        events += [
            {
                "name": _title(site),
                "cat": node.op,
                "ph": "X",
                "pid": process,
                "tid": worker,
                "ts": (begin - start) / 1e3,
                "dur": (end - begin) / 1e3,
                "args": args,
            }
            for worker, (begin, end, times) in enumerate(workers)
            if times
        ]
    return events


def _title(site: Site) -> str:
    return f"{site.node.output} = {site.node.op}"


def write_trace(
    file: IO[str], events: list[dict[str, object]], other: Mapping[str, object]
) -> None:
    """Write events and further data about them."""
    json.dump({"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}, file)
