"""Order the nodes of a graph so that few bytes are live."""

from __future__ import annotations

import heapq
from collections import Counter
from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.views import view_roots
from taper_frontend.compiler.planning.sharing import find_concat_buffers
from taper_runtime.base.errors import InternalError
from taper_runtime.base.records import NamedTuple
from taper_runtime.ops import REGISTRY
from taper_runtime.plan.liveness import LiveRange, lifetimes, live_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


class Schedule(NamedTuple):
    """In which order the nodes of a graph run, and how much memory that takes.

    A pass that changes the graph makes the schedule anew.

    Attributes
    ----------
    order : tuple of Node
        All nodes of the graph.
    peak : int
        The most bytes of intermediates live at once, for the example sizes, where no node computes
        in place. What kernels need besides, and memory of graphs inside nodes, is not in it.
    at : int
        The first step at which that many are: ``len(order)`` is after the last node.
    inside : mapping of str to tuple of Schedule
        By the first outputs of nodes that have blocks, those of the blocks.
    """

    order: tuple[Node, ...]
    peak: int
    at: int
    inside: Mapping[str, tuple[Schedule, ...]]

    def check(self, graph: Graph) -> None:
        """Check that this is a schedule of the graph as it is.

        Raises
        ------
        InternalError
            If the graph has other nodes by now.
        """
        scheduled = {node.output: node for node in self.order}
        names = scheduled.keys() | graph.nodes.keys()
        changed = sorted(n for n in names if scheduled.get(n) is not graph.nodes.get(n))
        if changed:
            raise InternalError(f"the graph has changed since it was scheduled: {changed}")


def make_schedule(graph: Graph) -> Schedule:
    """Return an order of the nodes that keeps few bytes live, and those of the graphs inside.

    Three are tried: the graph's own, one that fills a concat buffer before it begins the next, and
    that of :func:`_greedy`. None is always best: the first whose peak is least is taken.
    """
    own = graph.order()
    roots = memory_roots(graph, own)
    orders = own, _by_buffer(graph, own, roots), _greedy(graph, own)
    live = [bytes_at_steps(graph, order, roots) for order in orders]
    peaks = [max(each) for each in live]
    peak = min(peaks)
    best = peaks.index(peak)
    inside = {
        node.output: tuple([make_schedule(block) for block in node.blocks])
        for node in own
        if node.blocks
    }
    return Schedule(tuple(orders[best]), peak, live[best].index(peak), inside)


def memory_roots(graph: Graph, order: list[Node]) -> dict[str, str]:
    """Return for each tensor the one in whose memory it lies, if no node computes in place."""
    _, slices = find_concat_buffers(graph, order)
    roots = view_roots(graph, order)
    return {name: slices[root][0] if root in slices else root for name, root in roots.items()}


def bytes_at_steps(graph: Graph, order: list[Node], roots: Mapping[str, str]) -> list[int]:
    """Return the bytes of intermediates that are live at each node of this order, and after it."""
    made = {name: root for name, root in roots.items() if root in graph.producers}
    lives = lifetimes(order, made, outputs=graph.kept)
    blocks = [LiveRange(*life, graph.nbytes(root)) for root, life in lives.items()]
    return live_bytes(blocks, len(order) + 1)


def _by_buffer(graph: Graph, own: list[Node], roots: Mapping[str, str]) -> list[Node]:
    """Return an order that fills concat buffers one after the other, as ``own`` begins them.

    A buffer takes all its memory from its first slice on. Where the batch is split, and two tensors
    of a run of nodes are read behind it, the second is not begun while the first is computed.
    """
    computed = [name for node in own for name in node.outputs if node.definition.view is None]
    begun = dict.fromkeys(roots[name] for name in computed if roots[name] != name)
    return list(graph.depth_first([*begun, *(node.output for node in own)]))


def _greedy(graph: Graph, own: list[Node]) -> list[Node]:
    """Return an order in which the node that frees most and allocates least goes first.

    Kahn's algorithm. A node's score only rises while it waits (an input's other readers run and
    leave it the last), so a fresh entry is pushed whenever that happens and outdated ones are
    dropped when they surface.
    """
    position = {node.output: i for i, node in enumerate(own)}
    roots = view_roots(graph, own)
    members: dict[str, list[str]] = {}
    for name, root in roots.items():
        members.setdefault(root, []).append(name)
    readers = _reader_counts(graph, own, roots)
    waiting: dict[str, int] = {}
    followers: dict[str, list[Node]] = {}
    for node in own:
        needs = {name for name in graph.needs(node) if name in graph.producers}
        waiting[node.output] = len(needs)
        for name in needs:
            followers.setdefault(name, []).append(node)

    def score(node: Node) -> int:
        """Return the bytes allocated minus those freed: smaller is better."""
        allocated = sum(graph.nbytes(name) for name in node.outputs if roots[name] == name)
        freed = 0
        for root in {roots[name] for name in node.reads}:
            if readers[root] == 1 and root in graph.producers:
                freed += graph.nbytes(root)
        # Computing in place means the two never stand side by side, not even during the node.
        inplace = allocated if freed and REGISTRY[node.op].inplace else 0
        return allocated - freed - inplace

    heap: list[tuple[int, int]] = []
    for node in own:
        if waiting[node.output] == 0:
            heapq.heappush(heap, (score(node), position[node.output]))
    order: list[Node] = []
    done: set[str] = set()
    while heap:
        cost, at = heapq.heappop(heap)
        node = own[at]
        if node.output in done or cost != score(node):
            continue  # outdated: a fresher entry is in the heap
        done.add(node.output)
        order.append(node)
        for consumer in (each for name in node.outputs for each in followers.get(name, ())):
            waiting[consumer.output] -= 1
            if waiting[consumer.output] == 0:
                heapq.heappush(heap, (score(consumer), position[consumer.output]))
        for root in {roots[name] for name in node.reads}:
            readers[root] -= 1
            if readers[root] == 1:
                for name in members[root]:
                    for consumer in graph.consumers(name):
                        if waiting[consumer.output] == 0 and consumer.output not in done:
                            heapq.heappush(heap, (score(consumer), position[consumer.output]))
    return order


def _reader_counts(graph: Graph, order: list[Node], roots: dict[str, str]) -> Counter[str]:
    """Return how many nodes read each root; what a run gives has one more, that never comes."""
    readers = Counter(root for node in order for root in {roots[name] for name in node.reads})
    readers.update(roots[name] for name in graph.kept)
    return readers
