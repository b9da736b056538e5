"""Measure beside what keeps CPUs busy, and under quotas of CPU time; `--quick` only prints.

Two threads of each engine beside one of Taper's, in turns: alone; beside a process that keeps the
last CPU busy; and beside ONNX Runtime's own threads in the same process, which spin after a small
model that runs before each timed run. Then one caller of each engine with the threads that it
chooses, in a control group with the time of 0.5 and of 1 CPU; the group is made where this user may
make one. Writes docs/results/crowded.md; a quick run only prints.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

import taper_frontend
from control_groups import NoControlGroup, limited_group
from tools.peers.cases import SETS
from tools.peers.engines import Run, open_onnx, open_plan, save_onnx
from tools.peers.page import PAGE, command_line, describe_setting, write_section
from tools.peers.turns import Apart, Refused, paired_ratios

if TYPE_CHECKING:
    from collections.abc import Iterator

MODELS = {
    "MobileNetV3-Large 1x224": "vision",
    "EfficientNet-B0 1x224": "vision",
    "MLP 32x512": "mlp",
}
SETTINGS = ("alone", "a busy CPU", "threads that spin")
QUOTAS = (0.5, 1.0)  # CPUs
RIVAL = "MLP 32x512"  # that keeps ONNX Runtime's threads awake
TURNS, RUNS = 40, 10
QUOTA_SECONDS = 2.0  # of a turn
SPINNER_SECONDS = 1800  # of CPU time, should this process not live to end it


class Way(NamedTuple):
    """An engine, and its threads; 0 leaves the choice to it."""

    engine: str
    threads: int

    def __str__(self) -> str:
        return self.engine if not self.threads else f"{self.engine} x{self.threads}"


THREADS = (Way("taper", 1), Way("taper", 2), Way("ONNX Runtime", 2))
DEFAULTS = (Way("taper", 0), Way("ONNX Runtime", 0))


class Runner:
    """An engine with a model, in a process of its own; see :class:`tools.peers.turns.Apart`."""

    def __init__(self, way: Way, model: str, folder: Path, rival: bool, group: Path | None) -> None:
        if group is not None:
            group.write_text("0")  # this process enters it
        torch.set_num_threads(1)
        try:
            self._run = _load(way, model, folder)
            self._rival = _load(THREADS[-1], RIVAL, folder) if rival else None
            self.output = self._run().copy()
        except Exception as error:  # whatever an engine raises is its refusal
            raise Refused(f"{type(error).__name__}: {error}") from error

    def times(self, runs: int) -> list[float]:
        """Seconds of each of some runs, after one that wakes the threads."""
        return [self._seconds() for _ in range(runs + 1)][1:]

    def load(self, seconds: float) -> list[float]:
        """Seconds of each request of a caller that sends one after the other for so long."""
        found = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            found.append(self._seconds())
        return found

    def _seconds(self) -> float:
        if self._rival is not None:
            self._rival()
        begin = time.perf_counter()
        self._run()
        return time.perf_counter() - begin


def _path(folder: Path, model: str, kind: str) -> Path:
    return folder / f"{model.split()[0]}.{kind}"


def _load(way: Way, model: str, folder: Path) -> Run:
    if way.engine == "taper":
        return open_plan(_path(folder, model, "taper"), way.threads)
    args = np.load(_path(folder, model, "npz")).values()
    return open_onnx(_path(folder, model, "onnx"), tuple(args), way.threads)


def _export(model: str, folder: Path) -> None:
    module, args = SETS[MODELS[model]][model]()
    taper_frontend.export(module, args, verify=False).save(_path(folder, model, "taper"))
    with torch.no_grad():
        save_onnx(module, args, _path(folder, model, "onnx"))
    np.savez(_path(folder, model, "npz"), *(a.numpy() for a in args))


@contextmanager
def busy_cpu() -> Iterator[None]:
    """Keep the last of this process's CPUs busy."""
    limit = (SPINNER_SECONDS, SPINNER_SECONDS)
    process = subprocess.Popen(
        [sys.executable, "-c", "while True: pass"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, limit),
    )
    try:
        os.sched_setaffinity(process.pid, {max(os.sched_getaffinity(0))})
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def _started(ways: tuple[Way, ...], *what: object) -> Iterator[dict[Way, Apart]]:
    """A process of each engine, started one after the other; of those that take the model."""
    runners: dict[Way, Apart] = {}
    try:
        for way in ways:
            try:
                runners[way] = Apart(Runner, way, *what)
            except Refused as refusal:
                print(f"{what[0]}: {way} refuses: {refusal}")
        yield runners
    finally:
        for runner in runners.values():
            runner.close()


