"""Describe a plan as text and as plain data, for ``taper inspect`` and ``taper export``.

A plan's names, sources and metadata are not trusted. Lines pass through ``printable``, and metadata
in a form that no export writes are left out of the text.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from taper_runtime.base.errors import PlanFormatError
from taper_runtime.base.sizes import UNBOUNDED, Size, is_static
from taper_runtime.base.text import counted, printable
from taper_runtime.executor.memory_use import memory_use, parallel_arena
from taper_runtime.file.fields import features
from taper_runtime.file.plain_data import to_json
from taper_runtime.ops import REGISTRY
from taper_runtime.plan.arithmetic import quantized_nodes
from taper_runtime.plan.byte_products import slower_products
from taper_runtime.plan.features import with_inner
from taper_runtime.plan.readers import unread_inputs
from taper_runtime.plan.recipes import parameter_names, recipe_text
from taper_runtime.plan.spelling import call_text, range_text, size_text, type_text
from taper_runtime.plan.varying_dims import varying_dims

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from taper_runtime.plan.plan import Plan, PlanNode, TensorSpec
    from taper_runtime.plan.recipes import RecipeStep

#: The most characters of a line of :func:`summarize_plan`, and the most inputs, outputs or sizes.
_LINE, _LISTED = 100, 2

#: Matches the module's path in a source line of the frontend.
_MODULE = re.compile(r" in (?:(?P<module>\S+)\.)?\w+(?:: |$)")


def describe_plan(plan: Plan, *, nodes: bool = True, kernels: bool = False) -> str:
    """Describe inputs, outputs, memory, export report and, if ``nodes``, every node on a line.

    Parameters
    ----------
    plan : Plan
    nodes : bool
    kernels : bool
        Whether to prepare this CPU's kernels, to include their scratch memory in the arena.
    """
    lines = [*_describe_signature(plan)]
    lines += [f"asset   {name}: {size_text(len(data))}" for name, data in plan.assets.items()]
    lines += ["", describe_memory(plan, kernels=kernels), "", *_describe_export(plan)]
    if nodes:
        lines += ["", *_describe_weights(plan), *_describe_constants(plan)]
        lines += _describe_nodes(plan)
    for name in plan.entries:
        entry = plan.entry(name)
        lines += ["", f"entry   {name}", *_describe_signature(entry)]
        if nodes:
            lines += ["", *_describe_nodes(entry)]
    return "\n".join(map(printable, lines))


def summarize_plan(plan: Plan) -> str:
    """Describe a plan in at most ten lines; ``repr`` shows this."""
    executed = sum(map(plan.is_executed, plan.nodes))
    lines = [f"<Plan: {counted(len(plan.nodes), 'node')}, {executed} executed"]
    kinds: dict[str, list[str]] = {}
    for line in _describe_signature(plan):
        kinds.setdefault(line.split()[0], []).append(line)
    for kind, found in kinds.items():
        lines += found[:_LISTED]
        if len(found) > _LISTED:
            lines[-1] = f"{kind:<7} and {len(found) - _LISTED + 1} more"
    lines = [printable(line) for line in [*lines, f"memory  {describe_memory(plan)}"]]
    return "\n  ".join(line if len(line) <= _LINE else f"{line[:_LINE]}..." for line in lines) + ">"


def module_path(source: str) -> str | None:
    """Return the path of a source line's module; empty for the model itself.

    Return None if the line is empty or names no module.
    """
    found = _MODULE.search(source)
    return (found["module"] or "") if found else None


def plan_data(plan: Plan, *, nodes: bool = True, kernels: bool = False) -> dict[str, Any]:
    """Return the content of :func:`describe_plan` as plain data for JSON (docs/cli.md)."""
    memory, unread = memory_use(plan, kernels=kernels), unread_inputs(plan)
    data: dict[str, Any] = {
        "inputs": [
            {**_spec_data(plan.tensors[name]), "read": name not in unread} for name in plan.inputs
        ],
        "outputs": [_spec_data(plan.tensors[name]) for name in plan.outputs],
        "entry": plan.default,
        "entries": list(plan.entry_names),
        "features": features(plan),
        "input_tree": to_json(plan.input_tree, "input_tree"),
        "output_tree": to_json(plan.output_tree, "output_tree"),
        "samples": list(plan.samples),
        "assets": {name: len(data) for name, data in plan.assets.items()},
        "states": [_state_data(plan, name) for name in plan.states],
        "sizes": {name: _size_data(plan, name) for name in plan.sizes},
        "weights_bytes": memory.weights,
        "packed_bytes": memory.packed,
        "arena_bytes": memory.arena,
        "parallel_arena_bytes": parallel_arena(plan, kernels=kernels),
        "lower_bound_bytes": memory.lower_bound,
        "intermediates_bytes": memory.intermediates,
        "memory_sizes": dict(memory.sizes),
        "nodes_total": len(plan.nodes),
        "nodes_executed": sum(map(plan.is_executed, plan.nodes)),
        "quantized": [each._asdict() for each in quantized_nodes(plan)],
        "metadata": to_json(dict(plan.metadata), "metadata"),
    }
    if nodes:
        data["weights"] = [
            {
                "name": spec.name,
                "aliases": list(spec.aliases),
                "kind": spec.kind,
                "dtype": spec.seen.dtype,
                "shape": list(spec.seen.shape),
                "constants": list(plan.made_from(spec.name)),
            }
            for spec in plan.weights.values()
        ]
        recipes = plan.recipes
        data["constants"] = [
            {
                **_spec_data(plan.tensors[name]),
                "format": plan.tensors[name].format,
                "parameters": list(parameter_names(recipes[name])) if name in recipes else [],
                "recipe": recipe_text(recipes[name]) if name in recipes else "",
            }
            for name in plan.constants
            if name not in plan.states
        ]
        data["nodes"] = [_node_data(plan, node) for node in plan.nodes]
        data["others"] = {
            name: plan_data(plan.entry(name), kernels=kernels) for name in plan.entries
        }
    return data


def _state_data(plan: Plan, name: str) -> dict[str, Any]:
    return {
        **_spec_data(plan.tensors[name]),
        "next": plan.states[name],
        "in_place": plan.is_in_place(name),
        "zeros": name not in plan.constants,
    }


def _size_data(plan: Plan, name: str) -> dict[str, Any]:
    low, high = plan.sizes[name]
    tensor, element = plan.origins.get(name, ("", 0))
    return {
        "least": low,
        "largest": None if is_static(high) and high >= UNBOUNDED else _plain(high),
        "origin": {"tensor": tensor, "element": element} if tensor else None,
    }


def _node_data(plan: Plan, node: PlanNode) -> dict[str, Any]:
    return {
        "op": node.op,
        "inputs": list(node.inputs),
        "outputs": [_tensor_data(plan, name) for name in node.outputs],
        "attrs": to_json({k: _plain(v) for k, v in node.attrs.items()}, "attrs"),
        "executed": plan.is_executed(node),
        "source": node.source,
        "targets": list(node.targets),
        "blocks": [_block_data(plan.body(block)) for block in node.blocks],
    }


def _block_data(body: Plan) -> dict[str, Any]:
    return {
        "inputs": [_spec_data(body.tensors[name]) for name in body.inputs],
        "outputs": list(body.outputs),
        "nodes": [_node_data(body, node) for node in body.nodes],
    }


def _tensor_data(plan: Plan, name: str) -> dict[str, Any]:
    spec, (root, offset, strides) = plan.tensors[name], plan.placements[name]
    return {
        **_spec_data(spec),
        "format": spec.format,
        "root": root,
        "offset": _plain(offset),
        "strides": _plain(strides),
    }


def describe_memory(plan: Plan, *, kernels: bool = False) -> str:
    """Describe the bytes of weights and arena; for an invalid plan, the error.

    The arena holds the tensors. With ``kernels`` the kernels are prepared and their scratch memory
    is included.
    """
    try:
        memory = memory_use(plan, kernels=kernels)
    except PlanFormatError as error:
        return f"unknown, because the plan is not valid: {error}"
    packed = f" and {size_text(memory.packed)} packed when opened" if memory.packed else ""
    line = (
        f"weights {size_text(memory.weights)}{packed}, arena {size_text(memory.arena)}"
        f"{'' if kernels else ' without scratch'}"
        f" (lower bound {size_text(memory.lower_bound)},"
        f" intermediates {size_text(memory.intermediates)})"
    )
    if memory.sizes:
        line += " at " + ", ".join(f"{name} = {value}" for name, value in memory.sizes.items())
    return line


def verification_lines(plan: Plan) -> list[str]:
    """Describe the result of the export's verification; empty if there was none."""
    verified = plan.metadata.get("verified")
    if not _has(verified, {"trials": int, "max_error": float, "relative_error": float}):
        return []
    verified = plan.metadata["verified"]
    text = f"on {verified['trials']} inputs: differs from the module by at most "
    lines = [f"{text}{verified['max_error']:.0e}, relative {verified['relative_error']:.0e}"]
    if _has(verified, {"refused": int, "reason": str}):
        lines.append(
            f"{verified['refused']} random inputs that the module refuses: {verified['reason']}"
        )
    if _has(verified, {"uncertain": dict}):
        lines += [
            f"output {name!r} differs as float32 allows: {why}"
            for name, why in verified["uncertain"].items()
        ]
    inside = verified.get("inside")
    if _has(inside, {"values": int, "nodes": int, "of": int, "relative_error": float}):
        lines.append(
            f"inside, {inside['values']} values of the captured program and {inside['nodes']} of "
            f"{counted(inside['of'], 'node')}: relative {inside['relative_error']:.0e}"
        )
    elif _has(inside, {"reason": str}):
        lines.append(f"values inside were not compared: {inside['reason']}")
    return lines


