"""Order the nodes of a graph so that few bytes are live at once."""

from __future__ import annotations

import heapq
from collections import Counter
from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.views import view_roots
from taper_frontend.compiler.graph.node import ABSENT
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
    """The order in which the nodes of a graph run, and the memory that it takes.

    After a change of the graph a new schedule must be made.

    Attributes
    ----------
    order : tuple of Node
        All nodes of the graph.
    peak : int
        The most bytes of intermediates that are live at once, for the example sizes, if no node
        computes in place. Scratch memory of kernels, and memory of graphs inside nodes, is not
        included.
    at : int
        The first step with that peak; ``len(order)`` means after the last node.
    inside : mapping of str to tuple of Schedule
        The schedules of the blocks, by the first outputs of the nodes that have them.
    """

    order: tuple[Node, ...]
    peak: int
    at: int
    inside: Mapping[str, tuple[Schedule, ...]]

    def check(self, graph: Graph) -> None:
        """Check that this is a schedule of the graph in its current form.

        Raises
        ------
        InternalError
            If the graph has other nodes now.
        """
        scheduled = {node.output: node for node in self.order}
        names = scheduled.keys() | graph.nodes.keys()
        changed = sorted(n for n in names if scheduled.get(n) is not graph.nodes.get(n))
        if changed:
            raise InternalError(f"the graph has changed since it was scheduled: {changed}")


def make_schedule(graph: Graph) -> Schedule:
    """Return an order of the nodes that keeps few bytes live, also for the graphs inside."""
    return min(schedules(graph), key=lambda schedule: schedule.peak)


def schedules(graph: Graph) -> list[Schedule]:
    """Return the schedules that are compared: none of them always has the lowest peak.

    They are the graph's own order, one that fills a concat buffer before it begins the next, and
    that of :func:`_greedy`.
    """
    own = graph.order()
    roots = memory_roots(graph, own)
    nbytes = {name: graph.nbytes(name) for name in graph.producers}
    orders = own, _by_buffer(graph, own, roots), _greedy(graph, own, nbytes)
    inside = _inside(graph)
    return [_scheduled(graph, order, roots, nbytes, inside) for order in orders]


def schedule_as(graph: Graph, order: list[Node]) -> Schedule:
    """Return the schedule with this order of all nodes."""
    nbytes = {name: graph.nbytes(name) for name in graph.producers}
    return _scheduled(graph, order, memory_roots(graph, order), nbytes, _inside(graph))


def _inside(graph: Graph) -> dict[str, tuple[Schedule, ...]]:
    return {
        node.output: tuple([make_schedule(block) for block in node.blocks])
        for node in graph.nodes.values()
        if node.blocks
    }


def _scheduled(
    graph: Graph,
    order: list[Node],
    roots: Mapping[str, str],
    nbytes: Mapping[str, int],
    inside: Mapping[str, tuple[Schedule, ...]],
) -> Schedule:
    live = bytes_at_steps(graph, order, roots, nbytes)
    peak = max(live)
    return Schedule(tuple(order), peak, live.index(peak), inside)


def memory_roots(graph: Graph, order: list[Node]) -> dict[str, str]:
    """Return, for each tensor, the tensor that owns its memory if no node computes in place."""
    _, slices = find_concat_buffers(graph, order)
    roots = view_roots(graph, order)
    return {name: slices[root][0] if root in slices else root for name, root in roots.items()}


def bytes_at_steps(
    graph: Graph, order: list[Node], roots: Mapping[str, str], nbytes: Mapping[str, int]
) -> list[int]:
    """Return the bytes of intermediates that are live at each node of this order, and after it.

    Parameters
    ----------
    graph : Graph
    order : list of Node
    roots : mapping of str to str
        The result of :func:`memory_roots`.
    nbytes : mapping of str to int
        The bytes of each tensor that a node makes.
    """
    made = {name: root for name, root in roots.items() if root in nbytes}
    lives = lifetimes(order, made, outputs=graph.kept)
    ranges = [LiveRange(*life, nbytes[root]) for root, life in lives.items()]
    return live_bytes(ranges, len(order) + 1)


def _by_buffer(graph: Graph, own: list[Node], roots: Mapping[str, str]) -> list[Node]:
    """Return an order that fills concat buffers one after the other, in the order of ``own``.

    A buffer takes all its memory from its first slice on. If the batch is split, and two tensors of
    a run of nodes are read after it, the second one is started when the first one is complete.
    """
    computed = [name for node in own for name in node.outputs if node.definition.view is None]
    begun = dict.fromkeys(roots[name] for name in computed if roots[name] != name)
    return list(graph.depth_first([*begun, *(node.output for node in own)]))


def _greedy(graph: Graph, own: list[Node], nbytes: Mapping[str, int]) -> list[Node]:
    """Return an order in which the node that frees most and allocates least goes first.

    This is Kahn's algorithm with a heap. A waiting node's score only improves, when it becomes the
    last reader of an input. Then a new entry is pushed, and outdated entries are dropped when they
    are popped.
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
        allocated = sum(nbytes[name] for name in node.outputs if roots[name] == name)
        freed = 0
        for root in {roots[name] for name in node.reads}:
            if readers[root] == 1 and root in nbytes:
                freed += nbytes[root]
        # If the node computes in place, input and output are never live at the same time.
        return allocated - freed - (allocated if is_over(node) else 0)

    def is_over(node: Node) -> bool:
        """Return whether the node computes over an input that nothing else reads."""
        places = [place for place in REGISTRY[node.op].inplace if place < len(node.inputs)]
        return any(
            readers[roots[name]] == 1
            and roots[name] in nbytes
            and graph.tensors[name].type == graph.tensors[node.output].type
            for name in {node.inputs[place] for place in places} - {ABSENT}
        )

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
            continue  # outdated: there is a newer entry in the heap
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
    """Return the number of readers of each root; outputs have one more, which never runs."""
    readers = Counter(root for node in order for root in {roots[name] for name in node.reads})
    readers.update(roots[name] for name in graph.kept)
    return readers
