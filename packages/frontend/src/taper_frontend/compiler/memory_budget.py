"""Find a form and an order of a graph whose arena fits in a budget, at the least estimated time.

Three kinds of moves lead from one scheduled graph to another: another order of the nodes; smaller
micro-batches and row tiles, by the passes that make them; and nodes that are computed again beside
late readers (:mod:`.planning.recompute`). Every result is laid out as a session lays it out, so the
bytes that a move saves are measured. Its time is estimated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_frontend.compiler.analysis.estimates import placed_cost
from taper_frontend.compiler.planning import same_results
from taper_frontend.compiler.planning.arena import Arena, lay_out_graph
from taper_frontend.compiler.planning.order import Schedule, schedule_as, schedules
from taper_frontend.compiler.planning.recompute import recomputations
from taper_frontend.compiler.planning.search_order import search_order
from taper_frontend.compiler.planning.tile_regions import tiled_regions
from taper_frontend.errors import ExportError
from taper_runtime.base.records import NamedTuple
from taper_runtime.machine.cost import cache_bytes
from taper_runtime.native import _kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy as np

    from taper_frontend.compiler.graph.graph import Graph

#: The most forms with smaller parts, and the most arenas that are laid out for recomputations in
#: each form. Each form has the orders that :func:`.order.schedules` returns and that of
#: :func:`.search_order.search_order`.
MOST_FORMS, MOST_TRIALS = 3, 32

#: How often regions are computed in parts, each time where the result still needs too much, and how
#: many limits above the budget are tried if it cannot be met.
MOST_TILINGS, MOST_LIMITS = 2, 3

#: Bytes for which no node is split.
_UNBOUNDED = 1 << 50


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

    def peak_node(self) -> str:
        """Return the first node that needs the most bytes, with its op."""
        at = self.arena.live.index(max(self.arena.live))
        name = next(name for name, step in self.arena.steps.items() if step == at)
        node = self.graph.producers.get(name)
        return f"{name!r} ({node.op if node else 'saves a state'})"

    def moved(self, to: Fitted, kind: str, what: str, ns: float) -> Fitted:
        """Return ``to``, with the change from this form to it among its moves."""
        move = Move(kind, what, self.arena.nbytes - to.arena.nbytes, ns)
        return to._replace(ns=self.ns + ns, moves=(*self.moves, move))


def lay_out(graph: Graph, schedule: Schedule) -> Fitted:
    """Return a scheduled graph with its arena and its estimated time."""
    arena = lay_out_graph(graph, schedule)
    executed = (node for node in schedule.order if node.output in arena.steps)
    return Fitted(graph, schedule, arena, sum(placed_cost(graph, node) for node in executed))


def within_budget(
    graph: Graph,
    schedule: Schedule,
    budget: int,
    form: Callable[[int], Graph] | None,
    samples: Mapping[str, np.ndarray],
) -> tuple[Graph, Schedule, dict[str, Any]]:
    """Return a graph and its schedule in the form that fits a budget, and a report on it.

    Parameters
    ----------
    graph : Graph
    schedule : Schedule
    budget : int
        In bytes.
    form : callable, optional
        See :func:`fit`.
    samples : mapping of str to numpy.ndarray
        Inputs with which forms are compared.

    Raises
    ------
    ExportError
        If nodes compute sizes.
    """
    if graph.origins:
        raise ExportError(
            "memory_budget: expected a model whose inputs determine all sizes, got one whose nodes "
            f"compute {', '.join(graph.origins)}"
        )
    natural = lay_out(graph, schedule)
    fitted = fit(
        natural,
        budget,
        form,
        lambda other: same_results((graph, schedule), (other.graph, other.schedule), samples),
    )
    return fitted.graph, fitted.schedule, report(natural, fitted, budget)


def fit(
    natural: Fitted,
    budget: int,
    form: Callable[[int], Graph] | None,
    same_bits: Callable[[Fitted], bool],
) -> Fitted:
    """Return the form of a graph whose arena fits in a budget at the least estimated time.

    If none fits, it is the one with the smallest arena.

    Parameters
    ----------
    natural : Fitted
        The graph as it is planned without a budget.
    budget : int
        In bytes.
    form : callable, optional
        Returns the same graph with nodes split into parts for so many bytes.
    same_bits : callable
        Returns whether a form gives the same bits as the natural one. Recomputation of whole nodes
        always does, and so it is not asked about that.
    """
    if natural.arena.nbytes <= budget:
        return natural
    best = _search(natural, budget, form, parts=True)
    if any(move.kind in ("split", "tile") for move in best.moves) or _has_parts(natural, best):
        if same_bits(best):
            return best
        best = _search(natural, budget, None, parts=False)
    return best


def report(natural: Fitted, fitted: Fitted, budget: int) -> dict[str, Any]:
    """Return the part of the export report that describes the budget, as plain data."""
    totals: dict[tuple[str, str], list[float]] = {}
    for move in fitted.moves:
        total = totals.setdefault((move.kind, move.what), [0, 0.0])
        total[0] += move.nbytes
        total[1] += move.ns
    return {
        "budget": budget,
        "natural": natural.arena.nbytes,
        "achieved": fitted.arena.nbytes,
        "natural_ns": round(natural.ns),
        "ns": round(fitted.ns),
        "at": fitted.peak_node(),
        "isa": str(_kernels.active_isa()),
        "sizes": dict(natural.graph.examples),
        "moves": [
            {"kind": kind, "what": what, "bytes": int(nbytes), "ns": round(ns)}
            for (kind, what), (nbytes, ns) in totals.items()
        ],
    }


def _search(
    natural: Fitted, budget: int, form: Callable[[int], Graph] | None, *, parts: bool
) -> Fitted:
    """Return the best form within a budget; if none fits, the smallest one.

    Only then is the graph without parts tried, and regions below limits above the budget.
    """
    first, *others = _ordered(natural), *_split(natural, form)
    best = _best_of([first, *others], budget, parts=parts)
    if best.arena.nbytes <= budget or not parts:
        return best
    found = [best]
    for start in (first, *([] if form is None else [_whole(natural, form)])):
        tiled = _tiled_to_least(start, budget)
        found.append(_recomputed(tiled, budget, parts=parts))
    return min(found, key=lambda each: _rank(each, budget))


def _best_of(starts: Sequence[Fitted], budget: int, *, parts: bool) -> Fitted:
    """Return the best of what regions in parts and recomputations make of some forms."""
    tiled = [_tiled(each, budget) for each in starts] if parts else []
    best: Fitted | None = None
    for start in sorted([*starts, *tiled], key=lambda each: each.ns):
        if best is None or best.arena.nbytes > budget or start.ns < best.ns:
            found = _recomputed(start, budget, parts=parts)
            if parts and found.arena.nbytes > budget:
                found = _tiled(found, budget)
            if best is None or _rank(found, budget) < _rank(best, budget):
                best = found
    assert best is not None
    return best


def _rank(fitted: Fitted, budget: int) -> tuple[int, float]:
    return max(0, fitted.arena.nbytes - budget), fitted.ns


def _ordered(fitted: Fitted) -> Fitted:
    """Return the graph in the order with the smallest arena, now counting scratch memory."""
    best = min(_orders(fitted.graph), key=lambda each: each.arena.nbytes)
    return fitted.moved(best, "order", "", 0.0) if _smaller(best, fitted) else fitted


def _split(natural: Fitted, form: Callable[[int], Graph] | None) -> Iterable[Fitted]:
    """Yield the graph with smaller and smaller parts, until the arena no longer shrinks."""
    last, room = natural, cache_bytes()
    for _ in range(MOST_FORMS):
        if form is None:
            return
        room //= 2
        best = min(_orders(form(room)), key=lambda each: each.arena.nbytes)
        if not _smaller(best, last):
            return
        last = best
        yield natural.moved(best, "split", f"{room} bytes", best.ns - natural.ns)


def _whole(natural: Fitted, form: Callable[[int], Graph]) -> Fitted:
    """Return the graph without parts: regions have other parts than those for the cache."""
    best = min(_orders(form(_UNBOUNDED)), key=lambda each: each.arena.nbytes)
    return natural.moved(best, "split", "no parts", best.ns - natural.ns)


def _tiled(fitted: Fitted, limit: int) -> Fitted:
    """Compute regions in parts until the arena fits in ``limit``; return the smallest one.

    Scratch memory may shrink later than the parts, so that the first parts gain nothing.
    """
    best = fitted
    for _ in range(MOST_TILINGS):
        if fitted.arena.nbytes <= limit:
            break
        graph, order = fitted.graph.copy(), fitted.schedule.order
        found = tiled_regions(fitted.graph, order, fitted.arena, limit)
        after = [graph.nodes[node.output] for node in order]
        for region in found:
            after = region.apply(graph, after)
        if not found:
            break
        schedule = schedule_as(graph, after)
        one = Fitted(graph, schedule, lay_out_graph(graph, schedule), fitted.ns)
        what = ", ".join(f"{each.names[-1]} in {len(each.parts)}" for each in found)
        fitted = fitted.moved(one, "tile", what, sum(each.ns for each in found))
        best = fitted if _smaller(fitted, best) else best
    return best


def _tiled_to_least(fitted: Fitted, budget: int) -> Fitted:
    """Return the graph with regions computed in parts, as small as can be where none fits.

    Regions that lead to less are found only below a limit that their ends can meet. Bisection
    between the budget and the arena finds the least such limit.
    """
    best, low, high = _tiled(fitted, budget), budget, fitted.arena.nbytes
    for _ in range(MOST_LIMITS):
        if best.arena.nbytes <= budget:
            break
        limit = (low + high) // 2
        found = _tiled(fitted, limit)
        best = min(best, found, key=lambda each: _rank(each, budget))
        if found.arena.nbytes <= limit:
            high = limit
        else:
            low = limit
    return best


def _orders(graph: Graph) -> list[Fitted]:
    distinct = {schedule.order: schedule for schedule in schedules(graph)}
    found = [lay_out(graph, schedule) for schedule in distinct.values()]
    arena = found[0].arena
    scratch = {name: arena.scratch[step] for name, step in arena.steps.items()}
    searched = search_order(graph, [*found[0].schedule.order], scratch)
    if tuple(searched) not in distinct:
        found.append(lay_out(graph, schedule_as(graph, searched)))
    return found


def _smaller(a: Fitted, b: Fitted) -> bool:
    return a.arena.nbytes < b.arena.nbytes


def _recomputed(fitted: Fitted, budget: int, *, parts: bool) -> Fitted:
    """Return the graph with nodes computed again until its arena fits, or nothing more helps."""
    refused: set[object] = set()
    best, limit = fitted, budget
    for _ in range(MOST_TRIALS):
        arena, peak = fitted.arena, max(fitted.arena.live, default=0)
        if arena.nbytes <= budget:
            break
        if peak <= limit:  # what is live would fit, but its layout has gaps
            limit = peak - (arena.nbytes - budget)
        graph, order = fitted.graph, fitted.schedule.order
        found = recomputations(graph, order, arena, limit, parts=parts)
        option = next((each for each in found if each.key not in refused), None)
        if option is None:
            break
        graph = graph.copy()
        after = option.apply(graph, [graph.nodes[node.output] for node in order])
        schedule = schedule_as(graph, after)
        one = Fitted(graph, schedule, lay_out_graph(graph, schedule), fitted.ns)
        if max(one.arena.live) <= peak and _beyond(one, limit) < _beyond(fitted, limit):
            fitted = fitted.moved(one, option.kind, option.tensor, option.ns)
            best = min(best, fitted, key=lambda each: _rank(each, budget))
        else:
            refused.add(option.key)
    return best


def _beyond(fitted: Fitted, limit: int) -> int:
    return sum(max(0, live - limit) for live in fitted.arena.live)


def _has_parts(natural: Fitted, fitted: Fitted) -> bool:
    """Return whether the fitted graph has tensors of types that the natural one has not."""
    types = {spec.type for spec in natural.graph.tensors.values()}
    return any(spec.type not in types for spec in fitted.graph.tensors.values())
