"""Describe a plan and where its time goes as a page: what ``taper report`` writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.executor.executor import node_work
from taper_runtime.executor.memory import MemoryUse, memory_use
from taper_runtime.pages.viewer import make_page
from taper_runtime.profile import least_ns
from taper_runtime.report import metadata_rows, module_path, type_text, verification_lines
from taper_runtime.text import counted

if TYPE_CHECKING:
    from taper_runtime.machine.limits import Limits
    from taper_runtime.plan.plan import Plan, PlanNode, TensorSpec
    from taper_runtime.profile import Profile


def report_page(title: str, profile: Profile, limits: Limits) -> str:
    """Return a self-contained HTML page about a plan.

    Parameters
    ----------
    title : str
        The plan's name, such as its file's.
    profile : Profile
        Of the plan, for the sizes the page is about.
    limits : Limits
        Of this machine, for the number of threads of the profile.
    """
    plan = profile.plan
    total = sum(profile.ns)
    subtitle = (
        f"{counted(len(plan.nodes), 'node')}, {total / 1e6:.3f} ms on "
        f"{counted(profile.threads, 'thread')} of {limits.isa}"
    )
    floors = dict(zip(_executed(plan), least_ns(plan, limits), strict=True))
    times = {
        node.output: (kernel, ns, floors[node.output])
        for (node, kernel), ns in zip(profile.steps, profile.ns, strict=True)
    }
    memory = memory_use(plan)
    sections = [
        _summary(plan, total, sum(floors.values()), memory),
        *_warnings(plan),
        {"kind": "graph", "title": "Graph", "nodes": _graph(plan, times)},
        _time_table(plan, times),
        _memory(plan, memory),
        _tensors("Inputs and outputs", [*plan.inputs, *plan.outputs], plan),
        _weights(plan),
    ]
    return make_page(title, subtitle, sections)


def _executed(plan: Plan) -> list[str]:
    return [node.output for node in plan.nodes if plan.is_executed(node)]


def _summary(plan: Plan, total: float, least: float, memory: MemoryUse) -> dict[str, Any]:
    rows = [
        ["nodes", f"{len(plan.nodes)}, of which {len(_executed(plan))} are computed"],
        ["time", f"{total / 1e6:.3f} ms, {least / max(total, 1.0):.0%} of the machine's limit"],
        ["weights", f"{memory.weights:,} bytes"],
    ]
    rows += [[name, str(plan.metadata[name])] for name in ("producer",) if name in plan.metadata]
    rows += [["verified", line] for line in verification_lines(plan)]
    return {"kind": "facts", "title": "Summary", "rows": rows}


def _warnings(plan: Plan) -> list[dict[str, Any]]:
    items = [warning["text"] for warning in metadata_rows(plan, "warnings", kind=str, text=str)]
    items += [
        f"computed by numpy: {fallback['node']} = {fallback['op']}"
        for fallback in metadata_rows(plan, "fallbacks", node=str, op=str)
    ]
    return [{"kind": "warnings", "title": "Warnings", "items": items}] if items else []


def _graph(plan: Plan, times: dict[str, tuple[str, float, float]]) -> list[dict[str, Any]]:
    """Return the nodes of the picture: inputs and states, the plan's nodes, outputs."""
    nodes = [_end(plan.tensors[name], name, []) for name in plan.reads]
    makers = {name: node.output for node in plan.nodes for name in node.outputs}
    module: list[str] = []
    for node in plan.nodes:
        # a node that torch recorded no line for belongs with the one before it
        path = module_path(node.source)
        module = module if path is None else path.split(".")
        inputs = [makers.get(name, name) for name in node.reads]
        nodes.append(_node(plan, node, inputs, module, times.get(node.output)))
    nodes += [_end(plan.tensors[n], f"{n} (output)", [makers[n]]) for n in plan.outputs]
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
    plan: Plan,
    node: PlanNode,
    inputs: list[str],
    module: list[str],
    time: tuple[str, float, float] | None,
) -> dict[str, Any]:
    types = ", ".join(type_text(plan.tensors[name]) for name in node.outputs)
    facts = [["op", node.op], ["result", types], ["module", ".".join(module)]]
    facts += [[name, str(value)] for name, value in node.attrs.items()]
    if time is None:
        facts.append(["kernel", "none: a view of its input"])
    else:
        kernel, ns, floor = time
        work = node_work(plan, node)
        facts += [
            ["kernel", kernel],
            ["time", f"{ns / 1e3:.1f} us, {floor / max(ns, 1.0):.0%} of the machine's limit"],
            ["work", f"{work.flops:,} flops, {work.bytes:,} bytes"],
        ]
    if node.source:
        facts.append(["source", node.source])
    kind = "view" if time is None else "numpy" if time[0] == "numpy" else "plain"
    return {
        "id": node.output,
        "title": node.op,
        "subtitle": types,
        "kind": kind,
        "group": [part for part in module if part],
        "inputs": inputs,
        "facts": facts,
        "time": time[1] if time else 0,
    }


def _time_table(plan: Plan, times: dict[str, tuple[str, float, float]]) -> dict[str, Any]:
    ops = {node.output: node.op for node in plan.nodes}
    columns = [
        {"name": "node", "kind": "node"},
        {"name": "op", "kind": "text"},
        {"name": "kernel", "kind": "text"},
        {"name": "us", "kind": "number"},
        {"name": "share of the limit, %", "kind": "number"},
        {"name": "time, and the machine's limit", "kind": "bar"},
    ]
    rows = [
        [
            name,
            ops[name],
            kernel,
            round(ns / 1e3, 1),
            round(100 * floor / max(ns, 1.0)),
            [ns, min(floor, ns)],
        ]
        for name, (kernel, ns, floor) in times.items()
    ]
    return {"kind": "table", "title": "Time by node", "columns": columns, "rows": rows}


def _memory(plan: Plan, memory: MemoryUse) -> dict[str, Any]:
    """Return the bytes of the arena that are needed at each step."""
    note = f"Bytes that each step needs in the arena; the line is its size, {memory.arena:,}."
    return {
        "kind": "steps",
        "title": "Memory over the run",
        "values": memory.live,
        "labels": [f"{node.output} = {node.op}" for node in filter(plan.is_executed, plan.nodes)],
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
    return _tensors("Weights", names, plan)
