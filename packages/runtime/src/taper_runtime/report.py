"""A plan in words: what ``taper inspect`` and ``taper export`` print."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from taper_runtime.ops import REGISTRY
from taper_runtime.sizes import UNBOUNDED

if TYPE_CHECKING:
    from taper_runtime.plan.plan import Plan, PlanNode, TensorSpec


def describe_plan(plan: Plan, *, nodes: bool = True) -> str:
    """Inputs, outputs, memory, export report and, if ``nodes``, every node on a line."""
    lines = [f"input   {_describe(plan.tensors[name])}" for name in plan.inputs]
    lines += [f"output  {_describe(plan.tensors[name])}" for name in plan.outputs]
    for name, (low, high) in plan.sizes.items():
        limits = f"{low} or more" if high >= UNBOUNDED else f"{low} to {high}"
        lines.append(f"size    {name}: {limits}")
    lines += ["", *_describe_memory(plan), "", *_describe_export(plan)]
    if nodes:
        lines += ["", *_describe_nodes(plan)]
    return "\n".join(lines)


def _describe(spec: TensorSpec) -> str:
    return f"{spec.name}: {spec.dtype}[{', '.join(map(str, spec.shape))}]"


def _describe_memory(plan: Plan) -> list[str]:
    weights = sum(array.nbytes for array in plan.constants.values())
    memory = plan.metadata.get("memory")
    arena = memory.get("arena", 0) if plan.sizes and isinstance(memory, dict) else plan.arena_bytes
    lines = [f"weights {_size(weights)}, arena {_size(arena)}"]
    if isinstance(memory, dict):
        lines[0] += (
            f" (lower bound {_size(memory.get('lower_bound', 0))}, "
            f"intermediates {_size(memory.get('intermediates', 0))})"
        )
        if plan.sizes:
            sizes = memory.get("sizes", {})
            lines[0] += " at " + ", ".join(f"{name} = {value}" for name, value in sizes.items())
    return lines


def _describe_export(plan: Plan) -> list[str]:
    metadata = plan.metadata
    executed = sum(map(plan.is_executed, plan.nodes))
    lines = [f"{_nodes(len(plan.nodes))}, {executed} executed, the others views"]
    if "producer" in metadata:
        lines.append(f"exported by {metadata['producer']}")
    lines += [
        f"  {record['name']}: {record['before']} -> {record['after']} nodes"
        for record in metadata.get("passes", ())
    ]
    lines += [f"  fixed by torch: {dim}" for dim in metadata.get("specialized", ())]
    verified = metadata.get("verified")
    if verified:
        lines.append(
            f"verified on {verified['trials']} inputs: differs from the module by at most "
            f"{verified['max_error']:.0e}, relative {verified['relative_error']:.0e}"
        )
        if "refused" in verified:
            lines.append(
                f"  {verified['refused']} random inputs that the module refuses: "
                f"{verified['reason']}"
            )
        lines += [
            f"  output {name!r} differs as float32 allows: {why}"
            for name, why in verified.get("uncertain", {}).items()
        ]
    fallbacks = metadata.get("fallbacks", ())
    if fallbacks:
        lines.append(f"{_nodes(len(fallbacks))} without a native kernel, computed by numpy:")
        lines += [f"  {f['node']} = {f['op']}  {f['source']}" for f in fallbacks]
    else:
        lines.append("every node has a native kernel")
    copies = [node for node in plan.nodes if _is_copy(plan, node)]
    if copies:
        lines.append(
            f"{_nodes(len(copies))} moving values only, between what makes and needs them:"
        )
        lines += [f"  {_describe_copy(plan, node)}" for node in copies]
    return lines


def _is_copy(plan: Plan, node: PlanNode) -> bool:
    """Whether a node that could be a view, or is a COPY, is executed."""
    return plan.is_executed(node) and (node.op == "COPY" or REGISTRY[node.op].view is not None)


def _describe_copy(plan: Plan, node: PlanNode) -> str:
    makers = {other.output: other for other in plan.nodes}
    source = node.inputs[0]
    while source in makers and not plan.is_executed(makers[source]):
        source = makers[source].inputs[0]
    readers = {node.output}
    needs = []
    for other in plan.nodes:
        if readers.isdisjoint(other.inputs):
            continue
        if plan.is_executed(other):
            needs.append(other.op)
        else:
            readers.add(other.output)
    needs += ["output"] * any(name in readers for name in plan.outputs)
    maker = makers[source].op if source in makers else plan.tensors[source].role
    size = _size(plan.tensors[node.output].nbytes)
    return f"{node.output} = {node.op}, {maker} to {', '.join(dict.fromkeys(needs))}, {size}"


def _describe_nodes(plan: Plan) -> list[str]:
    lines = []
    for node in plan.nodes:
        spec = plan.tensors[node.output]
        shape = f"{spec.dtype}[{', '.join(map(str, spec.shape))}]"
        attrs = "".join(f" {name}={_short(value)}" for name, value in node.attrs.items())
        kind = "" if plan.is_executed(node) else " (view)"
        lines.append(f"{node.output}: {shape} = {node.op}({', '.join(node.inputs)}){attrs}{kind}")
    counts = Counter(node.op for node in plan.nodes)
    lines += ["", "  ".join(f"{op} {count}" for op, count in counts.most_common())]
    return lines


def _short(value: object) -> str:
    text = str(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 100 else text[:97] + "..."


def _nodes(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"


def _size(nbytes: int) -> str:
    if nbytes < 1_000_000:
        return f"{nbytes / 1e3:.1f} kB"
    return f"{nbytes / 1e6:.1f} MB"