def metadata_rows(plan: Plan, key: str, **types: type) -> list[dict[str, Any]]:
    """Return the objects under ``key`` of a plan's metadata that have these fields."""
    rows = plan.metadata.get(key)
    return [row for row in rows if _has(row, types)] if isinstance(rows, list | tuple) else []


def _has(value: object, types: Mapping[str, type]) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(k), t) for k, t in types.items())


def _spec_data(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "dtype": spec.seen.dtype, "shape": _plain(spec.seen.shape)}


def _plain(value: Any) -> Any:
    if isinstance(value, Size):
        return str(value)
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _describe_signature(plan: Plan) -> Iterable[str]:
    """Yield a line for each input, output, state and size, and for additional entries."""
    if plan.entries:
        yield f"entry   {plan.default}"
    unread = unread_inputs(plan)
    for kind, names in (("input", plan.inputs), ("output", plan.outputs), ("state", plan.states)):
        for name in names:
            note = ", not read" if kind == "input" and name in unread else ""
            yield f"{kind:<7} {name}: {type_text(plan.tensors[name])}{note}"
    for name, limits in plan.sizes.items():
        yield f"size    {name}: {range_text(limits)}{_origin(plan, name)}"
    for dim in varying_dims(plan):
        if str(dim.size) not in plan.sizes:
            most = "or more" if dim.most is None else f"to {dim.most}"
            step = (
                f", a multiple of {dim.step}" if dim.step > 1 and not dim.least % dim.step else ""
            )
            yield f"dim     {dim.input}[{dim.axis}] = {dim.size}: {dim.least} {most}{step}"


