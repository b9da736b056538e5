"""Make the page of ``taper report``, which describes a plan and where its time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.base.records import NamedTuple
from taper_runtime.base.text import counted
from taper_runtime.executor.memory_use import MemoryUse, memory_use
from taper_runtime.executor.sites import executed_nodes
from taper_runtime.plan.spelling import type_text
from taper_runtime.reports.memory_points import points_sections
from taper_runtime.reports.pages.histogram import histogram
from taper_runtime.reports.pages.quantized_weights import (
    WeightRecord,
    distances,
    layer_of,
    predicted_table,
    quantized_layers,
    quantized_table,
)
from taper_runtime.reports.pages.viewer import make_page
from taper_runtime.reports.profile import (
    busy_words,
    is_over,
    least_ns,
    totals,
    trace_text,
    work_done,
)
from taper_runtime.reports.report import metadata_rows, module_path, verification_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taper_runtime.executor.sites import Site
    from taper_runtime.machine.limits import MachineLimits
    from taper_runtime.native.variants import KernelName
    from taper_runtime.plan.plan import Plan, PlanNode, TensorSpec
    from taper_runtime.reports.memory_points import MemoryPoint
    from taper_runtime.reports.profile import Profile

#: The names of the blocks of a node.
_BLOCKS = {"IF": ("then", "else"), "WHILE": ("condition", "body"), "SCAN": ("body",)}


def report_page(
    title: str,
    profile: Profile,
    limits: MachineLimits,
    before: Profile | None = None,
    points: list[MemoryPoint] | None = None,
) -> str:
    """Return a self-contained HTML page about a plan.

    Parameters
    ----------
    title : str
        The plan's name, such as its file's.
    profile : Profile
        The profile of the plan, for the sizes that the page shows.
    limits : MachineLimits
        The limits of this machine, for the number of threads of the profile.
    before : Profile, optional
        The profile of the plan before its weights were quantized.
    points : list of MemoryPoint, optional
        Memory and time of the plan in memory budgets.
    """
    plan = profile.plan
    total = profile.total
    subtitle = (
        f"{counted(len(plan.nodes), 'node')}, {total / 1e6:.3f} ms on "
        f"{counted(profile.threads, 'thread')} of {limits.isa}"
    )
    floors = least_ns(plan, limits, profile.sites, profile.times)
    rows = zip(
        profile.steps,
        profile.times,
        profile.ns,
        floors,
        work_done(profile.sites, profile.times),
        strict=True,
    )
    times = {
        site.node.output: _Time(site, kernel, often, ns, floor, work)
        for (site, kernel), often, ns, floor, work in rows
    }
    least = sum(time.least for time in times.values() if not time.site.depth)
    memory = memory_use(plan)
    layers = quantized_layers(plan)
    sections = [
        _summary(profile, total, least, before),
        *_warnings(plan, busy_words(profile, floors)),
        {"kind": "graph", "title": "Graph", "nodes": _graph(plan, times, layers)},
        *quantized_table(plan, layers, None if before is None else before.plan),
        *predicted_table(plan),
        _time_table(times),
        *_totals(profile),
        _trace(profile),
        _memory(plan, memory),
        *(points_sections(points) if points else ()),
        _tensors("Inputs and outputs", [*plan.inputs, *plan.outputs], plan),
        _weights(plan),
    ]
    return make_page(title, subtitle, sections)


class _Time(NamedTuple):
    """A node's part of a run: kernel, count, nanoseconds, least nanoseconds, flops, bytes."""

    site: Site
    kernel: KernelName
    times: int
    ns: float
    least: float
    work: tuple[int, int]


def _summary(
    profile: Profile, total: float, least: float, before: Profile | None
) -> dict[str, Any]:
    """Return the summary: the plan, the sizes of the run, its time, and the verification."""
    plan, sizes = profile.plan, profile.sizes
    rows = [
        [
            "nodes",
            (
                f"{len(plan.nodes)}, of which {len(executed_nodes(plan))} are computed; the others "
                "only rename memory"
            ),
        ],
        ["time", f"{total / 1e6:.3f} ms, the sum of each node's least; {_limit(least, total)}"],
        ["weights", f"{_weight_bytes(profile):,} bytes that runs read"],
    ]
    if before is not None:
        rows[1][1] += f"; before quantization {before.total / 1e6:.3f} ms"
        rows[2][1] += f"; before quantization {_weight_bytes(before):,} bytes"
    rows += [[f"distance of {name}", text] for name, text in distances(plan)]
    if sizes:
        shown = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        rows.insert(1, ["sizes", f"{shown}; all shapes and times on this page are for these"])
    rows += [[name, str(plan.metadata[name])] for name in ("producer",) if name in plan.metadata]
    rows += [["verified", line] for line in verification_lines(plan)]
    return {"kind": "facts", "title": "Summary", "rows": rows}


