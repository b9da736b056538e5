"""Time Taper's export beside torch.export's own; `BertModel` takes what is named.

Of each architecture the CPU seconds of `taper_frontend.export`, with its checks, over those of
`torch.export.export` and one run of the module: in turns, the least of three. Every tenth
architecture, or those that are named.

``--depth`` takes the kinds of ``tools/zoo/deep.py`` instead, at depths of 2 to 48 layers, and
prints rows of a table: the CPU time of lowering, passes and planning for each node as lowered, and
the deepest over the least of them. Below a kind stand the steps that take more than 1.5 times as
long for a node of its deepest graph as for one of a shallower one. Each program is captured once
and compiled twice, and of each step the lesser time counts: what another process takes, and a
collection of garbage in the heap that torch has filled, which a deep export meets once, fall on one
step of one of the two.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
import warnings
from collections import Counter
from typing import TYPE_CHECKING

import torch

import taper_frontend
from taper_frontend.capture.attempts import CapturedProgram
from taper_frontend.capture.capture import capture
from taper_frontend.export_progress import ExportProgress
from taper_frontend.program_to_plan import compile_program
from taper_frontend.request.program_inputs import read_inputs
from tools.zoo import GROUPS
from tools.zoo.deep import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tools.zoo.architecture import Architecture

_TURNS = 3

#: Times that one program is compiled.
_COMPILED = 2

#: Layers of an architecture at which its export is timed.
DEPTHS = (2, 8, 24, 48)

#: What takes a smaller part of an export's time is not judged.
_LEAST_PART = 0.03

#: How much longer a node may take in a deeper graph.
FLAT = 1.5


def ratio(architecture: Architecture) -> float:
    """Return the time of Taper's export over that of torch's and one run of the module."""
    module, inputs = architecture.build()

    def torchs() -> None:
        with torch.no_grad():
            torch.export.export(module, (), inputs, strict=False)
            module(**inputs)

    def tapers() -> None:
        taper_frontend.export(module, (), inputs)

    turns = [(_seconds(torchs), _seconds(tapers)) for _ in range(_TURNS)]
    theirs, ours = (min(times) for times in zip(*turns, strict=True))
    return ours / theirs


def _seconds(action: Callable[[], None]) -> float:
    gc.collect()
    begin = time.process_time()
    action()
    return time.process_time() - begin


class Phases:
    """The CPU seconds of each step and pass of an export: what its ``progress`` calls."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._name = ""
        self._begin = time.process_time()

    def __call__(self, name: str) -> None:
        """Begin a step; the one before it has ended."""
        now = time.process_time()
        self.seconds[self._name] += now - self._begin
        self._name, self._begin = name, now


def per_node(architecture: Architecture) -> Counter[str]:
    """Compile an architecture; return the microseconds of each of our steps for each node."""
    module, inputs = architecture.build()
    program = capture(module, (), inputs)
    captured = CapturedProgram(program, read_inputs(program))
    runs, nodes = [], 1
    for _ in range(_COMPILED):
        gc.collect()
        phases = Phases()
        compiled = compile_program(captured, step=ExportProgress(phases))
        phases("")
        del phases.seconds[""]
        runs.append(phases.seconds)
        nodes = compiled.plan.metadata["nodes_lowered"]
    return Counter({name: 1e6 / nodes * min(run[name] for run in runs) for name in runs[0]})


def steep(times: list[Counter[str]]) -> dict[str, float]:
    """Return the steps that take longer for a node of the deepest graph, and how much longer."""
    *shallow, deepest = times
    found = {}
    for name, last in deepest.items():
        growth = last / max(min(each[name] for each in shallow), 1e-9)
        if growth > FLAT and last > _LEAST_PART * deepest.total():
            found[name] = growth
    return found


def over_depths(names: list[str]) -> None:
    """Print the time for each node of the kinds that are named, at each depth."""
    print("| kind |", " | ".join(f"{depth} layers" for depth in DEPTHS), "| deepest, to least |")
    print("|", " | ".join(["---"] * (len(DEPTHS) + 2)), "|")
    for name in names or KINDS:
        times = [per_node(KINDS[name].of_depth(depth)) for depth in DEPTHS]
        totals = [each.total() for each in times]
        row = [name, *(f"{total:.0f}" for total in totals), f"{totals[-1] / min(totals):.2f}"]
        print("|", " | ".join(row), "|", flush=True)
        for step, longer in steep(times).items():
            print(f"    {step}:", *(f"{each[step]:.0f}" for each in times), f"({longer:.2f})")


def main() -> None:
    """Print the ratio of each architecture, and their median."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="architectures; every tenth by default")
    parser.add_argument("--depth", action="store_true", help="kinds at several depths")
    options = parser.parse_args()
    names = options.names
    architectures = {name: each for group in GROUPS.values() for name, each in group.items()}
    if unknown := set(names) - set(KINDS if options.depth else architectures):
        parser.error(f"unknown names: {', '.join(sorted(unknown))}")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if options.depth:
        over_depths(names)
        return
    ratios = []
    for name in names or list(architectures)[::10]:
        try:
            ratios.append(ratio(architectures[name]))
        except Exception as error:  # torch.export refuses it
            print(f"{name}: {type(error).__name__}")
        else:
            print(f"{name}: {ratios[-1]:.2f}", flush=True)
    print(f"median of {len(ratios)}: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
