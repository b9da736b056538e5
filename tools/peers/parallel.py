"""Measure nodes that run at the same time against one after the other; `--quick` only prints.

Two wide models: four towers over one input, and eight experts that a gate mixes. Each is run on one
thread, on two threads one node at a time, and on two threads two nodes at a time; the three take
turns. The arenas are those of the two kinds of run. Writes docs/results/parallel.md.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

import taper_frontend
from taper_runtime import InferenceSession, SessionOptions
from taper_runtime.executor.memory_use import memory_use, parallel_arena
from tools.peers.page import ROOT, command_line, describe_setting, write_section
from tools.peers.turns import Timed, paired_ratios, take_turns

if TYPE_CHECKING:
    from taper_runtime.plan.plan import Plan

PAGE = ROOT / "docs" / "results" / "parallel.md"

THREADS = 2

#: The ways to run a plan: threads of a node, and nodes at the same time.
WAYS = {"one thread": (1, 1), "threads": (THREADS, 1), "nodes": (1, THREADS)}


class Towers(nn.Module):
    """Four towers of six layers, as two-tower recommenders and ensembles have them."""

    def __init__(self, towers: int = 4, width: int = 192, depth: int = 6) -> None:
        super().__init__()
        self.towers = nn.ModuleList(
            nn.Sequential(
                *(layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU()))
            )
            for _ in range(towers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the towers' results, side by side."""
        return torch.cat([tower(x) for tower in self.towers], -1)


class Experts(nn.Module):
    """Eight experts of two layers each, all computed, and mixed by a gate."""

    def __init__(self, experts: int = 8, width: int = 192) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(experts)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mixture."""
        shares = torch.softmax(self.gate(x), -1)
        parts = [shares[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts)]
        return torch.stack(parts).sum(0)


def models() -> dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    """The models by name, each with its arguments."""
    return {
        "4 towers of 6 layers, 24 rows": (Towers(), (torch.randn(24, 192),)),
        "8 experts and a gate, 24 rows": (Experts(), (torch.randn(24, 192),)),
    }


def open_session(plan: Plan, threads: int, nodes: int) -> InferenceSession:
    """Open a session with so many threads of a node, and so many nodes at the same time."""
    options = SessionOptions()
    options.intra_op_num_threads = threads
    if nodes > 1:
        options.execution_mode = "parallel"
        options.inter_op_num_threads = nodes
    return InferenceSession(plan, options)


def row(name: str, module: nn.Module, args: tuple[torch.Tensor, ...], seconds: float) -> str:
    """Measure one model.

    Raises
    ------
    AssertionError
        If the ways give different bits.
    """
    plan = taper_frontend.export(module.eval(), args)
    feed = dict(plan.samples)
    sessions = {way: open_session(plan, *numbers) for way, numbers in WAYS.items()}
    results = {way: session.run(None, feed)[0] for way, session in sessions.items()}
    assert all(np.array_equal(results["one thread"], each) for each in results.values()), name
    runs = {way: Timed(lambda s=s: s.run(None, feed)[0]) for way, s in sessions.items()}
    times = take_turns(runs, seconds)
    cells = [f"{1e6 * min(times[way]):.0f}" for way in WAYS]
    cells += [f"{min(times['one thread']) / min(times[way]):.2f}" for way in ("threads", "nodes")]
    for way in ("threads", "nodes"):
        ratio, low, high = paired_ratios(times[way], times["one thread"])
        cells.append(f"{ratio:.2f} ({low:.2f} to {high:.2f})")
    arenas = f"{memory_use(plan).arena / 1e3:.0f} | {parallel_arena(plan) / 1e3:.0f}"
    return f"| {name} | {' | '.join(cells)} | {arenas} |"


def main() -> None:
    """Measure both models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a second each, printed only")
    quick = parser.parse_args().quick
    torch.manual_seed(0)
    head = (
        "| model | one thread, us | threads, us | nodes, us | threads, by least | nodes, by least "
    )
    head += "| threads, by turns | nodes, by turns | arena, kB | arena of nodes, kB |"
    lines = [head, "| --- " + "| ---: " * 9 + "|"]
    for name, (module, args) in models().items():
        lines.append(row(name, module, args, 1.0 if quick else 20.0))
    table = "\n".join(lines)
    print(table)
    if not quick:
        text = f"{describe_setting(command_line('parallel'))}\n\n{table}"
        write_section("parallel", "Measured", text, PAGE)


if __name__ == "__main__":
    main()