def _weight_bytes(profile: Profile) -> int:
    """Return the bytes of the constants that nodes read: not those from which others are packed."""
    read: dict[str, TensorSpec] = {}
    for site in profile.sites:
        if site.depth == 0:  # nodes with blocks read what these read
            roots = (site.plan.placements[name].root for name in site.node.reads)
            read |= {name: site.plan.tensors[name] for name in roots}
    return sum(spec.nbytes for spec in read.values() if spec.role == "constant")


def _limit(least: float, ns: float) -> str:
    """Say which share of the machine's limit a time reaches."""
    if is_over(least, ns):
        return "above the measured limit: the machine was busy"
    return f"{min(least / max(ns, 1.0), 1.0):.0%} of the machine's limit"


def _warnings(plan: Plan, busy: list[str]) -> list[dict[str, Any]]:
    items = busy + [
        warning["text"] for warning in metadata_rows(plan, "warnings", kind=str, text=str)
    ]
    items += [
        f"computed by numpy: {fallback['node']} = {fallback['op']}"
        for fallback in metadata_rows(plan, "fallbacks", node=str, op=str)
    ]
    return [{"kind": "warnings", "title": "Warnings", "items": items}] if items else []


def _graph(
    plan: Plan, times: Mapping[str, _Time], layers: Mapping[str, WeightRecord]
) -> list[dict[str, Any]]:
    """Return the nodes of the drawing: inputs and states, the plan's nodes, outputs."""
    nodes = [_end(plan.tensors[name], name, []) for name in plan.reads]
    makers: dict[str, str] = {}
    nodes += _nodes(plan, times, layers, makers, [])
    nodes += [_end(plan.tensors[n], f"{n} (output)", [makers.get(n, n)]) for n in plan.outputs]
    return nodes


def _nodes(
    plan: Plan,
    times: Mapping[str, _Time],
    layers: Mapping[str, WeightRecord],
    makers: dict[str, str],
    around: Sequence[str],
) -> list[dict[str, Any]]:
    """Return the nodes of a plan, or of a block in it; nodes in blocks come before their node.

    ``makers`` maps tensors to nodes of the drawing; ``around`` is the group that contains all
    nodes.
    """
    nodes = []
    module: list[str] = []
    for node in plan.nodes:
        # a node without a recorded line joins the group of the node before it
        path = module_path(node.source)
        module = module if path is None else path.split(".")
        group = [*around, *filter(None, module)]
        inputs = [makers.get(name, name) for name in node.reads]
        for block, name in zip(node.blocks, _BLOCKS.get(node.op, ()), strict=False):
            given = node.reads[1:] if node.op == "IF" else node.reads
            makers.update((n, makers.get(m, m)) for n, m in zip(block.inputs, given, strict=True))
            inner = [*group, f"{node.output} {name}"]
            nodes += _nodes(plan.body(block), times, layers, makers, inner)
            inputs += [makers[result] for result in block.outputs if result in makers]
        makers.update((output, node.output) for output in node.outputs)
        drawn = _node(plan, node, list(dict.fromkeys(inputs)), group, times.get(node.output))
        layer = layer_of(plan, node, layers)
        if layer is not None:
            drawn["subtitle"] = f"{layer.scheme}, error {layer.error:.1%}"
            drawn["facts"].append(["weight", layer.text])
        nodes.append(drawn)
    return nodes


def _end(spec: TensorSpec, name: str, inputs: list[str]) -> dict[str, Any]:
    role = spec.role if not inputs else "output"
    return {
        "id": name,
        "title": spec.name,
        "subtitle": f"{role} {type_text(spec)}",
        "kind": "end",
        "group": [],
        "inputs": inputs,
        "facts": [["role", role], ["type", type_text(spec)]],
    }


def _node(
    plan: Plan, node: PlanNode, inputs: list[str], group: list[str], time: _Time | None
) -> dict[str, Any]:
    """Return one node of the drawing, with its type, its facts and its time."""
    types = ", ".join(type_text(plan.tensors[name]) for name in node.outputs)
    facts = [["op", node.op], ["result", types], ["module", ".".join(group)]]
    facts += [[name, str(value)] for name, value in node.attrs.items()]
    if time is None:
        facts.append(["kernel", "none: a view of its input"])
    else:
        share = _limit(time.least, time.ns)
        flops, nbytes = time.work
        facts += [
            ["kernel", str(time.kernel)],
            ["time", f"{time.ns / 1e3:.1f} us, {share}{_often(time)}"],
            ["work", f"{flops:,} flops, {nbytes:,} bytes"],
        ]
    if node.source:
        facts.append(["source", node.source])
    kind = "view" if time is None else "numpy" if time.kernel.name == "numpy" else "plain"
    return {
        "id": node.output,
        "title": node.op,
        "subtitle": types,
        "kind": kind,
        "group": group,
        "inputs": inputs,
        "facts": facts,
        "time": time.ns if time and not node.blocks else 0,
    }


