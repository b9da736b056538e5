"""Measure time and memory as work grows, and plot them; `--quick` only prints.

One encoder layer of MiniLM's width, on one thread: sequence lengths at batch 1, batches at length
128. The exponent between two sizes is the slope in the logarithmic plot: 1 where time grows with
the tokens, 2 where with their pairs. Writes a plot into docs/results/images and a table into
docs/results/benchmarks.md; a quick run only prints.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
from typing import NamedTuple

import torch

import taper_frontend
from models import encoder
from taper_runtime.executor.compiled import CompiledExecutor
from taper_runtime.executor.memory_use import memory_use
from taper_runtime.reports.profile import profile_plan
from tools.peers.page import PAGE, command_line, cpu_name, describe_setting, write_section
from tools.peers.turns import Timed, take_turns

LENGTHS = [16, 32, 64, 128, 256, 512, 1024, 2048]  # at batch 1
BATCHES = [1, 2, 4, 8, 16, 32]  # at this length
LENGTH = 128
_CPU = "-".join(re.findall("[a-z0-9]+", cpu_name().lower()))
IMAGE = PAGE.parent / "images" / f"scaling-{_CPU}.png"


class Point(NamedTuple):
    """One size, measured.

    Attributes
    ----------
    batch, length : int
    taper, torch : float
        Median seconds.
    attention : float
        Attention's share of Taper's time.
    arena : int
        Bytes of intermediates.
    """

    batch: int
    length: int
    taper: float
    torch: float
    attention: float
    arena: int


def measure(batch: int, length: int, seconds: float) -> Point:
    """One layer at one size."""
    module, args = encoder(batch, length, layers=1)
    plan = taper_frontend.export(module, args, verify=False)
    executor = CompiledExecutor.compile(plan)
    feed = dict(plan.samples)
    arrays = [feed[name] for name in plan.inputs]
    runs = {
        "taper": Timed(lambda: executor.run(arrays)[0]),
        "torch": Timed(lambda: module(*args).numpy()),
    }
    medians = {k: statistics.median(v) for k, v in take_turns(runs, seconds).items()}
    profile = profile_plan(plan, feed, runs=5, threads=1)
    attention = sum(
        ns
        for site, ns in zip(profile.sites, profile.ns, strict=True)
        if site.node.op == "ATTENTION"
    )
    share = attention / profile.total
    return Point(batch, length, medians["taper"], medians["torch"], share, memory_use(plan).arena)


def exponent(before: Point, after: Point) -> float:
    """The slope of time against tokens between two points, both logarithmic."""
    tokens = after.batch * after.length / (before.batch * before.length)
    return math.log(after.taper / before.taper) / math.log(tokens)


def table(points: list[Point]) -> str:
    """Markdown, one line per point."""
    lines = [
        "| batch x length | taper, ms | torch eager, ms | exponent | attention | arena, kB |",
        "| --- " * 6 + "|",
    ]
    for i, p in enumerate(points):
        slope = f"{exponent(points[i - 1], p):.2f}" if i else ""
        lines.append(
            f"| {p.batch}x{p.length} | {1e3 * p.taper:.3f} | {1e3 * p.torch:.3f} | {slope} "
            f"| {p.attention:.0%} | {p.arena / 1e3:.0f} |"
        )
    return "\n".join(lines)


def summary(points: list[Point]) -> str:
    """Where attention takes over, and the exponent there."""
    last = f"The exponent from length {points[-2].length} to {points[-1].length} is "
    last += f"{exponent(points[-2], points[-1]):.2f}"
    taken = next((p for p in points if p.attention > 0.5), None)
    if taken is None:
        return f"{last}; attention stays below half of the time up to length {points[-1].length}."
    return f"{last}; attention takes more than half of the time from length {taken.length} on."


def plot(lengths: list[Point], batches: list[Point]) -> None:
    """Time on the left axes, arena on the right ones, all logarithmic."""
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for axes, points, field in zip(panels, (lengths, batches), ("length", "batch"), strict=True):
        x = [getattr(p, field) for p in points]
        axes.loglog(x, [1e3 * p.torch for p in points], "s-", color="tab:orange", label="torch")
        axes.loglog(x, [1e3 * p.taper for p in points], "o-", color="tab:blue", label="taper")
        memory = axes.twinx()
        memory.loglog(x, [p.arena / 1e6 for p in points], ":", color="gray", label="arena")
        memory.set_ylabel("arena, MB (dotted)")
        axes.set_xticks(x, [str(n) for n in x])
        axes.minorticks_off()
        axes.set_xlabel(
            "sequence length, batch 1" if field == "length" else f"batch, {LENGTH} long"
        )
        axes.set_ylabel("ms")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle("One encoder layer, width 384, twelve heads, one thread")
    IMAGE.parent.mkdir(exist_ok=True)
    figure.savefig(IMAGE, dpi=110)


def main() -> None:
    """Measure, print, plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a glance: print, write nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seconds = 0.3 if options.quick else 5.0
    setting = describe_setting(command_line("scaling"))
    print(setting, flush=True)
    lengths = [measure(1, length, seconds) for length in LENGTHS]
    batches = [measure(batch, LENGTH, seconds) for batch in BATCHES]
    text = f"{table(lengths)}\n\n{summary(lengths)}\n\n{table(batches)}"
    print(f"\n{text}")
    if not options.quick:
        plot(lengths, batches)
        image = f"![time and memory as work grows]({IMAGE.relative_to(PAGE.parent)})"
        write_section("scaling", "As work grows", f"{setting}\n\n{image}\n\n{text}")


if __name__ == "__main__":
    main()
