"""Measure the memory and the time of a plan in smaller and smaller memory budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.base.errors import InputError
from taper_runtime.base.records import NamedTuple
from taper_runtime.executor.executor_kinds import DEFAULT_KIND
from taper_runtime.executor.memory_use import memory_use
from taper_runtime.plan.binding import bind_sizes
from taper_runtime.plan.specialize import specialize
from taper_runtime.reports.profile import profile_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

    from taper_runtime.plan.plan import Plan

#: The budgets, in percent of the arena of the plan as it is.
PERCENT = tuple(range(100, 0, -10))


class MemoryPoint(NamedTuple):
    """Measured memory and time of a plan in a budget, on one thread.

    Attributes
    ----------
    percent : int
        The budget, in percent of the arena of the plan as it is.
    budget, arena : int
        The budget and the arena of a run, in bytes.
    ns : float
        The sum of each node's least time over the runs, in nanoseconds.
    estimated_ns : int
        The compiler's estimate.
    moves : list of str
        The kinds of changes that led to the plan: see ``docs/how-to/memory-budget.md``.
    """

    percent: int
    budget: int
    arena: int
    ns: float
    estimated_ns: int
    moves: list[str]


def measure_points(
    plan: Plan,
    feed: Mapping[str, np.ndarray],
    *,
    runs: int,
    executor: str = DEFAULT_KIND,
    advance: Callable[[], None] = lambda: None,
) -> list[MemoryPoint]:
    """Measure points of memory against time, from a budget of 100% downwards.

    The last one is the first that does not fit in its budget, or that of the smallest budget.

    Parameters
    ----------
    plan : Plan
        With all its constants.
    feed : mapping of str to numpy.ndarray
    runs : int
        How often each plan is timed.
    executor : str
        The kind of executor.
    advance : callable
        Is called after each of :data:`PERCENT` was measured.

    Raises
    ------
    InputError
        If no compiler is installed, or nodes of the plan compute sizes.
    TaperError
        If the compiler does not take the plan.
    """
    compiler = _compiler()
    if plan.origins:
        raise InputError("expected a plan whose inputs decide all sizes, got nodes that do")
    plan = specialize(plan, bind_sizes(plan, {name: array.shape for name, array in feed.items()}))
    natural = memory_use(plan).arena
    budgets = [natural * percent // 100 for percent in PERCENT]
    points = []
    made = compiler.plans_in_budgets(plan, budgets, feed)
    for percent, budget, each in zip(PERCENT, budgets, made, strict=False):
        told = each.metadata["memory"]
        ns = profile_plan(each, feed, runs=runs, threads=1, executor=executor).total
        moves = list(dict.fromkeys(move["kind"] for move in told["moves"]))
        arena = memory_use(each).arena
        points.append(MemoryPoint(percent, budget, arena, ns, told["ns"], moves))
        advance()
    return points


def _compiler() -> Any:
    """Return the compiler's module that makes plans in memory budgets."""
    from importlib.metadata import entry_points

    for point in entry_points(group="taper.memory", name="budgets"):
        return point.load()
    raise InputError(
        "--memory: expected a compiler that makes plans in memory budgets, got none; install "
        "taper-frontend"
    )


def points_sections(points: list[MemoryPoint]) -> list[dict[str, Any]]:
    """Return the sections of a page that draw the points and list their numbers."""
    columns = [
        {"name": "budget, %", "kind": "number"},
        {"name": "budget", "kind": "bytes"},
        {"name": "arena", "kind": "bytes"},
        {"name": "us", "kind": "number"},
        {"name": "estimated us", "kind": "number"},
        {"name": "changes", "kind": "text"},
    ]
    rows = [
        [
            each.percent,
            each.budget,
            each.arena,
            round(each.ns / 1e3, 1),
            round(each.estimated_ns / 1e3, 1),
            ", ".join(each.moves) + ("" if each.arena <= each.budget else "; does not fit"),
        ]
        for each in points
    ]
    return [
        {
            "kind": "curve",
            "title": "Memory against time",
            "points": [[each.ns / 1e6, each.arena] for each in points],
            "labels": [f"budget {each.percent}%" for each in points],
            "note": "Time of a run in milliseconds to the right, bytes of the arena upwards, both "
            "measured on one thread; one point for each memory budget.",
        },
        {"kind": "table", "title": "Memory budgets", "columns": columns, "rows": rows},
    ]
