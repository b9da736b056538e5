"""Time per node of a plan, beside the work its op says it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.executor.compiled import CompiledExecutor
from taper_runtime.executor.executor import definition
from taper_runtime.plan.binding import bind_sizes, instantiate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taper_runtime.plan.plan import Plan


def profile_plan(plan: Plan, feed: Mapping[str, np.ndarray], runs: int) -> str:
    """Median time of every node over ``runs`` runs, as a table.

    Columns: microseconds, share of the run, GFLOP/s, GB/s, kernel, node. Nodes numpy computes are
    not timed and not listed.
    """
    sizes = bind_sizes(plan, {name: array.shape for name, array in feed.items()})
    plan = instantiate(plan, sizes)
    executor = CompiledExecutor.compile(plan)
    arrays = [feed.get(name, plan.constants.get(name)) for name in plan.reads]
    executor.run(arrays)
    samples = [executor.profile(arrays)[1] for _ in range(runs)]
    medians = np.median(np.array(samples), axis=0)
    total = max(float(medians.sum()), 1.0)
    lines = [f"{'us':>9} {'share':>6} {'GFLOP/s':>8} {'GB/s':>7}  kernel, node"]
    for (node, kernel), ns in zip(executor.steps, medians, strict=True):
        op, attrs = definition(node)
        inputs = [plan.tensors[name].type for name in node.inputs]
        cost = op.cost(inputs, plan.tensors[node.output].type, attrs)
        ns = max(float(ns), 1.0)
        lines.append(
            f"{ns / 1e3:9.1f} {ns / total:6.1%} {cost.flops / ns:8.1f} {cost.bytes / ns:7.1f}  "
            f"{kernel}, {node.output}  {node.source}"
        )
    lines.append(f"{total / 1e3:9.1f} us in native nodes")
    return "\n".join(lines)