def _origin(plan: Plan, size: str) -> str:
    """Describe the node that computes a size, or the input that holds it, if there is one."""
    if size not in plan.origins:
        return ""
    tensor, element = plan.origins[size]
    if tensor in plan.inputs:
        return f", held by input {tensor}"
    which = f"element {element} of " if plan.tensors[tensor].type.size != 1 else ""
    return f", computed: {which}{tensor}"


def _describe_export(plan: Plan) -> list[str]:
    """Return lines on the export: producer, passes, warnings, verification, fallbacks, copies."""
    executed = sum(map(plan.is_executed, plan.nodes))
    lines = [f"{counted(len(plan.nodes), 'node')}, {executed} executed, the others views"]
    if "producer" in plan.metadata:
        lines.append(f"exported by {_short(plan.metadata['producer'])}")
    lines += [
        f"  {record['name']}: {record['before']} -> {record['after']} nodes"
        for record in metadata_rows(plan, "passes", name=str, before=int, after=int)
    ]
    lines += [
        f"warning ({warning['kind']}): {warning['text']}"
        for warning in metadata_rows(plan, "warnings", kind=str, text=str)
    ]
    return [
        *lines,
        *(
            f"  {line}" if index else f"verified {line}"
            for index, line in enumerate(verification_lines(plan))
        ),
        *_describe_budget(plan),
        *_describe_fallbacks(plan),
        *describe_quantized(plan),
        *_describe_copies(plan),
    ]


