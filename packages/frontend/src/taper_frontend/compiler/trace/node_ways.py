"""List the ways to compute each node of a plan, with estimated and measured times, for a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.executor.node_trials import tunable_nodes
from taper_runtime.plan.replaceable import completed
from taper_runtime.plan.specialize import specialize

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taper_runtime.file.measurements import MachineSetting, Measurements
    from taper_runtime.plan.plan import Plan


def node_ways(
    plan: Plan,
    sizes: Mapping[str, int],
    machine: MachineSetting,
    measurements: Measurements | None = None,
) -> list[dict[str, Any]]:
    """Return the nodes that can be computed in several ways, as plain data for JSON.

    The ways are those that ``taper tune --other-bits`` measures. Nothing is measured here.

    Parameters
    ----------
    plan : Plan
    sizes : mapping of str to int
        For which the ways are estimated, if sizes vary.
    machine : MachineSetting
        Its ISA level and threads decide which ways there are.
    measurements : Measurements, optional
        Measured times.

    Returns
    -------
    list of dict
        Equal nodes have one entry: ``nodes``, their outputs and ops; ``ways``, each with ``name``,
        ``estimated_ns``, and ``measured_ns``, the median, or None if it was not measured. The first
        way is the plan's. The list is empty if nodes compute sizes.
    """
    if plan.origins:
        return []
    plan = specialize(completed(plan), sizes)
    known = {} if measurements is None else measurements.by_node
    found = []
    for node in tunable_nodes(plan, machine.isa, other_bits=True, threads=machine.threads):
        ways = []
        for each in node.candidates:
            times = known.get(each.key, {}).get(each.name)
            measured = None if times is None else round(times.median)
            ways.append(
                {"name": str(each), "estimated_ns": round(each.ns), "measured_ns": measured}
            )
        found.append({"nodes": node.labels, "ways": ways})
    return found
