"""Make the plans whose memory and time ``taper report --memory`` draws; torch is not needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.from_plan import plan_again, to_graph
from taper_frontend.compiler.memory_budget import within_budgets
from taper_frontend.compiler.planning import make_schedule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from taper_runtime.plan.plan import Plan


def plans_in_budgets(
    plan: Plan, budgets: Sequence[int], feed: Mapping[str, np.ndarray]
) -> list[Plan]:
    """Return a plan for each budget; micro-batches and row tiles stay as they are.

    The first budget that no plan fits ends the list, because the later ones are smaller
    still.

    Parameters
    ----------
    plan : Plan
        Without size variables.
    budgets : sequence of int
        In bytes, from the largest to the smallest.
    feed : mapping of str to numpy.ndarray
        Inputs for which results are compared.

    Returns
    -------
    list of Plan
        ``metadata["memory"]`` tells what was done; see ``docs/how-to/memory-budget.md``.

    Raises
    ------
    ExportError
        If the plan has several entries, weights that a session may replace, or nodes that compute
        sizes.
    """
    graph = to_graph(plan)
    forms = within_budgets(graph, make_schedule(graph), budgets, None, feed)
    return [
        plan_again(plan, form, {**plan.metadata, "memory": told}, schedule=schedule)
        for form, schedule, told in forms
    ]