def _cell(seconds: list[float]) -> str:
    least, middle, late = 1e3 * np.percentile(seconds, [0, 50, 95])
    return f"{least:.2f} / {middle:.2f} / {late:.2f}"


def _ratio(others: list[list[float]], ours: list[list[float]]) -> str:
    """The time of a turn over that of another engine's turn; below 1 where ours is sooner."""
    middle, low, high = paired_ratios(list(map(sum, others)), list(map(sum, ours)))
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def beside(model: str, folder: Path, turns: int) -> str:
    """Markdown: a row for each setting."""
    one, two, other = THREADS
    head = (
        f"| {model}, least / median / p95, ms | {' | '.join(map(str, THREADS))} "
        f"| {two} over {one} | {two} over {other} |"
    )
    lines = [
        head,
        "| --- " * (len(THREADS) + 3) + "|",
    ]
    for setting in SETTINGS:
        found: dict[Way, list[list[float]]] = {way: [] for way in THREADS}
        rival = setting == "threads that spin"
        neighbour = busy_cpu() if setting == "a busy CPU" else nullcontext()
        with _started(THREADS, model, folder, rival, None) as runners, neighbour:
            for turn in range(turns + 1):
                for way, runner in runners.items():
                    runner.begin("times", RUNS)
                    times = runner.end()
                    if turn:
                        found[way].append(times)
        cells = [_cell(list(chain(*found[way]))) if found[way] else "refuses" for way in THREADS]
        ratios = [
            _ratio(found[way], found[two]) if found[way] and found[two] else ""
            for way in (one, other)
        ]
        lines.append(f"| {setting} | {' | '.join([*cells, *ratios])} |")
    return "\n".join(lines)


def under_quotas(model: str, folder: Path, turns: int, seconds: float) -> str:
    """Markdown: a row for each quota, or a line that says why there is none."""
    head = (
        f"| {model}, requests per second; p50 / p95, ms | {' | '.join(map(str, DEFAULTS))} "
        "| throughput, ratio | p95, ratio |"
    )
    lines = [
        head,
        "| --- " * (len(DEFAULTS) + 3) + "|",
    ]
    for cpus in QUOTAS:
        try:
            found = _quota_turns(model, folder, turns, seconds, cpus)
        except NoControlGroup as reason:
            return f"{model}: not measured under quotas: {reason}."
        cells, rates, late = [], [], []
        for way in DEFAULTS:
            middle, last = 1e3 * np.percentile(list(chain(*found[way])), [50, 95])
            rates.append(float(np.median([len(t) / sum(t) for t in found[way]])))
            late.append(last)
            cells.append(f"{rates[-1]:.1f}/s; {middle:.2f} / {last:.2f}")
        ratios = f"{rates[0] / rates[1]:.2f} | {late[1] / late[0]:.2f}"
        lines.append(f"| {cpus:g} CPUs | {' | '.join(cells)} | {ratios} |")
    return "\n".join(lines)


def _quota_turns(
    model: str, folder: Path, turns: int, seconds: float, cpus: float
) -> dict[Way, list[list[float]]]:
    found: dict[Way, list[list[float]]] = {way: [] for way in DEFAULTS}
    with (
        limited_group(cpus) as (members, _),
        _started(DEFAULTS, model, folder, False, members) as runners,
    ):
        for _ in range(turns):
            for way, runner in runners.items():
                runner.begin("load", seconds)
                found[way].append(runner.end())
    return found


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--quick", action="store_true", help="a glance: print, write nothing")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what is begun here is ended
    for name in ("TAPER_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.pop(name, None)  # each engine is told its threads, or chooses
    turns = 8 if options.quick else TURNS
    setting = describe_setting(command_line("crowded"), "onnxruntime")
    print(setting, flush=True)
    parts = [setting]
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        for model in {*options.models, RIVAL}:
            _export(model, folder)
        for model in options.models:
            tables = (
                beside(model, folder, turns),
                under_quotas(model, folder, max(2, turns // 8), QUOTA_SECONDS),
            )
            for text in tables:
                print(f"\n{text}", flush=True)
                parts.append(text)
    if not options.quick:
        page = PAGE.with_name("crowded.md")
        write_section("crowded", "Beside other work", "\n\n".join(parts), page)


if __name__ == "__main__":
    main()
