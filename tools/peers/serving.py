"""Measure throughput and latency under many callers, beside others; `--quick` only prints.

A process of each engine has as many threads as there are CPUs for runs of one thread each, and is
called by 1, 2, 8 and 32 threads of Python. The processes take turns, stopped in between. Taper's
own table has what else its sessions can do, and two callers beside two processes of one caller.
Writes docs/results/serving.md; a quick run only prints.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import taper_frontend
import taper_runtime
from callers import Load, call_from
from tools.peers.cases import SETS
from tools.peers.engines import Run, compile_openvino, onnxruntime, taper
from tools.peers.page import PAGE, command_line, describe_setting, write_section
from tools.peers.turns import Apart, Refused, paired_ratios

CALLERS = (1, 2, 8, 32)
ROUNDS = 7
_TURNS, _EACH = 41, 40  # of two callers beside two processes; requests of each of them
CPUS = len(os.sched_getaffinity(0))
TOLERANCE = 1e-4  # of the relative L2 difference to Taper


class Row(NamedTuple):
    """A model, and how many requests each engine gets from each number of callers."""

    family: str
    model: str
    requests: int


ROWS = {
    "minilm": Row("minilm", "MiniLM 1x16", 1001),
    "mobilenet": Row("vision", "MobileNetV2 1x224", 1001),
    "resnet": Row("vision", "ResNet-50 1x224", 504),
}
#: Whose sessions are tried with other options too.
VARIED = "minilm"

_Make = Callable[[torch.nn.Module, tuple[Any, ...], Path], Run]


def _openvino(module: torch.nn.Module, args: tuple[Any, ...], plan: Path) -> Run:
    """OpenVINO with a stream per CPU, and a request per caller."""
    streams = {"NUM_STREAMS": CPUS, "INFERENCE_NUM_THREADS": CPUS}
    compiled = compile_openvino(module, args, streams)
    feed = [a.numpy() for a in args]
    mine = threading.local()

    def run() -> np.ndarray:
        if not hasattr(mine, "request"):
            mine.request = compiled.create_infer_request()
        result: np.ndarray = mine.request.infer(feed, share_inputs=True, share_outputs=True)[0]
        return result

    return run


def _taper(
    module: torch.nn.Module, args: tuple[Any, ...], plan: Path, *, parallel: bool, native: bool
) -> Run:
    """Taper with two nodes at once, or with numpy in place of its kernels."""
    options = taper_runtime.SessionOptions()
    options.intra_op_num_threads = 1
    if parallel:
        options.execution_mode, options.inter_op_num_threads = "parallel", 2
    providers = ["NativeCPU", "Numpy"] if native else ["Numpy"]
    session = taper_runtime.InferenceSession(plan, options, providers)
    feed = dict(session.plan.samples)
    return lambda: session.run(None, feed)[0]


ENGINES: dict[str, _Make] = {
    "taper": partial(taper, threads=1),
    "ONNX Runtime": partial(onnxruntime, threads=1),
    "OpenVINO": _openvino,
}
VARIANTS: dict[str, _Make] = {
    "taper": ENGINES["taper"],
    "two nodes at once": partial(_taper, parallel=True, native=True),
    "numpy alone": partial(_taper, parallel=False, native=False),
}


class Server:
    """An engine with a model, to be called from threads; see :class:`tools.peers.turns.Apart`."""

    def __init__(self, make: _Make, row: Row, plan: Path) -> None:
        torch.set_num_threads(1)
        try:
            module, args = SETS[row.family][row.model]()
            with torch.no_grad():
                self._run = make(module, args, plan)
                self.output = self._run().copy()
        except Exception as error:  # whatever an engine raises is its refusal
            raise Refused(f"{type(error).__name__}: {error}") from error

    def load(self, callers: int, requests: int) -> Load:
        """Have threads call, after some calls that are not counted."""
        call_from(callers, self._run, callers)
        return call_from(callers, self._run, requests)


class Figures(NamedTuple):
    """Medians of the rounds: requests per second, and percentiles of latency in seconds."""

    throughput: float
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, loads: list[Load]) -> Figures:
        """Those of some rounds."""
        rounds = [
            (len(latencies) / seconds, *np.percentile(latencies, [50, 95, 99]))
            for seconds, latencies in loads
        ]
        return cls(*(statistics.median(column) for column in zip(*rounds, strict=True)))


def serve(engines: dict[str, _Make], row: Row, rounds: int) -> dict[tuple[int, str], Figures]:
    """The figures of each engine at each number of callers."""
    with tempfile.TemporaryDirectory() as directory:
        servers = _servers(engines, row, Path(directory, "model.taper"))
        loads: dict[tuple[int, str], list[Load]] = {}
        try:
            for _ in range(rounds):
                for callers in CALLERS:
                    for name, server in servers.items():
                        server.begin("load", callers, row.requests // rounds)
                        loads.setdefault((callers, name), []).append(server.end())
        finally:
            for server in servers.values():
                server.close()
    return {key: Figures.of(each) for key, each in loads.items()}


def two_processes(row: Row) -> tuple[list[float], list[float]]:
    """Seconds per request of two callers of one process, and of two processes, in turns."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "model.taper")
        pair = [_servers({"taper": ENGINES["taper"]}, row, path)["taper"] for _ in range(2)]
        together, apart = [], []
        try:
            for turn in range(_TURNS):
                server = pair[turn % 2]
                server.begin("load", 2, 2 * _EACH)
                together.append(server.end().seconds / (2 * _EACH))
                for server in pair:
                    server.begin("load", 1, _EACH)
                rates = [_EACH / server.end().seconds for server in pair]
                apart.append(1 / sum(rates))
        finally:
            for server in pair:
                server.close()
    return together, apart


