"""Compare the cost model's estimate of each node with its time: docs/results/costs.md.

Each model's plan is profiled on one thread, on each ISA level of this machine. The estimate is the
one that the passes ask, with the rates of this machine in place of the typical ones: arithmetic,
elementwise functions, sums, rows, scratch and the overhead of a node, over traffic from the levels
that hold its operands.
The models are exported once; `--minutes` bounds the runs after that, which all models and levels
share. `--quick` takes half a minute for them and only prints. `--narrow` takes networks and layers
whose weights are int8 or int4, on the best level alone, into a table of their own.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import taper_frontend
import taper_runtime
from taper_runtime.formats.winograd import tile_of
from taper_runtime.machine.limits import typical
from taper_runtime.machine.measure import measure_limits
from taper_runtime.native import _kernels
from taper_runtime.reports.profile import least_ns, profile_plan
from tools.peers.cases import SETS
from tools.peers.page import ROOT, command_line, describe_setting, write_section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taper_runtime.machine.limits import MachineLimits
    from taper_runtime.plan.plan import Plan, PlanBlock, PlanNode

PAGE = ROOT / "docs" / "results" / "costs.md"

#: The sets of models whose nodes are compared.
COMPARED = ("vision", "minilm", "gpt2")

#: The networks of `--narrow`, as :mod:`tools.peers.quantized` quantizes them.
NETWORKS = ("ResNet-50 1x224", "MobileNetV2 1x224", "EfficientNet-B0 1x224")

#: The layers of `--narrow`: rows of activations, and how weights and activations are quantized.
LAYER_ROWS, SCHEMES = (1, 16, 128), ("int8", "int4", "int4_grouped", "int8_dynamic")
LAYER_SIZE = 2048

#: Nodes below this are left out: clocks and the caches that a profile disturbs decide their times.
LEAST_NS = 5000.0

#: The part of the measured bandwidth of a cache that kernels reach: they read their operands in
#: short runs, and the measuring loop has the cache for itself.
CACHE_SHARE = 0.5

#: GFLOP/s of float32 on the machines whose times of functions the model has: an EPYC (Zen 4) with
#: AVX-512, and another (Zen 3) with AVX2 and SSE, on which SSE has the part of AVX2 that it has on
#: the first.
TIMED_FLOPS = {"avx512": 118.0, "avx2": 83.0, "baseline": 83.0 * 52.2 / 118.2}

BYTES = ("int8", "uint8")

#: Kind of node -> its nodes' estimates over their times, each with the time.
Errors = dict[str, list[tuple[float, float]]]


#: The variable that tells a process of one level where the plans are.
FOLDER = "TAPER_COSTS_PLANS"

#: How often a model runs at least and at most.
FEWEST, MOST = 3, 40


def plans() -> Iterator[Plan]:
    """Export the models."""
    for make in (make for family in COMPARED for make in SETS[family].values()):
        torch.manual_seed(0)
        module, args = make()
        yield taper_frontend.export(module.eval(), args, verify=False)


def narrow_plans(**options: Any) -> Iterator[Plan]:
    """Export networks of bytes, and layers; ``options`` are those of the exports."""
    for name in NETWORKS:
        torch.manual_seed(0)
        module, args = SETS["vision"][name]()
        quantized = taper_frontend.quantize(module.eval(), "int8_static", [args])
        yield taper_frontend.export(quantized, args, verify=False, **options)
    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Linear(LAYER_SIZE, LAYER_SIZE)).eval()
    for rows, scheme in itertools.product(LAYER_ROWS, SCHEMES):
        args = (torch.randn(rows, LAYER_SIZE),)
        if scheme == "int8_dynamic":
            quantized = taper_frontend.quantize(layer, scheme)
            yield taper_frontend.export(quantized, args, verify=False, **options)
        else:
            yield taper_frontend.export(layer, args, verify=False, quantize=scheme, **options)


def errors(plan: Plan, limits: MachineLimits, seconds: float) -> Errors:
    """Profile a plan for a while, and compare."""
    begin = time.perf_counter()
    profile_plan(plan, plan.samples, runs=1, threads=1)  # and a warm-up
    taken = (time.perf_counter() - begin) / 2
    runs = max(FEWEST, min(MOST, round(seconds / taken)))
    profile = profile_plan(plan, plan.samples, runs=runs, threads=1)
    estimated = least_ns(profile.plan, rates(limits), profile.sites, profile.times)
    found: Errors = defaultdict(list)
    for site, ns, estimate in zip(profile.sites, profile.ns, estimated, strict=True):
        if ns >= LEAST_NS and not site.runs_blocks:
            found[kind(site.plan, site.node)].append((estimate / ns, ns))
    return found


def rates(limits: MachineLimits) -> MachineLimits:
    """Return the typical overheads of an ISA level with the rates of this machine.

    Times of functions, rows and scratch were measured on one machine; they are taken to be in
    proportion to its clock, and so to its multiply-adds.
    """
    model = typical(limits.isa)
    slower = TIMED_FLOPS.get(limits.isa, 83 / 2) / limits.flops
    memory = tuple(
        level._replace(read=CACHE_SHARE * level.read, copy=CACHE_SHARE * level.copy)
        if level.size
        else level
        for level in limits.memory
    )
    int8 = limits.int8 or model.int8 / model.flops * limits.flops
    return model._replace(
        flops=limits.flops,
        int8=int8,
        memory=memory,
        function_ns=slower * model.function_ns,
        row_ns=slower * model.row_ns,
        scratch_ns=slower * model.scratch_ns,
    )


def kind(plan: PlanBlock, node: PlanNode) -> str:
    """Return the op; for products how they are computed, and whether bytes are read or made."""
    first, result = (plan.tensors[name].dtype for name in (node.reads[0], node.output))
    if node.op == "MATMUL":
        weight = plan.tensors[node.inputs[1]]
        levels = weight.format.split(".")[1] if weight.format.startswith("blocks") else ""
        rounds = ", activations in groups" if node.attrs.get("activation_group") else ""
        if levels or weight.dtype in ("float32", "int8"):
            of = f" by int{levels}" if levels else " of bytes" if weight.dtype == "int8" else ""
            return f"MATMUL{of}{rounds}"
    if node.op != "CONV":
        return f"{node.op} to bytes" if result in BYTES else node.op
    tile = tile_of(plan.tensors[node.inputs[1]].format)
    if tile:
        return f"CONV, F({tile}x{tile})"
    form = "depthwise" if node.attrs.get("groups", 1) > 1 else "direct"
    return f"CONV{' of bytes' * (first in BYTES)}, {form}"


def table(folder: Path, seconds: float) -> str:
    """Compare all models on the ISA level of this process."""
    (limits,) = measure_limits([_kernels.active_isa()], [1])
    by_kind: Errors = defaultdict(list)
    files = sorted(folder.iterdir())
    for file in files:
        plan = taper_runtime.load(file)
        for name, found in errors(plan, limits, seconds / len(files)).items():
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
    parser.add_argument("--quick", action="store_true", help="half a minute, printed only")
    parser.add_argument("--narrow", action="store_true", help="int8 and int4, on the best level")
    parser.add_argument("--minutes", type=float, default=1.5, help="how long models run")
    args = parser.parse_args()
    seconds = 30.0 if args.quick else 60 * args.minutes
    levels = _kernels.available_isas()
    if args.narrow:
        levels = [_kernels.active_isa()]
    if FOLDER not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            for number, plan in enumerate(narrow_plans() if args.narrow else plans()):
                plan.save(Path(folder) / f"{number}.taper")
            for isa in levels:
                command = (sys.executable, "-m", "tools.peers.costs", *sys.argv[1:])
                env = {**os.environ, "TAPER_ISA": isa, FOLDER: folder}
                subprocess.run(command, check=True, env=env)
        return
    print(text := table(Path(os.environ[FOLDER]), seconds / len(levels)))
    if not args.quick:
        setting = describe_setting(command_line("costs"))
        what = "Nodes of narrow weights" if args.narrow else "Nodes"
        key = f"costs{' narrow' * args.narrow} {_kernels.active_isa()}"
        write_section(key, f"{what} on {_kernels.active_isa()}", f"{setting}\n\n{text}", PAGE)


if __name__ == "__main__":
    main()
