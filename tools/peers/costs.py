"""Compare the cost model's estimate of each node with its time: docs/results/costs.md.

Each model's plan is profiled on one thread, on each ISA level of this machine. The estimate is the
one that the passes ask, with the rates of this machine in place of the typical ones: arithmetic,
elementwise functions, sums, rows, scratch and the overhead of a node, over traffic from the levels
that hold its operands.
`--quick` runs each model less often and only prints.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from typing import TYPE_CHECKING

import torch

import taper_frontend
from taper_runtime.formats.winograd import tile_of
from taper_runtime.machine.limits import typical
from taper_runtime.machine.measure import measure_limits
from taper_runtime.native import _kernels
from taper_runtime.reports.profile import least_ns, profile_plan
from tools.peers.cases import SETS
from tools.peers.page import ROOT, command_line, describe_setting, write_section

if TYPE_CHECKING:
    from taper_runtime.machine.limits import MachineLimits
    from taper_runtime.plan.plan import Plan, PlanBlock, PlanNode

PAGE = ROOT / "docs" / "results" / "costs.md"

#: The sets of models whose nodes are compared.
COMPARED = ("vision", "minilm", "gpt2")

#: Nodes below this are left out: clocks and the caches that a profile disturbs decide their times.
LEAST_NS = 5000.0

#: The part of the measured bandwidth of a cache that kernels reach: they read their operands in
#: short runs, and the measuring loop has the cache for itself.
CACHE_SHARE = 0.5

#: Kind of node -> its nodes' estimates over their times, each with the time.
Errors = dict[str, list[tuple[float, float]]]


def plans() -> dict[str, Plan]:
    """Export the models, each once."""
    made = {}
    for family in COMPARED:
        for name, make in SETS[family].items():
            torch.manual_seed(0)
            module, args = make()
            made[name] = taper_frontend.export(module.eval(), args, verify=False)
    return made


def errors(plan: Plan, limits: MachineLimits, runs: int) -> Errors:
    """Profile a plan, and compare."""
    profile = profile_plan(plan, plan.samples, runs=runs, threads=1)
    estimated = least_ns(profile.plan, rates(limits), profile.sites, profile.times)
    found: Errors = defaultdict(list)
    for site, ns, estimate in zip(profile.sites, profile.ns, estimated, strict=True):
        if ns >= LEAST_NS and not site.runs_blocks:
            found[kind(site.plan, site.node)].append((estimate / ns, ns))
    return found


def rates(limits: MachineLimits) -> MachineLimits:
    """Return the typical overheads of an ISA level with the rates of this machine."""
    model = typical(limits.isa)
    memory = tuple(
        level._replace(read=CACHE_SHARE * level.read, copy=CACHE_SHARE * level.copy)
        if level.size
        else level
        for level in limits.memory
    )
    int8 = limits.int8 or model.int8 / model.flops * limits.flops
    return model._replace(flops=limits.flops, int8=int8, memory=memory)


def kind(plan: PlanBlock, node: PlanNode) -> str:
    """Return the op; for a convolution also how it is computed."""
    if node.op != "CONV":
        return node.op
    tile = tile_of(plan.tensors[node.inputs[1]].format)
    if tile:
        return f"CONV, F({tile}x{tile})"
    return "CONV, depthwise" if node.attrs.get("groups", 1) > 1 else "CONV, direct"


def table(made: dict[str, Plan], runs: int) -> str:
    """Compare all models on the ISA level of this process."""
    (limits,) = measure_limits([_kernels.active_isa()], [1])
    by_kind: Errors = defaultdict(list)
    for plan in made.values():
        for name, found in errors(plan, limits, runs).items():
            by_kind[name] += found
    total = sum(ns for found in by_kind.values() for _, ns in found)
    lines = [
        "| kind | nodes | share of time | estimate over time | first quarter | third quarter |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    shares = {name: sum(ns for _, ns in found) / total for name, found in by_kind.items()}
    for name in sorted(by_kind, key=shares.__getitem__, reverse=True):
        ratios = [ratio for ratio, _ in by_kind[name]]
        low, middle, high = quartiles(ratios)
        lines.append(
            f"| {name} | {len(ratios)} | {shares[name]:.1%} "
            f"| {middle:.2f} | {low:.2f} | {high:.2f} |"
        )
    every = [ratio for found in by_kind.values() for ratio, _ in found]
    off = statistics.median(max(ratio, 1 / ratio) - 1 for ratio in every)
    low, middle, high = quartiles(every)
    text = (
        f"{len(every)} nodes of at least {LEAST_NS / 1e3:.0f} us: median {middle:.2f}, quarters "
        f"{low:.2f} and {high:.2f}; the median node is estimated within {off:.0%}."
    )
    return "\n".join([*lines, "", text])


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Return the first quartile, the median, and the third quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def main() -> None:
    """Compare all models on all levels, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="5 runs a model, printed only")
    quick = parser.parse_args().quick
    if "TAPER_ISA" not in os.environ:
        for isa in _kernels.available_isas():
            command = (sys.executable, "-m", "tools.peers.costs", *sys.argv[1:])
            subprocess.run(command, check=True, env={**os.environ, "TAPER_ISA": isa})
        return
    print(text := table(plans(), 5 if quick else 40))
    if not quick:
        setting = describe_setting(command_line("costs"))
        key = f"costs {_kernels.active_isa()}"
        write_section(key, f"Nodes on {_kernels.active_isa()}", f"{setting}\n\n{text}", PAGE)


if __name__ == "__main__":
    main()
