"""Choose the executor of a plan by the name of its kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.executor.compiled import CompiledExecutor
from taper_runtime.executor.executor import DEFAULT_SETTINGS, PlanExecutor, Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from taper_runtime.plan.plan import Plan


def _compiled() -> type[PlanExecutor]:
    return CompiledExecutor


def _interpreted() -> type[PlanExecutor]:
    from taper_runtime.executor.interpreted import InterpretedExecutor  # for debugging

    return InterpretedExecutor


def _checked() -> type[PlanExecutor]:
    from taper_runtime.executor.checked import CheckedExecutor  # for debugging

    return CheckedExecutor


#: The default kind of sessions.
DEFAULT_KIND = "compiled"

#: A function per kind that returns its class. A session of the last kind refuses a plan in which
#: anything but delegates would compute.
EXECUTORS: dict[str, Callable[[], type[PlanExecutor]]] = {
    DEFAULT_KIND: _compiled,
    "interpreted": _interpreted,
    "checked": _checked,
    "delegate": _compiled,
}


def compile_plan(
    plan: Plan, settings: Settings = DEFAULT_SETTINGS, kind: str = DEFAULT_KIND
) -> PlanExecutor:
    """Return an executor of a plan; see :meth:`PlanExecutor.compile`.

    A plan in which nodes compute sizes is cut into segments, each with an executor of this kind.

    Parameters
    ----------
    plan : Plan
    settings : Settings
    kind : str
        A key of :data:`EXECUTORS`.
    """
    base = EXECUTORS[kind]()
    if not plan.origins:
        return base.compile(plan, settings)
    from taper_runtime.executor.segmented import SegmentedExecutor  # which most plans do not need

    return SegmentedExecutor.compile(plan, settings, base)
