"""Make the plans whose memory and time ``taper report --memory`` draws; torch is not needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.from_plan import plan_again, to_graph
from taper_frontend.compiler.memory_budget import within_budget
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
    found = []
    for budget in budgets:
        graph = to_graph(plan)
        graph, schedule, told = within_budget(graph, make_schedule(graph), budget, None, feed)
        metadata = {**plan.metadata, "memory": told}
        found.append(plan_again(plan, graph, metadata, schedule=schedule))
        if told["achieved"] > budget:
            break
    return found
