"""Split a plan into segments, before nodes that need sizes that other nodes compute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.base.checks import is_check
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.sizes import Size, variables
from taper_runtime.plan.plan import Plan, PlanNode, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from taper_runtime.base.polynomials import Atom


class Segment(NamedTuple):
    """Consecutive nodes of a plan whose sizes are known before the first of them runs.

    Attributes
    ----------
    plan : Plan
        A plan of the segment's nodes. Its inputs are the roots of other segments, or of the whole
        plan's inputs, that it reads or writes. Its outputs are the roots that begin in it and are
        needed later. Its sizes are those that its nodes depend on; no input gives their values.
    measured : mapping of str to tuple of str and int
        The size variables that become known just before this segment: the root that holds the
        value, and the offset in bytes. The first segment has those that inputs hold.
    """

    plan: Plan
    measured: Mapping[str, tuple[str, int]]


def cut(plan: Plan) -> list[Segment]:
    """Return the segments of a valid plan in order; only one if no node computes a size."""
    parts = _parts(plan)
    roots = {name: placement.root for name, placement in plan.placements.items()}
    touched = [_touched(nodes, roots) for nodes, _ in parts]
    needed = [roots[name] for name in plan.writes]
    needed += [roots[tensor] for tensor, _ in plan.origins.values()]
    external = {n for n in plan.constants if n not in plan.states}
    before: dict[str, None] = dict.fromkeys(plan.reads)
    segments = []
    for index, (nodes, measured) in enumerate(parts):
        later = {root for each in touched[index + 1 :] for root in each}.union(needed)
        reads = tuple(root for root in touched[index] if root in before)
        new = [root for root in touched[index] if root not in before and root not in external]
        writes = tuple(root for root in new if root in later)
        segment = _sub_plan(plan, nodes, reads, writes)
        places = {
            name: (roots[tensor], plan.placements[tensor].offset + 8 * element)
            for name in measured
            for tensor, element in [plan.origins[name]]
        }
        segments.append(Segment(segment, places))
        before.update(dict.fromkeys(new))
    return segments


def _parts(plan: Plan) -> list[tuple[list[PlanNode], list[str]]]:
    """Return the nodes of each segment, and the size variables that become known before it.

    The variables are in the order of the plan's sizes: each before those whose ranges it limits.
    """
    origins = {name: plan.origins[name][0] for name in plan.sizes if name in plan.origins}
    given = [name for name, tensor in origins.items() if tensor in plan.inputs]
    parts: list[tuple[list[PlanNode], list[str]]] = [([], given)]
    known = set(given)
    computed: set[str] = set()
    for node in plan.nodes:
        needs = _sizes_of(plan, node) & plan.origins.keys()
        if not needs <= known:
            ready = [name for name, tensor in origins.items() if tensor in computed]
            fresh = [name for name in ready if name not in known]
            known.update(fresh)
            parts.append(([], fresh))
        parts[-1][0].append(node)
        computed.update(node.outputs)
    unchecked = [name for name in origins if name not in known and is_check(plan.sizes[name])]
    return [*parts, ([], unchecked)] if unchecked else parts


def _touched(nodes: Iterable[PlanNode], roots: Mapping[str, str]) -> dict[str, None]:
    """Return the roots that the nodes read or write, in order."""
    names = (name for node in nodes for name in (*node.reads, *node.outputs))
    return dict.fromkeys(roots[name] for name in names)


def _sizes_of(plan: Plan, node: PlanNode) -> set[str]:
    """Return the size variables that a node uses."""
    values = [*node.attrs.values()]
    for name in (*node.reads, *node.outputs):
        root, offset, strides = plan.placements[name]
        values += [plan.tensors[name].shape, plan.tensors[root].shape, strides, offset]
    inside = [_sizes_of(plan.body(block), each) for block in node.blocks for each in block.nodes]
    return {atom.text for value in values for atom in _atoms(value)}.union(*inside)


def _atoms(value: Any) -> Iterator[Atom]:
    for item in value if type(value) in (tuple, list) else (value,):
        if type(item) is Size:
            yield from variables(item)


def _sub_plan(
    plan: Plan, nodes: list[PlanNode], reads: tuple[str, ...], writes: tuple[str, ...]
) -> Plan:
    """Return a plan of these nodes with the roots ``reads`` as inputs, ``writes`` as outputs."""
    names = dict.fromkeys(name for node in nodes for name in (*node.reads, *node.outputs))
    blocks = (block for node in nodes for block in node.blocks)
    names |= dict.fromkeys(name for block in blocks for name in plan.constants_inside(block))
    names |= dict.fromkeys(plan.placements[name].root for name in [*names])
    sizes = {name for node in nodes for name in _sizes_of(plan, node)}
    crossing = dict.fromkeys(reads, "input") | dict.fromkeys(writes, "output")
    tensors = {
        name: _as_stored(plan.tensors[name], crossing[name])
        if name in crossing
        else plan.tensors[name]
        for name in names
    }
    return plan._replace(
        nodes=tuple(nodes),
        tensors=tensors,
        placements={name: plan.placements[name] for name in names},
        inputs=reads,
        outputs=writes,
        constants={n: a for n, a in plan.constants.items() if n in names and n not in plan.states},
        samples={},
        sizes={name: limits for name, limits in plan.sizes.items() if name in sizes},
        states={},
        origins={},
    )


def _as_stored(spec: TensorSpec, role: str) -> TensorSpec:
    dtype, shape, _ = spec.storage
    return TensorSpec(spec.name, dtype, shape, role)
