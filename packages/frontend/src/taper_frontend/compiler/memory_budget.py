"""Find a form and an order of a graph whose arena fits in a budget, and report what it cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_frontend.compiler.budget_search import BudgetSearch
from taper_frontend.compiler.planning.fitted import Fitted, lay_out
from taper_frontend.compiler.planning.planner import SameResults
from taper_frontend.compiler.planning.spool import ConstantValues
from taper_frontend.errors import ExportError
from taper_runtime.native import _kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.planning.order import Schedule


def within_budget(
    graph: Graph,
    schedule: Schedule,
    budget: int,
    form: Callable[[int], Graph] | None,
    samples: Mapping[str, np.ndarray],
    values: ConstantValues | None = None,
) -> tuple[Graph, Schedule, dict[str, Any]]:
    """Return a graph and its schedule in the form that fits a budget, and a report on it.

    See :func:`within_budgets`.
    """
    (found,) = within_budgets(graph, schedule, [budget], form, samples, values)
    return found


def within_budgets(
    graph: Graph,
    schedule: Schedule,
    budgets: Sequence[int],
    form: Callable[[int], Graph] | None,
    samples: Mapping[str, np.ndarray],
    values: ConstantValues | None = None,
) -> list[tuple[Graph, Schedule, dict[str, Any]]]:
    """Return a graph and its schedule in the forms that fit budgets, and a report on each.

    Parameters
    ----------
    graph : Graph
    schedule : Schedule
    budgets : sequence of int
        In bytes, from the largest to the smallest. The first one that no form fits ends the result.
    form : callable, optional
        See :func:`fit`.
    samples : mapping of str to numpy.ndarray
        Inputs with which forms are compared.
    values : ConstantValues, optional
        Gets the values of the constants, which the plan needs too.

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
    same_results = SameResults(graph, schedule, samples, values or ConstantValues())
    search = BudgetSearch(
        natural, form, lambda other: same_results.has(other.graph, other.schedule)
    )
    found = []
    for budget in budgets:
        fitted = search.within(budget)
        found.append((fitted.graph, fitted.schedule, report(natural, fitted, budget)))
        if fitted.arena.nbytes > budget:
            break
    return found


def fit(
    natural: Fitted,
    budget: int,
    form: Callable[[int], Graph] | None,
    same_bits: Callable[[Fitted], bool],
) -> Fitted:
    """Return the form of a graph whose arena fits in a budget at little estimated time.

    If none fits, it is the one with the smallest arena. A smaller budget never leads to a larger
    arena.

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
    return BudgetSearch(natural, form, same_bits).within(budget)


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
        "held": [{"tensor": name, "bytes": nbytes} for name, nbytes in fitted.held().items()],
        "isa": str(_kernels.active_isa()),
        "sizes": dict(natural.graph.examples),
        "moves": [
            {"kind": kind, "what": what, "bytes": int(nbytes), "ns": round(ns)}
            for (kind, what), (nbytes, ns) in totals.items()
        ],
    }
