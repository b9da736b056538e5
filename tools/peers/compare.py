"""Time Taper beside other engines; `--models mlp --threads 2 --quick` only prints a few.

On one thread all engines share this process and take turns run by run. On more, each has a process
of its own. Every result is compared with torch's before anything is timed. The tables go to
docs/results/benchmarks.md; a quick run only prints them.
`nox -s peers`; torch.compile needs a C++ compiler.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

import taper_frontend
from taper_runtime.base.errors import TaperError
from taper_runtime.machine.measure import describe_limits, measure_limits
from taper_runtime.native import _kernels
from taper_runtime.reports.profile import least_ns
from tools.peers.cases import SETS
from tools.peers.engines import ENGINES
from tools.peers.page import command_line, describe_setting, write_section
from tools.peers.turns import Apart, Here, Refused, paired_ratios, take_turns

if TYPE_CHECKING:
    from taper_runtime.machine.limits import MachineLimits

TOLERANCE = 1e-4  # of the relative L2 difference to torch eager
REFERENCE = "torch eager"
#: Set -> engines that are left out of it. torch.compile takes minutes of C++ compilation a model.
LEFT_OUT = {"newcomers": {"torch.compile"}}
BEHIND = 0.95  # of the best peer's speed; a model that lies wholly below gets a line


def engines_of(family: str) -> list[str]:
    """The engines that a set is timed on, in the order of the columns."""
    return [name for name in ENGINES if name not in LEFT_OUT.get(family, ())]


def compare(
    family: str, model: str, limits: MachineLimits, seconds: float
) -> tuple[str, list[str]]:
    """A row of the table, and a line for each engine without a time or a model that is behind."""
    threads = limits.threads
    module, args = SETS[family][model]()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "model.taper")
        try:
            plan = taper_frontend.export(module, args, verify=False)
        except TaperError as error:
            cells = " | ".join("" for _ in range(len(engines_of(family)) + 2))
            return f"| {model} | not exported: {_short(error)} | {cells} |", []
        plan.save(path)
        del module
        runners, notes = _start(family, model, path, threads)
        try:
            times = take_turns(runners, seconds)
        finally:
            for runner in runners.values():
                runner.close()
    medians = {name: statistics.median(values) for name, values in times.items()}
    cells = [
        f"{_ms(min(times[name]))} / {_ms(medians[name])}" if name in times else "-"
        for name in engines_of(family)
    ]
    ratio = paired = share = "-"
    if "taper" in medians:
        ours = medians.pop("taper")
        best = min(medians, key=medians.__getitem__)
        ratio = f"{medians[best] / ours:.2f}"
        middle, low, high = paired_ratios(times["taper"], times[best])
        paired = f"{middle:.2f} ({low:.2f} to {high:.2f})"
        share = f"{sum(least_ns(plan, limits)) / 1e9 / ours:.0%}"
        if high < BEHIND:
            notes.append(f"{model}: {best} is faster; paired ratios {paired}")
    return f"| {model} | {' | '.join(cells)} | {ratio} | {paired} | {share} |", notes


def _start(
    family: str, model: str, plan: Path, threads: int
) -> tuple[dict[str, Here | Apart], list[str]]:
    """The engines that are right, and a line for each of the others."""
    runner = Here if threads == 1 else partial(Apart, Here)
    runners: dict[str, Here | Apart] = {}
    notes = []
    want = Here(REFERENCE, family, model, plan, threads).output.astype(np.float64)
    for name in engines_of(family):
        try:
            made = runner(name, family, model, plan, threads)
        except Refused as refusal:
            notes.append(f"{model}: {name} refuses: {_short(refusal)}")
            continue
        shaped = made.output.shape == want.shape
        error = np.linalg.norm(made.output - want) / np.linalg.norm(want) if shaped else np.inf
        if error <= TOLERANCE:
            runners[name] = made
        else:
            made.close()
            notes.append(f"{model}: {name} is wrong: relative difference {error:.1e}")
    return runners, notes


def _ms(seconds: float) -> str:
    """Milliseconds to three digits."""
    ms = 1e3 * seconds
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 10 else f"{ms:.3f}"


def _short(error: BaseException) -> str:
    """The first lines of a message, fit for a table's cell."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", str(error))  # torch.onnx writes in color
    text = " ".join(plain.split()).replace("|", "/")
    return text if len(text) <= 160 else text[:157] + "..."


def main() -> None:
    """Measure the chosen sets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=SETS, default=list(SETS), metavar="SET")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a glance: print, write nothing")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)  # for the processes to come
    torch.set_num_threads(options.threads)
    seconds = 1.0 if options.quick else 8.0
    limits = measure_limits([_kernels.active_isa()], [options.threads])[0]
    setting = describe_setting(command_line("peers"), "onnxruntime", "openvino")
    print(setting, describe_limits([limits]), sep="\n")
    for family in options.models:
        engines = engines_of(family)
        head = f"| model | {' | '.join(engines)} | ratio | paired | roofline |"
        rule = "| --- " * (len(engines) + 4) + "|"
        print(f"\n{head}\n{rule}")
        rows, notes = [], []
        for model in SETS[family]:
            row, more = compare(family, model, limits, seconds)
            print(row, *more, sep="\n", flush=True)
            rows.append(row)
            notes += more
        if not options.quick:
            remarks = [f"- {note}" for note in notes] + [""] * bool(notes)
            machine = ["```", describe_limits([limits]), "```"]
            text = "\n".join([setting, "", head, rule, *rows, "", *remarks, *machine])
            write_section(
                f"{family} {options.threads}", f"{family}, threads: {options.threads}", text
            )


if __name__ == "__main__":
    main()