#: The most tensors in memory at a plan's peak that are listed.
_HELD = 6


def _describe_budget(plan: Plan) -> list[str]:
    """Return lines on the export's memory budget; empty if there was none."""
    found = plan.metadata.get("memory")
    sizes = ("budget", "natural", "achieved", "natural_ns", "ns")
    if not _has(found, {**dict.fromkeys(sizes, int), "at": str, "isa": str}):
        return []
    found = plan.metadata["memory"]
    met = "fits" if found["achieved"] <= found["budget"] else f"does not fit: {found['at']}"
    line = (
        f"memory budget {size_text(found['budget'])} on {found['isa']}: {met}, arena "
        f"{size_text(found['achieved'])}, without a budget {size_text(found['natural'])}; "
        f"estimated {found['ns'] / 1e6:.3f} ms, without {found['natural_ns'] / 1e6:.3f} ms"
    )
    moves = found.get("moves")
    rows = moves if isinstance(moves, list | tuple) else []
    types = {"kind": str, "what": str, "bytes": int, "ns": int}
    tensors = found.get("held")
    held = [
        f"{each['tensor']!r} {each['bytes']} bytes"
        for each in (tensors if isinstance(tensors, list | tuple) else [])
        if _has(each, {"tensor": str, "bytes": int})
    ]
    more = f" and {len(held) - _HELD} more" if len(held) > _HELD else ""
    return [
        line,
        *([f"  in memory at {found['at']}: {', '.join(held[:_HELD])}{more}"] if held else []),
        *(
            f"  {move['kind']} {move['what']}: {move['bytes']} bytes less, {move['ns']} ns more"
            for move in rows
            if _has(move, types)
        ),
    ]


def _describe_fallbacks(plan: Plan) -> list[str]:
    fallbacks = metadata_rows(plan, "fallbacks", node=str, op=str, source=str)
    if fallbacks:
        return [
            f"{counted(len(fallbacks), 'node')} without a native kernel, computed by numpy:",
            *(f"  {f['node']} = {f['op']}  {f['source']}" for f in fallbacks),
        ]
    return ["every node has a native kernel"] if plan.metadata.get("fallbacks") == [] else []


def describe_quantized(plan: Plan) -> list[str]:
    """Return lines on the products by weights of few bits: how many compute in which arithmetic."""
    found = Counter((each.op, each.stored, each.arithmetic) for each in quantized_nodes(plan))
    return [
        *(
            f"{counted(count, 'product')} by quantized weights: {op}, {stored}: {arithmetic}"
            for (op, stored, arithmetic), count in sorted(found.items())
        ),
        *(
            f"  predicted to be slower with bytes than with floats: {name}, "
            f"{times.of_bytes / 1e3:.1f} us, not {times.of_floats / 1e3:.1f} us"
            for name, times in slower_products(plan)
        ),
        *(
            f"  left in float32: {each['name']}, predicted {each['float32_us']:.1f} us, with bytes "
            f"{each['int8_us']:.1f} us"
            for each in plan.metadata.get("quantized", {}).get("predictions", ())
            if each["computes"] == "float32"
        ),
    ]


