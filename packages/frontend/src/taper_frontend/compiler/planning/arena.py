"""Lay out the arena of a graph before a plan is made of it, as a session of this machine will."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.planning.to_block import to_block
from taper_runtime.base.checks import aligned
from taper_runtime.base.records import NamedTuple
from taper_runtime.executor.program import arena_ranges, make_runner
from taper_runtime.executor.rollback import with_saves
from taper_runtime.executor.sites import executed_nodes
from taper_runtime.plan.liveness import LiveRange, live_bytes
from taper_runtime.plan.plan import Plan
from taper_runtime.plan.replaceable import stand_in
from taper_runtime.plan.specialize import specialize

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.planning.order import Schedule
    from taper_runtime.ops.opdef import Shape


class Arena(NamedTuple):
    """The arena of a scheduled graph, at the example sizes.

    Attributes
    ----------
    nbytes : int
        What :func:`taper_runtime.executor.memory_use.memory_use` returns for the plan.
    live : list of int
        The bytes that are needed at each executed node, tensors and scratch.
    scratch : list of int
        The bytes of each executed node's own memory: a kernel's scratch, or that of its blocks.
    steps : dict of str to int
        The number of each executed node, by its output.
    ranges : dict of str to LiveRange
        The memory of each root.
    roots : dict of str to str
        The root of each tensor that lies in the arena.
    strides : dict of str to tuple of int
        The strides of all tensors, in elements.
    runner : object
        Keeps the tables of kernels that the nodes read, such as those of RESAMPLE, which nodes of
        the same sizes share.
    """

    nbytes: int
    live: list[int]
    scratch: list[int]
    steps: dict[str, int]
    ranges: dict[str, LiveRange]
    roots: dict[str, str]
    strides: dict[str, Shape]
    runner: object


def lay_out_graph(graph: Graph, schedule: Schedule) -> Arena:
    """Return the arena of a run of a graph, with the scratch of this machine's kernels.

    Raises
    ------
    InternalError
        If the graph was changed after it was scheduled.
    InputError
        If a tensor or the arena would be larger than it may be.
    """
    planned = to_block(graph, schedule)
    plan = Plan(
        *planned.block,
        constants={
            **{name: stand_in(planned.block.tensors[name].storage) for name in planned.constants},
            **{state.name: state.first for state in graph.states},
        },
        sizes=graph.sizes,
        states={state.name: state.next for state in graph.states},
        origins=dict(graph.origins),
    )
    plan = with_saves(specialize(plan, graph.examples))
    nodes = executed_nodes(plan)
    runner = make_runner(plan)
    ranges, _, nbytes = runner.arena()
    rounded = [LiveRange(first, last, aligned(size)) for first, last, size in ranges]
    owned = dict(zip(arena_ranges(plan, nodes), rounded, strict=False))
    return Arena(
        nbytes,
        live_bytes(rounded, len(nodes)),
        [each.nbytes for each in rounded[len(rounded) - len(nodes) :]],
        {node.output: step for step, node in enumerate(nodes)},
        owned,
        {name: at.root for name, at in plan.placements.items() if at.root in owned},
        {name: at.strides for name, at in plan.placements.items()},
        runner,
    )