def _often(time: _Time) -> str:
    return "" if time.times == 1 else f", in {time.times} times"


def _time_table(times: Mapping[str, _Time]) -> dict[str, Any]:
    """Return the table of nodes in run order, with the share of the roofline that each reaches.

    The share is null where it would be above 1.
    """
    columns = [
        {"name": "#", "kind": "number"},
        {"name": "node", "kind": "node"},
        {"name": "op", "kind": "text"},
        {"name": "kernel", "kind": "text"},
        {"name": "times", "kind": "number"},
        {"name": "us", "kind": "number"},
        {"name": "share of the limit, %", "kind": "share"},
        {"name": "time, and the machine's limit", "kind": "bar"},
    ]
    rows = [
        [
            number,
            name,
            time.site.node.op,
            str(time.kernel),
            time.times,
            round(time.ns / 1e3, 1),
            None
            if is_over(time.least, time.ns)
            else min(round(100 * time.least / max(time.ns, 1.0)), 100),
            [time.ns, min(time.least, time.ns)],
        ]
        for number, (name, time) in enumerate(times.items())
    ]
    note = (
        "In the order of the run; a click on a heading sorts. The upper bar is the least time of a "
        "node, the lower one the time below which no code computes it on this machine."
    )
    return {
        "kind": "table",
        "title": "Time by node",
        "note": note,
        "columns": columns,
        "rows": rows,
    }


def _totals(profile: Profile) -> list[dict[str, Any]]:
    """Return the tables of the time of each op and of each module."""
    tables = zip(("Time by op", "Time by module"), ("op", "module"), totals(profile), strict=True)
    return [
        {
            "kind": "table",
            "title": title,
            "columns": [
                {"name": first, "kind": "text"},
                {"name": "nodes", "kind": "number"},
                {"name": "us", "kind": "number"},
                {"name": "share of the run, %", "kind": "number"},
                {"name": "time", "kind": "bar"},
            ],
            "rows": [
                [
                    *(name, count, round(ns / 1e3, 1)),
                    *(round(100 * ns / max(profile.total, 1.0), 1), [ns]),
                ]
                for name, count, ns in table
            ],
        }
        for title, first, table in tables
        if table
    ]


def _trace(profile: Profile) -> dict[str, Any]:
    """Return the fastest run as a file that Perfetto shows."""
    return {
        "kind": "file",
        "title": "Trace",
        "name": "trace.json",
        "text": trace_text(profile),
        "note": "The fastest run: when each thread computed which node. Open the file in Perfetto "
        "(ui.perfetto.dev) or in chrome://tracing.",
    }


def _memory(plan: Plan, memory: MemoryUse) -> dict[str, Any]:
    """Return the bytes of the arena that are needed at each step."""
    note = f"Bytes that each step needs in the arena; the line is its size, {memory.arena:,}."
    return {
        "kind": "steps",
        "title": "Memory over the run",
        "values": memory.live,
        "labels": [f"{node.output} = {node.op}" for node in executed_nodes(plan)],
        "total": memory.arena,
        "note": note,
    }


def _tensors(title: str, names: list[str], plan: Plan) -> dict[str, Any]:
    columns = [{"name": name, "kind": "text"} for name in ("name", "role", "dtype", "shape")]
    columns.append({"name": "bytes", "kind": "bytes"})
    specs = [plan.tensors[name] for name in names]
    rows = [[s.name, s.role, s.dtype, str(list(s.shape)), s.nbytes] for s in specs]
    return {"kind": "table", "title": title, "columns": columns, "rows": rows}


def _weights(plan: Plan) -> dict[str, Any]:
    names = sorted(plan.constants, key=lambda name: -plan.constants[name].nbytes)
    section = _tensors("Weights", names, plan)
    section["columns"] += [
        {"name": "least", "kind": "number"},
        {"name": "largest", "kind": "number"},
        {"name": "values", "kind": "histogram"},
    ]
    for name, row in zip(names, section["rows"], strict=True):
        row += histogram(plan, name)
    return section
