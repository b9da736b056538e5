"""Describe a scheduled graph with its arena, and the moves that led to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.estimates import placed_cost
from taper_frontend.compiler.planning.arena import Arena, lay_out_graph
from taper_frontend.compiler.planning.order import Schedule, schedule_as, schedules
from taper_frontend.compiler.planning.search_order import search_order
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


class Move(NamedTuple):
    """A change of a scheduled graph.

    Attributes
    ----------
    kind : str
        ``"order"``, ``"split"``, ``"tile"``, ``"recompute"``, or ``"later"``: nodes run later,
        beside their readers.
    what : str
        The bytes for which parts of nodes were made, or that there are none; the regions that are
        computed in parts with their numbers; or the tensor that is computed again.
    nbytes : int
        How many bytes smaller the arena is.
    ns : float
        How much longer a run takes, estimated.
    """

    kind: str
    what: str
    nbytes: int
    ns: float


class Fitted(NamedTuple):
    """A scheduled graph with its arena.

    Attributes
    ----------
    graph : Graph
    schedule : Schedule
    arena : Arena
    ns : float
        The estimated time of a run on one thread, in nanoseconds.
    moves : tuple of Move
        The moves that led to it from the graph without a budget.
    """

    graph: Graph
    schedule: Schedule
    arena: Arena
    ns: float
    moves: tuple[Move, ...] = ()

    def has_parts(self, natural: Fitted) -> bool:
        """Return whether nodes compute parts of what those of the natural graph compute."""
        types = {spec.type for spec in natural.graph.tensors.values()}
        return any(move.kind in ("split", "tile") for move in self.moves) or any(
            spec.type not in types for spec in self.graph.tensors.values()
        )

    def peak_node(self) -> str:
        """Return the first node that needs the most bytes, with its op."""
        name = self._peak()
        node = self.graph.producers.get(name)
        return f"{name!r} ({node.op if node else 'saves a state'})"

    def held(self) -> dict[str, int]:
        """Return the bytes of the tensors that are in memory at that node, largest first.

        The scratch memory of its kernel is the rest of what it needs.
        """
        at = self.arena.steps[self._peak()]
        lives = self.arena.ranges.items()
        found = [(name, each.nbytes) for name, each in lives if each.birth <= at <= each.death]
        return dict(sorted(found, key=lambda each: -each[1]))

    def _peak(self) -> str:
        at = self.arena.live.index(max(self.arena.live))
        return next(name for name, step in self.arena.steps.items() if step == at)

    def changed(
        self, graph: Graph, order: Sequence[Node], kind: str, what: str, ns: float
    ) -> Fitted:
        """Return a changed copy of the graph in some order, with the change among its moves."""
        schedule = schedule_as(graph, [*order])
        to = Fitted(graph, schedule, lay_out_graph(graph, schedule), self.ns)
        return self.moved(to, kind, what, ns)

    def moved(self, to: Fitted, kind: str, what: str, ns: float) -> Fitted:
        """Return ``to``, with the change from this form to it among its moves."""
        move = Move(kind, what, self.arena.nbytes - to.arena.nbytes, ns)
        return to._replace(ns=self.ns + ns, moves=(*self.moves, move))


def lay_out(graph: Graph, schedule: Schedule) -> Fitted:
    """Return a scheduled graph with its arena and its estimated time."""
    arena = lay_out_graph(graph, schedule)
    executed = (node for node in schedule.order if node.output in arena.steps)
    return Fitted(graph, schedule, arena, sum(placed_cost(graph, node) for node in executed))


def lay_out_schedules(graph: Graph) -> list[Fitted]:
    """Return the graph in the orders of :func:`.schedules`, scratch memory included."""
    distinct = {schedule.order: schedule for schedule in schedules(graph)}
    return [lay_out(graph, schedule) for schedule in distinct.values()]


def lay_out_orders(graph: Graph) -> list[Fitted]:
    """Return the graph in these orders, and in that of :func:`.search_order`."""
    found = lay_out_schedules(graph)
    arena = found[0].arena
    scratch = {name: arena.scratch[step] for name, step in arena.steps.items()}
    searched = search_order(graph, [*found[0].schedule.order], scratch)
    if all(tuple(searched) != each.schedule.order for each in found):
        found.append(lay_out(graph, schedule_as(graph, searched)))
    return found
