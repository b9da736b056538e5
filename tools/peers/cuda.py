"""Measure the example delegate "cuda" beside the CPU; `--quick` only prints.

Each column is a session of its own, and they take turns. A run is timed as a whole, with its copies
to the device and back.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np

import cuda_delegate
import taper_runtime
from cuda_delegate.driver import open_device
from cuda_models import delegated, options
from graph_checks import Builder, floats
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.partition import register_backend
from taper_frontend.compiler.planning import make_plan
from tools.peers.page import ROOT, command_line, describe_setting, write_section

if TYPE_CHECKING:
    from collections.abc import Callable

    from taper_frontend.compiler.graph import Graph

PAGE = ROOT / "docs" / "results" / "cuda.md"

#: The rows of x, and the sizes of the layers.
CASES = {
    "one layer, 1 x 1024 x 1024": (1, (1024, 1024)),
    "one layer, 64 x 1024 x 1024": (64, (1024, 1024)),
    "one layer, 2048 x 2048 x 2048": (2048, (2048, 2048)),
    "six layers, 1 x 512 x 512": (1, (512,) * 7),
    "six layers, 64 x 1024 x 1024": (64, (1024,) * 7),
    "six layers, 1024 x 2048 x 2048": (1024, (2048,) * 7),
}


THREADS = len(os.sched_getaffinity(0))

COLUMNS = ("CPU", "steps, B copied", "replayed, B copied", "steps, B stays", "replayed, B stays")


class StepByStep(cuda_delegate.CudaDelegate):
    """Captures nothing."""

    replays = False


def layers(rows: int, widths: tuple[int, ...], is_given: bool) -> tuple[Graph, dict[str, Any]]:
    """Layers of ``relu(x @ w + bias)``, whose matrices are inputs or weights; and the inputs."""
    b, feed = Builder(), {"x": floats(rows, widths[0])}
    x = b.input("x", rows, widths[0])
    for number, (k, n) in enumerate(itertools.pairwise(widths)):
        name = f"w{number}"
        if is_given:
            w = b.input(name, k, n)
            feed[name] = floats(k, n, seed=number) * np.float32(k**-0.5)
        else:
            w = b.weight(k, n, seed=number, name=name)
        bias = b.weight(n, seed=9, name=f"b{number}")
        x = b.op("RELU", b.op("ADD", b.op("MATMUL", x, w), bias))
    return b.done(x), feed


def runs(rows: int, widths: tuple[int, ...]) -> list[Callable[[], Any]]:
    """The functions that the columns time."""
    found = []
    for is_given, delegate in (
        (False, None),
        (True, StepByStep),
        (True, cuda_delegate.CudaDelegate),
        (False, StepByStep),
        (False, cuda_delegate.CudaDelegate),
    ):
        graph, feed = layers(rows, widths, is_given)
        if delegate is None:
            compile_graph(graph)  # as an export for the CPU does
            plan = make_plan(graph)
        else:
            plan, _ = delegated(graph)
        chosen = options(delegate)
        chosen.intra_op_num_threads = THREADS
        session = taper_runtime.InferenceSession(plan, chosen)
        found.append(lambda session=session, feed=feed: session.run(None, feed)[0])
    return found


def row(name: str, rounds: int) -> str:
    """Measure one case, and check that all columns agree: a line of the table."""
    columns = runs(*CASES[name])
    wanted = columns[0]()
    scale = float(np.abs(wanted).max())
    for run in columns:
        for _ in range(3):
            np.testing.assert_allclose(run(), wanted, rtol=1e-5, atol=1e-5 * scale)
    times: list[list[float]] = [[] for _ in columns]
    for _ in range(rounds):
        for run, taken in zip(columns, times, strict=True):
            begin = time.perf_counter()
            run()
            taken.append(time.perf_counter() - begin)
    cells = [f"{statistics.median(taken) * 1e6:.0f}" for taken in times]
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Measure the cases, and write the page unless asked to be quick."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few rounds; print the table")
    quick = parser.parse_args().quick
    register_backend("cuda", cuda_delegate.compile_subgraph, cuda_delegate.CudaDelegate)
    lines = [
        f"{describe_setting(command_line('cuda_speed'))}, {THREADS} threads; {open_device().name}",
        "",
        f"| layers, rows x k x n | {' | '.join(COLUMNS)} |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in CASES:
        lines.append(row(name, 10 if quick else 50))
        print(lines[-1], flush=True)
    if quick:
        print("\n".join(lines))
    else:
        write_section("cuda", "Measured", "\n".join(lines), PAGE)


if __name__ == "__main__":
    main()