def _describe_copies(plan: Plan) -> list[str]:
    """Return a line for each copy that the plan makes, with the ops that need it."""
    copies = [node for node in plan.nodes if _is_copy(plan, node)]
    if not copies:
        return []
    makers = {name: node for node in plan.nodes for name in node.outputs}
    readers: dict[str, list[int]] = {}  # steps
    for step, node in enumerate(plan.nodes):
        for name in dict.fromkeys(node.reads):
            readers.setdefault(name, []).append(step)
    count = counted(len(copies), "node")
    lines = [f"{count} that only move values, between the ops that make and read them:"]
    for node in copies:
        source = node.reads[0]
        while source in makers and not plan.is_executed(makers[source]):
            source = makers[source].reads[0]
        maker = makers[source].op if source in makers else plan.tensors[source].role
        needs = ", ".join(_needs(plan, node.output, readers))
        size = size_text(plan.tensors[node.output].nbytes)
        lines.append(f"  {node.output} = {node.op}, {maker} to {needs}, {size}")
    return lines


def _is_copy(plan: Plan, node: PlanNode) -> bool:
    """Return whether a node is executed although it could be a view, or is a COPY."""
    return plan.is_executed(node) and (node.op == "COPY" or REGISTRY[node.op].view is not None)


def _needs(plan: Plan, name: str, readers: Mapping[str, list[int]]) -> Iterable[str]:
    """Yield the ops that read a tensor or a view of it, in order; ``output`` for the caller."""
    names = [name]
    steps = set()
    for each in names:  # views are appended
        for step in readers.get(each, ()):
            if plan.is_executed(plan.nodes[step]):
                steps.add(step)
            else:
                names.append(plan.nodes[step].output)
    ops = [plan.nodes[step].op for step in sorted(steps)]
    return dict.fromkeys(ops + ["output"] * any(each in plan.outputs for each in names))


def _recipes(plan: Plan) -> Iterable[tuple[str, Sequence[RecipeStep]]]:
    return ((name, recipe) for name, recipe in plan.recipes.items() if name in plan.tensors)


def _describe_constants(plan: Plan) -> list[str]:
    lines = [
        f"{name}: {type_text(plan.tensors[name])} = {recipe_text(recipe)}"
        for name, recipe in _recipes(plan)
        if len(recipe) > 1 or name not in parameter_names(recipe)
    ]
    return [f"{counted(len(lines), 'constant')} made from parameters:", *lines, ""] if lines else []


def _describe_weights(plan: Plan) -> list[str]:
    """Return lines that say, for each replaceable weight, which constants depend on it."""
    lines = []
    for spec in plan.weights.values():
        if spec.kind == "constant":
            continue
        names = " = ".join((spec.name, *spec.aliases))
        made = ", ".join(plan.made_from(spec.name)) or "nothing"
        lines.append(f"{names}: {spec.kind} {spec.seen.dtype}{list(spec.seen.shape)} -> {made}")
    return [f"{counted(len(lines), 'weight')} that can be replaced:", *lines, ""] if lines else []


def _describe_nodes(plan: Plan) -> list[str]:
    counts = Counter(node.op for node in with_inner(plan.nodes))
    return [
        *_node_lines(plan, ""),
        "",
        "  ".join(f"{op} {count}" for op, count in counts.most_common()),
    ]


def _node_lines(plan: Plan, indent: str) -> Iterable[str]:
    """Yield a line per node; nodes in blocks follow their node."""
    for node in plan.nodes:
        outputs = ", ".join(f"{name}: {type_text(plan.tensors[name])}" for name in node.outputs)
        attrs = "".join(f" {name}={_short(value)}" for name, value in node.attrs.items())
        kind = "" if plan.is_executed(node) else " (view)"
        yield f"{indent}{outputs} = {call_text(node)}{attrs}{kind}"
        for block in node.blocks:
            types = ", ".join(f"{name}: {type_text(block.tensors[name])}" for name in block.inputs)
            yield f"{indent}  ({types}) -> ({', '.join(block.outputs)}):"
            yield from _node_lines(plan.body(block), f"{indent}    ")


def _short(value: object) -> str:
    text = str(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 100 else text[:97] + "..."