def _servers(engines: dict[str, _Make], row: Row, path: Path) -> dict[str, Apart]:
    """A process of each engine that takes the model and gives Taper's result, or nearly."""
    if not path.exists():
        module, args = SETS[row.family][row.model]()
        taper_frontend.export(module, args, verify=False).save(path)
    servers: dict[str, Apart] = {}
    for name, make in engines.items():
        try:
            servers[name] = Apart(Server, make, row, path)
        except Refused as refusal:
            print(f"{row.model}: {name} refuses: {refusal}")
            continue
        want = servers["taper"].output
        error = np.linalg.norm(servers[name].output - want) / np.linalg.norm(want)
        if not error <= TOLERANCE:
            servers.pop(name).close()
            print(f"{row.model}: {name} is wrong: relative difference {error:.1e}")
    return servers


def table(engines: dict[str, _Make], row: Row, found: dict[tuple[int, str], Figures]) -> str:
    """Markdown; the last columns are Taper's over the best other's, above 1 where it is better."""
    lines = [
        f"| {row.model}, callers | {' | '.join(engines)} | throughput, ratio | p95, ratio |",
        "| --- " * (len(engines) + 3) + "|",
    ]
    for callers in CALLERS:
        mine = {name: found[callers, name] for name in engines if (callers, name) in found}
        cells = [
            f"{f.throughput:.0f}/s; {' / '.join(f'{1e3 * t:.2f}' for t in f[1:])}"
            for f in mine.values()
        ]
        ours, *others = mine.values()
        faster = ours.throughput / max((f.throughput for f in others), default=np.nan)
        sooner = min((f.p95 for f in others), default=np.nan) / ours.p95
        lines.append(f"| {callers} | {' | '.join(cells)} | {faster:.2f} | {sooner:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--quick", action="store_true", help="a glance: print, write nothing")
    options = parser.parse_args()
    rounds = 3 if options.quick else ROUNDS
    engines = {name: ENGINES[name] for name in ENGINES if name in {"taper", *options.engines}}
    setting = describe_setting(command_line("serving"), "onnxruntime", "openvino")
    print(setting, flush=True)
    parts = [setting]

    def add(text: str) -> None:
        print(f"\n{text}", flush=True)
        parts.append(text)

    for name in options.models:
        row = ROWS[name]
        if options.quick:
            row = row._replace(requests=row.requests // 7)
        add(table(engines, row, serve(engines, row, rounds)))
        if name == VARIED:
            few = row._replace(requests=row.requests // 4)
            add(table(VARIANTS, few, serve(VARIANTS, few, rounds)))
            together, apart = two_processes(row)
            middle, low, high = paired_ratios(together, apart)
            add(
                f"{row.model}: two callers of one process {1 / statistics.median(together):.0f}/s, "
                f"two processes of one caller {1 / statistics.median(apart):.0f}/s; ratios of "
                f"{_TURNS} turns {middle:.3f} ({low:.3f} to {high:.3f})."
            )
    if not options.quick:
        page = PAGE.with_name("serving.md")
        write_section("serving", "Many callers", "\n\n".join(parts), page)


if __name__ == "__main__":
    main()
