"""Where a run's time goes, node by node, and how far each node is from the machine's limit."""

from __future__ import annotations

import json
import statistics
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from taper_runtime.executor import _kernels
from taper_runtime.executor.compiled import CompiledExecutor
from taper_runtime.executor.executor import definition, input_types, node_work
from taper_runtime.executor.memory import memory_use
from taper_runtime.machine.cost import Place, cost, traffic_ns
from taper_runtime.machine.measure import limits_data
from taper_runtime.plan.binding import bind_sizes
from taper_runtime.plan.specialize import specialize
from taper_runtime.text import counted, printable

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from taper_runtime.machine.limits import Limits
    from taper_runtime.plan.plan import Plan, PlanNode

#: Per step, per worker: begin and end in nanoseconds; zeros where the worker had no part.
Spans = list[list[tuple[int, int]]]


class Profile(NamedTuple):
    """Times of one plan.

    Attributes
    ----------
    plan : Plan
    threads : int
    steps : list of (PlanNode, str)
        The executed nodes in order, each with its kernel's name.
    ns : list of float
        Median time of each step over the runs, from its first worker's start to its last one's end.
    fastest : list
        When each worker was at each step in the fastest run.
    """

    plan: Plan
    threads: int
    steps: list[tuple[PlanNode, str]]
    ns: list[float]
    fastest: Spans


def profile_plan(
    plan: Plan,
    feed: Mapping[str, np.ndarray],
    *,
    runs: int,
    threads: int,
    advance: Callable[[], None] = lambda: None,
) -> Profile:
    """Run a plan ``runs`` times, after once to warm up, and note when each worker was where.

    ``advance`` is called after each run.
    """
    sizes = bind_sizes(plan, {name: array.shape for name, array in feed.items()})
    plan = specialize(plan, sizes)
    executor = CompiledExecutor.compile(plan, threads=threads)
    states = {name: np.array(plan.first_value(name)) for name in plan.states}  # may be written
    arrays = [states[name] if name in states else feed[name] for name in plan.reads]
    executor.run(arrays)
    taken = []
    for _ in range(runs):
        taken.append(executor.profile(arrays)[1])
        advance()
    times = [[_duration(workers) for workers in spans] for spans in taken]
    ns = [statistics.median(step) for step in zip(*times, strict=True)]
    fastest = taken[min(range(runs), key=lambda run: sum(times[run]))]
    return Profile(plan, threads, executor.steps, ns, fastest)


def _duration(workers: list[tuple[int, int]]) -> float:
    part = [span for span in workers if span[1]]
    if not part:  # a node without tasks
        return 0.0
    return max(end for _, end in part) - min(begin for begin, _ in part)


def least_ns(plan: Plan, limits: Limits) -> list[float]:
    """Return the time below which no code computes each node that a run executes, in order.

    That is its cost with all traffic behind arithmetic, by limits without overheads.
    """
    bound = sum(plan.tensors[name].nbytes for name in (*plan.inputs, *plan.outputs))
    memory = memory_use(plan)
    resident = memory.arena + bound + memory.weights
    times = []
    for node in filter(plan.is_executed, plan.nodes):
        op, attrs = definition(node)
        inputs = input_types(plan, node)
        output = plan.tensors[node.output].type
        moved = op.cost(inputs, output, attrs).bytes
        written = min(output.nbytes, moved)
        names = {name for name in node.reads if plan.placements[name].root in plan.constants}
        constant = min(sum(plan.tensors[name].nbytes for name in names), moved - written)
        read = moved - written - constant
        place = Place(streamed=traffic_ns(limits, constant, read, written, resident))
        times.append(cost(op, inputs, output, attrs, place, limits))
    return times


def profile_data(profile: Profile, limits: Limits) -> dict[str, Any]:
    """Return a profile beside the machine's limits as plain data that JSON can hold.

    Shares are of the run; a roofline is the share of the limit that a node reaches.
    """
    plan = profile.plan
    total = max(sum(profile.ns), 1.0)
    nodes = []
    least = least_ns(plan, limits)
    for (node, kernel), ns, floor in zip(profile.steps, profile.ns, least, strict=True):
        work = node_work(plan, node)
        nodes.append(
            {
                "node": node.output,
                "op": node.op,
                "kernel": kernel,
                "us": ns / 1e3,
                "share": ns / total,
                "flops": work.flops,
                "bytes": work.bytes,
                "roofline": floor / max(ns, 1.0),
                "source": node.source,
            }
        )
    return {
        "threads": profile.threads,
        "us": total / 1e3,
        "roofline": sum(least) / total,
        "nodes": nodes,
        "limits": limits_data(limits),
    }


def describe_profile(profile: Profile, limits: Limits) -> str:
    """Write a table: microseconds, share of the run, work, share of the roofline, kernel, node."""
    data = profile_data(profile, limits)
    lines = [f"{'us':>9} {'share':>6} {'Mflop':>9} {'kB':>9} {'roofline':>8}  kernel  node  source"]
    lines += [
        f"{item['us']:9.1f} {item['share']:6.1%} {item['flops'] / 1e6:9.2f} "
        f"{item['bytes'] / 1e3:9.1f} {item['roofline']:8.0%}  {item['kernel']}  "
        f"{item['node']} = {item['op']}  {item['source']}"
        for item in data["nodes"]
    ]
    lines.append(
        f"{data['us']:9.1f} us in {len(data['nodes'])} nodes; {data['roofline']:.0%} of the "
        f"roofline of {counted(limits.threads, 'thread')} of "
        f"{limits.isa}: {limits.flops:.0f} GFLOP/s, "
        + ", ".join(f"{m.name} {m.read:.0f}" for m in limits.memory)
        + " GB/s"
    )
    return "\n".join(map(printable, lines))


def save_trace(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Write the fastest run in the Trace Event Format that Chrome and Perfetto show.

    One complete event ("X") per node and worker, in microseconds from the run's start; the worker
    is the thread.
    """
    start = min((begin for step in profile.fastest for begin, end in step if end), default=0)
    events = node_events(profile.plan, profile.steps, profile.fastest, start)
    with open(path, "w") as file:
        write_trace(file, events, {"threads": profile.threads})


def node_events(
    plan: Plan, steps: list[tuple[PlanNode, str]], spans: Spans, start: int, process: int = 0
) -> list[dict[str, object]]:
    """Return the events of one run: times are counted from ``start``, in nanoseconds."""
    events: list[dict[str, object]] = []
    for (node, kernel), workers in zip(steps, spans, strict=True):
        args: dict[str, object] = {"kernel": kernel, "source": node.source}
        if not plan.sizes:  # else its work varies
            work = node_work(plan, node)
            args["flops"], args["bytes"] = work.flops, work.bytes
        events += [
            {
                "name": f"{node.output} = {node.op}",
                "cat": node.op,
                "ph": "X",
                "pid": process,
                "tid": worker,
                "ts": (begin - start) / 1e3,
                "dur": (end - begin) / 1e3,
                "args": args,
            }
            for worker, (begin, end) in enumerate(workers)
            if end
        ]
    return events


def write_trace(
    file: IO[str], events: list[dict[str, object]], other: Mapping[str, object]
) -> None:
    """Write events, and what else is known of them."""
    other = {"isa": _kernels.active_isa(), **other}
    json.dump({"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}, file)
