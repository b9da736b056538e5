"""Make a plan of a graph: fix the order, share memory, lay out the arena, freeze."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_frontend.compiler.planning.order import memory_order
from taper_frontend.compiler.planning.recipes import written_recipes
from taper_frontend.compiler.planning.sharing import Sharing
from taper_frontend.compiler.planning.spool import spool
from taper_runtime.errors import InternalError
from taper_runtime.executor import _native
from taper_runtime.ops import REGISTRY
from taper_runtime.plan.checks import aligned
from taper_runtime.plan.liveness import Block, lifetimes, live_bytes
from taper_runtime.plan.plan import Plan, PlanNode
from taper_runtime.plan.specialize import substitute
from taper_runtime.plan.validate import validate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_runtime.plan.plan import TensorSpec


def make_plan(
    graph: Graph,
    *,
    samples: Mapping[str, np.ndarray] | None = None,
    input_tree: Any = None,
    output_tree: Any = None,
    metadata: Mapping[str, Any] | None = None,
) -> Plan:
    """Plan a graph's execution.

    Parameters
    ----------
    graph : Graph
        Every output, and next value of a state, is produced by a node and stands once in
        ``graph.writes``.
    samples, input_tree, output_tree, metadata
        Carried into the plan as they are; ``metadata`` gains "memory" (bytes: arena, intermediates,
        lower_bound, weights) and "fallbacks" (nodes without a native kernel), both at the graph's
        example sizes, and "recipes" (see :mod:`taper_runtime.plan.recipes`).

    Returns
    -------
    Plan
        Valid by :func:`taper_runtime.plan.validate.validate`.
    """
    order = memory_order(graph)
    sharing = Sharing(graph, order)
    blocks = _arena_blocks(graph, sharing, order)
    kernels = {node.output: _prepare(graph, sharing, node) for node in sharing.executed}
    scratch_blocks = {
        node.output: Block(step, step, kernel.scratch_bytes)
        for step, node in enumerate(order)
        if (kernel := kernels.get(node.output)) is not None and kernel.scratch_bytes
    }
    all_blocks = [*blocks.values(), *scratch_blocks.values()]
    offsets, arena_bytes = _native.assign_offsets(all_blocks)
    memory: dict[str, Any] = {
        "arena": arena_bytes,
        "intermediates": sum(
            graph.nbytes(node.output)
            for node in sharing.executed
            if not graph.is_output(node.output)
        ),
        "lower_bound": _lower_bound(all_blocks, len(order)),
        "weights": sum(constant.nbytes for constant in graph.constants.values()),
    }
    arena: dict[str, int] = {}
    scratch: dict[str, tuple[int, int]] = {}
    if graph.sizes:  # each run's sizes decide
        memory["sizes"] = dict(graph.examples)
        arena_bytes = 0
    else:
        arena = dict(zip(blocks, offsets, strict=False))
        places = zip(scratch_blocks.items(), offsets[len(blocks) :], strict=True)
        scratch = {name: (offset, block.nbytes) for (name, block), offset in places}
    fallbacks = [
        {"node": node.output, "op": node.op, "source": node.source}
        for node in sharing.executed
        if kernels[node.output] is None
    ]
    plan = Plan(
        nodes=tuple(_freeze(node, scratch.get(node.output, (0, 0))) for node in order),
        tensors={name: _with_role(graph, spec) for name, spec in graph.tensors.items()},
        placements={name: sharing.placement(name, arena) for name in graph.tensors},
        inputs=tuple(graph.inputs),
        outputs=tuple(graph.outputs),
        constants={
            **spool(graph.constants),
            **{state.name: state.first for state in graph.states},
        },
        arena_bytes=arena_bytes,
        samples=dict(samples or {}),
        input_tree=input_tree,
        output_tree=output_tree,
        metadata={
            **(metadata or {}),
            "memory": memory,
            "fallbacks": fallbacks,
            **written_recipes(graph.constants),
        },
        sizes=graph.sizes,
        states={state.name: state.next for state in graph.states},
    )
    validate(plan)
    return plan


def _arena_blocks(graph: Graph, sharing: Sharing, order: Sequence[Node]) -> dict[str, Block]:
    """Return the memory of each root in the arena, and which steps need it."""
    roots = {name: a.root for name, a in sharing.allocations.items() if not a.external}
    return {
        root: Block(*life, graph.typical(sharing.allocations[root].nbytes))
        for root, life in lifetimes(order, roots).items()
    }


def _lower_bound(blocks: Sequence[Block], count: int) -> int:
    """Return the most bytes that are live at one of ``count`` steps: no arena is smaller."""
    rounded = (block._replace(nbytes=aligned(block.nbytes)) for block in blocks)
    return max(live_bytes(rounded, count), default=0)


def _prepare(graph: Graph, sharing: Sharing, node: Node) -> _native.PreparedNode | None:
    """Prepare a node at the graph's example sizes."""
    op = REGISTRY[node.op]
    operands = []
    for name in (*node.reads, node.output):
        type_, (_, strides) = graph.tensors[name].type, sharing.slices[name]
        shape = substitute(type_.shape, graph.typical)
        operands.append((type_._replace(shape=shape), substitute(strides, graph.typical)))
    attrs = {
        name: substitute(value, graph.typical) for name, value in op.complete(node.attrs).items()
    }
    return _native.prepare(op, attrs, operands[:-1], operands[-1])


def _freeze(node: Node, scratch: tuple[int, int]) -> PlanNode:
    if len(node.outputs) > 1 or node.blocks or node.reads != node.inputs:
        raise InternalError(f"{node.op} {node.output!r}: plans have no node of this form yet")
    defaults = {name: attr.default for name, attr in REGISTRY[node.op].attrs.items()}
    complete = REGISTRY[node.op].complete(node.attrs)
    attrs = {name: value for name, value in complete.items() if not _same(value, defaults[name])}
    return PlanNode(node.op, tuple(node.inputs), node.output, attrs, scratch, node.source)


def _same(value: Any, default: Any) -> bool:
    """Equal and of one type: 0, 0.0 and False are different attrs."""
    return type(value) is type(default) and bool(value == default)


def _with_role(graph: Graph, spec: TensorSpec) -> TensorSpec:
    if graph.is_output(spec.name):
        return spec._replace(role="output")
    return spec
