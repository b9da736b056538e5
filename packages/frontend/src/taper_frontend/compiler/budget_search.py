"""Make forms of a scheduled graph with smaller and smaller arenas, one after the other.

Three kinds of moves lead from one scheduled graph to another: another order of the nodes; smaller
micro-batches, row tiles and regions, computed in parts (:mod:`.planning.tile_regions`); and nodes
that are computed again beside late readers (:mod:`.planning.recompute`). Every result is laid out
as a session lays it out, so the bytes that a move saves are measured. Its time is estimated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.planning.exact_parts import KnownParts
from taper_frontend.compiler.planning.fitted import (
    Fitted,
    lay_out,
    lay_out_orders,
    lay_out_schedules,
)
from taper_frontend.compiler.planning.order import schedule_as
from taper_frontend.compiler.planning.recompute import recomputations
from taper_frontend.compiler.planning.split_columns import split_columns
from taper_frontend.compiler.planning.tile_regions import RegionFinder
from taper_runtime.machine.cost import cache_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from taper_frontend.compiler.graph.graph import Graph

#: The limits that forms are made for are these shares of the natural arena: 9/10, 8/10 ... The
#: search ends at the second limit in a row that no form meets.
LIMITS, MOST_UNMET = 10, 2

#: The most forms with smaller parts, and the most arenas that are laid out for recomputations in a
#: form and a limit.
MOST_FORMS, MOST_TRIALS = 3, 12

#: How often regions are chosen for a form and a limit, each time for less than before.
MOST_TILINGS = 2

#: A form that meets a limit in so many times the time of the form that it was made from is not
#: compared with others that are made from it.
CHEAP = 1.01

#: Bytes for which no node is split.
_UNBOUNDED = 1 << 50


class BudgetSearch:
    """The forms of a graph from the natural one on, the same ones for all budgets.

    Parameters
    ----------
    natural : Fitted
        The graph as it is planned without a budget.
    form : callable, optional
        Returns the same graph with nodes split into parts for so many bytes.
    same_bits : callable
        Returns whether a form gives the same bits as the natural one. Recomputation of whole nodes
        always does, and so it is not asked about that.
    """

    def __init__(
        self,
        natural: Fitted,
        form: Callable[[int], Graph] | None,
        same_bits: Callable[[Fitted], bool],
    ) -> None:
        self._natural, self._form, self._same_bits = natural, form, same_bits
        self._found = [natural]
        self._taken: list[Fitted] = []
        self._left = self._forms()
        self._are_same: dict[int, bool] = {}
        self._known = KnownParts()

    def within(self, budget: int) -> Fitted:
        """Return the first form whose arena fits in a budget, or the smallest one.

        All budgets look at the same forms, one after the other, so a smaller one never leads to a
        larger arena.
        """
        for each in self._taken:
            if each.arena.nbytes <= budget:
                return each
        for each in self._left:
            self._taken.append(each)
            if each.arena.nbytes <= budget:
                return each
        return self._smallest()

    def _forms(self) -> Iterator[Fitted]:
        """Yield the natural graph, then forms with smaller and smaller arenas.

        For each limit that the one before does not meet, it is the form with the least estimated
        time of those that meet it. If one gives other bits, the next one is taken. If all do, nodes
        are only computed again whole. What does not lead to a limit is left alone for smaller ones.
        """
        last, unmet = self._natural, 0
        yield last
        starts: list[_StartingForm] = []
        for share in range(LIMITS - 1, 0, -1):
            limit = self._natural.arena.nbytes * share // LIMITS
            if last.arena.nbytes <= limit:
                continue
            starts = starts or [_StartingForm(each, self._known) for each in self._starts()]
            starts = self._leading(starts, limit) or starts
            best = self._best(limit)
            if best is None and not all(self._are_same.values()):
                first = min(starts, key=lambda each: len(each.fitted.moves)).fitted
                self._found += _StartingForm(first, self._known, parts=False).made(limit)
                best = self._best(limit)
            unmet = unmet + 1 if best is None else 0
            if unmet == MOST_UNMET:
                return
            if best is not None:
                last = best
                yield last

    def _smallest(self) -> Fitted:
        """Return the form with the smallest arena so far that gives the same bits."""
        found = sorted(self._found, key=lambda each: (each.arena.nbytes, each.ns))
        return next(filter(self._is_same, found))

    def _leading(self, starts: list[_StartingForm], limit: int) -> list[_StartingForm]:
        """Make forms for a limit; return the starting forms that may lead to smaller ones.

        Those that take longer than a form that meets the limit are not tried.
        """
        leading = []
        least = min((each.ns for each in self._found if each.arena.nbytes <= limit), default=None)
        for start in sorted(starts, key=lambda each: each.fitted.ns):
            if least is not None and start.fitted.ns >= least:
                leading.append(start)
                continue
            made = [*start.made(limit)]
            self._found += made
            if times := [each.ns for each in made if each.arena.nbytes <= limit]:
                leading.append(start)
                least = min(times if least is None else [least, *times])
        return leading

    def _best(self, limit: int) -> Fitted | None:
        """Return the form with the least time that meets a limit and gives the same bits."""
        met = (each for each in self._found if each.arena.nbytes <= limit)
        return next(filter(self._is_same, sorted(met, key=lambda each: each.ns)), None)

    def _is_same(self, fitted: Fitted) -> bool:
        key = id(fitted)  # of one that is kept
        if key not in self._are_same:
            self._are_same[key] = not fitted.has_parts(self._natural) or self._same_bits(fitted)
        return self._are_same[key]

    def _starts(self) -> Iterator[Fitted]:
        """Yield the graph in its best order, without parts, and with smaller and smaller parts.

        Without parts, products whose columns are read apart are also split. The smaller parts end
        where the arena no longer shrinks.
        """
        natural, form, room = self._natural, self._form, cache_bytes()
        best = _in_least(lay_out_orders(natural.graph))
        yield natural.moved(best, "order", "", 0.0) if _smaller(best, natural) else natural
        if form is None:
            return
        whole = _in_least(lay_out_schedules(form(_UNBOUNDED)))
        if (whole.ns, whole.arena.live) != (natural.ns, natural.arena.live):
            yield natural.moved(whole, "split", "no parts", whole.ns - natural.ns)
        apart = whole.graph.copy()
        order, count = split_columns(apart)
        if count:
            best = lay_out(apart, schedule_as(apart, order))
            yield natural.moved(best, "split", f"{count} products by columns", best.ns - natural.ns)
        last = natural
        for _ in range(MOST_FORMS):
            room //= 2
            best = _in_least(lay_out_schedules(form(room)))
            if not _smaller(best, last):
                return
            last = best
            yield natural.moved(best, "split", f"{room} bytes", best.ns - natural.ns)


class _StartingForm:
    """A form from which others are made for smaller and smaller limits.

    Attributes
    ----------
    fitted : Fitted
    """

    def __init__(self, fitted: Fitted, known: KnownParts, *, parts: bool = True) -> None:
        self.fitted, self._known, self._parts = fitted, known, parts
        self._finder: RegionFinder | None = None

    def made(self, limit: int) -> Iterator[Fitted]:
        """Yield forms for a limit: the form itself, and what moves make of it."""
        start = self.fitted
        yield start
        if start.arena.nbytes <= limit:
            return
        tiled = start
        if self._parts:
            self._finder = self._finder or _finder(start, self._known)
            tiled = _tiled(start, limit, self._known, self._finder)
            yield tiled
            if tiled.arena.nbytes <= limit and tiled.ns <= CHEAP * start.ns:
                return
        recomputed = _recomputed(start, limit, self._known, parts=self._parts)
        yield recomputed
        if not self._parts:
            return
        if recomputed is not start:
            yield _tiled(recomputed, limit, self._known)
        if tiled is not start:
            yield _recomputed(tiled, limit, self._known, parts=True)


def _rank(fitted: Fitted, limit: int) -> tuple[int, float]:
    return max(0, fitted.arena.nbytes - limit), fitted.ns


def _in_least(orders: Sequence[Fitted]) -> Fitted:
    """Return the order with the smallest arena."""
    return min(orders, key=lambda each: each.arena.nbytes)


def _smaller(a: Fitted, b: Fitted) -> bool:
    return a.arena.nbytes < b.arena.nbytes


def _finder(fitted: Fitted, known: KnownParts) -> RegionFinder:
    return RegionFinder(fitted.graph, fitted.schedule.order, fitted.arena, known)


def _tiled(
    start: Fitted, limit: int, known: KnownParts, finder: RegionFinder | None = None
) -> Fitted:
    """Compute regions in parts until the arena fits in ``limit``; return the smallest one.

    Where the arena has gaps, or more is needed than was estimated, regions are chosen for so much
    less. ``finder`` is that of the form.
    """
    best, aim = start, limit
    if start.arena.nbytes <= limit:
        return start
    finder = finder or _finder(start, known)
    for _ in range(MOST_TILINGS):
        found = finder.best(aim) if aim > 0 else []
        if not found:
            break
        graph = start.graph.copy()
        after = [graph.nodes[node.output] for node in start.schedule.order]
        for region in found:
            after = region.apply(graph, after)
        what = ", ".join(f"{each.names[-1]} in {len(each.parts)}" for each in found)
        tiled = start.changed(graph, after, "tile", what, sum(each.ns for each in found))
        best = tiled if _smaller(tiled, best) else best
        if tiled.arena.nbytes <= limit:
            break
        aim -= tiled.arena.nbytes - limit
    return best


def _recomputed(fitted: Fitted, limit: int, known: KnownParts, *, parts: bool) -> Fitted:
    """Return the graph with nodes computed again until its arena fits, or nothing more helps."""
    refused: set[object] = set()
    best, most = fitted, limit
    for _ in range(MOST_TRIALS):
        arena, peak = fitted.arena, max(fitted.arena.live, default=0)
        if arena.nbytes <= limit:
            break
        if peak <= most:  # what is live would fit, but its layout has gaps
            most = peak - (arena.nbytes - limit)
        found = recomputations(fitted.graph, fitted.schedule.order, arena, most, known, parts=parts)
        option = next((each for each in found if each.key not in refused), None)
        if option is None:
            break
        graph = fitted.graph.copy()
        after = option.apply(graph, [graph.nodes[node.output] for node in fitted.schedule.order])
        one = fitted.changed(graph, after, option.kind, option.tensor, option.ns)
        if max(one.arena.live) <= peak and _beyond(one, most) < _beyond(fitted, most):
            fitted = one
            best = min(best, fitted, key=lambda each: _rank(each, limit))
        else:
            refused.add(option.key)
    return best


def _beyond(fitted: Fitted, limit: int) -> int:
    return sum(max(0, live - limit) for live in fitted.arena.live)
