"""Split the batch into micro-batches, so that tensors between nodes stay in cache."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.batch import BatchAxes
from taper_frontend.compiler.analysis.chains import Room, room_of
from taper_frontend.compiler.analysis.estimates import node_cost
from taper_frontend.compiler.stages.schedule.tiles import Tiles
from taper_runtime.base.decisions import Decision
from taper_runtime.base.text import counted
from taper_runtime.machine.cost import Locality, beyond_cache, shared_ns
from taper_runtime.plan.liveness import LiveRange, lifetimes, live_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node

#: The most micro-batches, and the most nodes: a larger plan takes long to open.
_MOST, _MOST_NODES = 16, 1 << 12


def split_into_microbatches(graph: Graph, room: Room | None = None) -> bool:
    """Compute runs of nodes for one micro-batch after the other.

    ::

        CONV(x, v)                              for each micro-batch:
        MEAN(.), MATMUL(., u), ...                SLICE(x), CONV(., v), MEAN(.), MATMUL(., u), ...
        MUL(., .), MATMUL(., w)                   MUL(., .), MATMUL(., w)
                                                CAT(micro-batches)

    A micro-batch is a view of the batch, and its result is computed at its offset in the whole. So
    only nodes are added, and the arena holds the tensors of one micro-batch. The regions of the ops
    say which nodes keep the items of the batch apart. The number of micro-batches of each node is a
    shortest path over the nodes in order. Its costs are the traffic outside the cache, the weights
    that nodes wait for, and, if the number changes, the traffic of all live tensors.

    Parameters
    ----------
    graph : Graph
    room : int or callable, optional
        The bytes within which the operands of a node cause no traffic, or a function that returns
        them for the whole graph (:data:`.chains.Room`). By default those of a core's own cache.

    Returns
    -------
    bool
        Whether anything was split.
    """
    batch = BatchAxes(graph)
    if batch.items < 2:
        return False
    room = room_of(room, "micro-batches", graph.copy)
    order = _batch_last(graph, batch)
    counts, among = _least_time(graph, batch, order, room)
    changed = False
    for count, pairs in groupby(zip(counts, order, strict=True), key=lambda pair: pair[0]):
        nodes = [node for _, node in pairs]
        if count > 1:
            split_nodes(graph, batch, nodes, count)
            changed = True
        graph.listener.considered(_decision(nodes, count, among))
    return changed


def _decision(nodes: Sequence[Node], count: int, among: dict[str, int | None]) -> Decision:
    """Return the decision about a chain of nodes, under the name of its last node."""
    why = f"{counted(len(nodes), 'node')} from {nodes[0].output}; least estimated time of all nodes"
    return Decision("micro-batches", nodes[-1].output, str(count), among, why)


def _batch_last(graph: Graph, batch: BatchAxes) -> list[Node]:
    """Order nodes so that those without the batch come first, because they would interrupt runs."""
    with_batch = set(batch.rows)
    first, then = [], []
    for node in graph.order():
        if with_batch.isdisjoint(node.inputs):
            first.append(node)
        else:
            then.append(node)
            with_batch.add(node.output)
    return first + then


def _least_time(
    graph: Graph, batch: BatchAxes, order: Sequence[Node], room: int
) -> tuple[list[int], dict[str, int | None]]:
    """Return the number of micro-batches of each node that takes the least time in all.

    Also return the estimated nanoseconds of all nodes with it, without a split, and with each
    number of micro-batches for all nodes that can have it.
    """
    most = min(batch.items, _MOST, _MOST_NODES // max(1, len(order)))
    choices = [1, *(count for count in (2, 4, 8) if count < most), *([most] if most > 1 else [])]
    uniform = dict.fromkeys(choices, 0.0)
    times = {1: 0.0}  # the least time up to a node, by the node's count
    chosen: list[dict[int, int]] = []  # for each count of a node, the best count of the node before
    *between, last = _live_across(graph, batch, order, room)
    for node, live in zip(order, between, strict=True):
        before: dict[int, int] = {}
        after: dict[int, float] = {}
        for count in choices if batch.keeps_apart(node) else [1]:
            before[count], time = _cheapest(times, count, live)
            ns = _node_ns(graph, batch, node, count, room)
            after[count] = time + ns
            uniform[count] += ns
        chosen.append(before)
        times = after
    count, least = _cheapest(times, 1, last)
    counts = []
    for before in reversed(chosen):
        counts.append(count)
        count = before[count]
    among = {"no split" if n == 1 else f"all in {n}": round(ns) for n, ns in uniform.items()}
    return counts[::-1], {**among, "as chosen": round(least)}


def _cheapest(times: dict[int, float], count: int, live: float) -> tuple[int, float]:
    """Return the cheapest predecessor count of ``count``, and the total time through it.

    If the count changes, live tensors go through memory, which takes the time ``live``. If one side
    is not split, its own time already includes that.
    """
    options = {
        other: time + (0 if other == count else live if 1 in (other, count) else 2 * live)
        for other, time in times.items()
    }
    best = min(options, key=options.__getitem__)
    return best, options[best]


def _live_across(graph: Graph, batch: BatchAxes, order: Sequence[Node], room: int) -> list[float]:
    """Return the times of moving live tensors beyond the cache, before each node and at the end."""
    roots = {name: name for name in batch.rows}
    for node in order:
        if node.definition.view is not None and node.inputs[0] in roots and node.output in roots:
            roots[node.output] = roots[node.inputs[0]]
    lives = lifetimes(order, roots, graph.reads, graph.kept)
    ranges = [
        LiveRange(birth + 1, death, int(beyond_cache(graph.tensors[root].nbytes, room)))
        for root, (birth, death) in lives.items()
    ]
    return [shared_ns(nbytes) for nbytes in live_bytes(ranges, len(order) + 1)]


def _node_ns(graph: Graph, batch: BatchAxes, node: Node, count: int, room: int) -> float:
    """Return the time of a node in all micro-batches; 0 for a node that cannot be split."""
    if not batch.keeps_apart(node) or node.definition.view is not None:
        return 0.0
    cut = batch.cut_inputs(node)
    moved = sum(beyond_cache(graph.tensors[t].nbytes / count, room) for t in (*cut, node.output))
    constants = graph.constants.keys() & set(node.inputs) - cut
    shared = sum(graph.tensors[name].nbytes for name in constants)
    # Weights are prefetched, so a node waits for them only if it has little to compute with them.
    place = Locality(1 / count, streamed=shared_ns(shared), waited=shared_ns(moved))
    return count * node_cost(graph, node, place)


# -- the rewrite -----------------------------------------------------------------------------------


def split_nodes(graph: Graph, batch: BatchAxes, nodes: Sequence[Node], count: int) -> None:
    """Compute consecutive nodes, which keep items apart, for one micro-batch after the other."""
    inside = {node.output for node in nodes}
    results = [
        node
        for node in nodes
        if graph.is_output(node.output)
        or any(consumer.output not in inside for consumer in graph.consumers(node.output))
    ]
    ends = [batch.items * index // count for index in range(count + 1)]
    parts: dict[str, list[str]] = {node.output: [] for node in nodes}
    for items in pairwise(ends):
        tiles = Tiles(graph, ".items")
        for node in nodes:
            made = tiles.compute(node, {0: batch.rows_of(node.output, items)})
            parts[node.output].append(made)
    for node in reversed(results):
        graph.replace_node(node, "CAT", parts[node.output], {"axis": 0})
