"""Parts of the graph an image of the batch at a time, so that what nodes hand on stays in cache."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.batch import Batch
from taper_frontend.compiler.analysis.cost import node_cost
from taper_runtime.machine.cost import Place, beyond_cache, shared_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node

#: Groups of images at most, and nodes: a plan of more takes long to open.
_MOST, _MOST_NODES = 16, 1 << 12


def split_batch(graph: Graph) -> bool:
    """Compute stretches of the graph for some images of the batch after the others.

    ::

        CONV(x, v)                              for each group of images:
        MEAN(.), MATMUL(., u), ...                SLICE(x), CONV(., v), MEAN(.), MATMUL(., u), ...
        MUL(., .), MATMUL(., w)                   MUL(., .), MATMUL(., w)
                                                CAT(groups)

    The images of a group are a view, and their result is computed where it lies in the whole, so
    nothing but the nodes themselves is new, and the arena holds a group's tensors instead of all.
    Into how many groups each node is split is a shortest path over the nodes in order, of all that
    they read and write beyond cache, weights that they wait for, and, where the number of groups
    changes, what they hand on.
    """
    batch = Batch(graph)
    if not batch.rows:
        return False
    order = _shared_first(graph, batch)
    counts = _least_time(graph, batch, order)
    changed = False
    for count, nodes in groupby(zip(counts, order, strict=True), key=lambda pair: pair[0]):
        if count > 1:
            split_nodes(graph, batch, [node for _, node in nodes], count)
            changed = True
    return changed


def _shared_first(graph: Graph, batch: Batch) -> list[Node]:
    """Nodes in order, first those that no image has a part in: they would interrupt a stretch."""
    of_images = set(batch.rows)
    first, then = [], []
    for node in graph.order():
        if of_images.isdisjoint(node.inputs):
            first.append(node)
        else:
            then.append(node)
            of_images.add(node.output)
    return first + then


def _least_time(graph: Graph, batch: Batch, order: Sequence[Node]) -> list[int]:
    """Into how many groups of images each node is split for all to take the least time."""
    most = min(batch.images, _MOST, _MOST_NODES // max(1, len(order)))
    choices = [1, *(count for count in (2, 4, 8) if count < most), *([most] if most > 1 else [])]
    times = {1: 0.0}  # up to a node, by its count
    chosen: list[dict[int, int]] = []  # count of a node -> best one of the node before
    *between, last = _handed_on(graph, batch, order)
    for node, handed_on in zip(order, between, strict=True):
        before: dict[int, int] = {}
        after: dict[int, float] = {}
        for count in choices if batch.keeps_apart(node) else [1]:
            before[count], time = _cheapest(times, count, handed_on)
            after[count] = time + _node_ns(graph, batch, node, count)
        chosen.append(before)
        times = after
    count, _ = _cheapest(times, 1, last)
    counts = []
    for before in reversed(chosen):
        counts.append(count)
        count = before[count]
    return counts[::-1]


def _cheapest(times: dict[int, float], count: int, handed_on: float) -> tuple[int, float]:
    """From which count to go on to ``count``, and the time of that.

    Where the count changes, what is handed on goes through memory. The side that is whole, if one
    is, has that in its own time already.
    """
    options = {
        other: time + (0 if other == count else handed_on if 1 in (other, count) else 2 * handed_on)
        for other, time in times.items()
    }
    best = min(options, key=options.__getitem__)
    return best, options[best]


def _handed_on(graph: Graph, batch: Batch, order: Sequence[Node]) -> list[float]:
    """Time of moving what lives before each node, and after the last, beyond cache."""
    owner = {name: name for name in batch.rows}  # the tensor whose memory a view shows
    last_use: dict[str, int] = {}
    for step, node in enumerate(order):
        if node.definition.view is not None and node.inputs[0] in owner and node.output in owner:
            owner[node.output] = owner[node.inputs[0]]
        last_use.update((owner[name], step) for name in node.inputs if name in owner)
    last_use.update((owner[name], len(order)) for name in graph.outputs if name in owner)
    live = [owner[name] for name in graph.inputs if name in owner]
    times = []
    for step in range(len(order) + 1):
        live = [name for name in live if last_use.get(name, -1) >= step]
        times.append(sum(shared_ns(beyond_cache(graph.tensors[name].nbytes)) for name in live))
        live += [
            node.output for node in order[step : step + 1] if owner.get(node.output) == node.output
        ]
    return times


def _node_ns(graph: Graph, batch: Batch, node: Node, count: int) -> float:
    """Time of all groups of a node that keeps images apart; 0 for others, which have no choice."""
    if not batch.keeps_apart(node) or node.definition.view is not None:
        return 0.0
    cut = {name for index, name in enumerate(node.inputs) if batch.is_cut(node, index)}
    moved = sum(beyond_cache(graph.tensors[t].nbytes / count) for t in (*cut, node.output))
    shared = sum(
        graph.tensors[name].nbytes for name in set(node.inputs) - cut if name in graph.constants
    )
    # Weights are fetched ahead, and waited for only where there is little to do with them.
    place = Place(1 / count, streamed=shared_ns(shared), waited=shared_ns(moved))
    return count * node_cost(graph, node, place)


# -- the rewrite -----------------------------------------------------------------------------------


def split_nodes(graph: Graph, batch: Batch, nodes: Sequence[Node], count: int) -> None:
    """Compute nodes, all in a row and each keeping images apart, for one group after the other."""
    inside = {node.output for node in nodes}
    results = [
        node
        for node in nodes
        if graph.is_output(node.output)
        or any(consumer.output not in inside for consumer in graph.consumers(node.output))
    ]
    images = batch.images
    ends = [images * index // count for index in range(count + 1)]
    groups = [_compute(graph, batch, nodes, group) for group in pairwise(ends)]
    for node in reversed(results):
        graph.replace_node(node, "CAT", [made[node.output] for made in groups], {"axis": 0})
    graph.listener.fired("split_batch", nodes[-1].output)


def _compute(
    graph: Graph, batch: Batch, nodes: Sequence[Node], group: tuple[int, int]
) -> dict[str, str]:
    """Add the nodes for a group of images, the first and the one beyond: their outputs by name."""
    made: dict[str, str] = {}

    def cut(name: str) -> str:
        if name not in made:
            rows = graph.tensors[name].shape[0] // batch.images
            start, stop = (image * rows for image in group)
            part = {"axis": 0, "start": start, "stop": stop}
            made[name] = graph.add_node("SLICE", [name], part, name=f"{name}.group")
        return made[name]

    for node in nodes:
        inputs = [
            cut(name) if batch.is_cut(node, index) else name
            for index, name in enumerate(node.inputs)
        ]
        attrs = dict(node.attrs)
        if node.op in ("RESHAPE", "EXPAND"):
            rows = batch.rows[node.output] * (group[1] - group[0])
            attrs["shape"] = (rows, *attrs["shape"][1:])
        made[node.output] = graph.add_node(
            node.op, inputs, attrs, name=f"{node.output}.group", source=node.source
        )
    return made
