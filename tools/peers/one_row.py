"""Time products of one row beside the machine's bandwidth: `--write` fills the page.

A model is a chain of equal linear layers, whose weights are read once a run: from memory if the
chain is longer than the caches are large. docs/results/quantized-speed.md has the tables.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

import taper_frontend
import taper_runtime
from taper_runtime.reports.profile import profile_plan
from tools.peers.bandwidth import bandwidth
from tools.peers.page import ROOT, command_line, describe_setting, write_section
from tools.peers.turns import Timed, take_turns

if TYPE_CHECKING:
    from taper_runtime import Plan

PAGE = ROOT / "docs" / "results" / "quantized-speed.md"
HEADINGS = (
    *("weights", "activations", "MB a run", "mapped", "in 2 MiB pages"),
    *("of plain reads", "in L2"),
)
HEAD = f"| {' | '.join(HEADINGS)} |\n{'| --- ' * len(HEADINGS)}|\n"
LAYER = 4096  # rows and columns of a layer
#: The same where the weights stay in the second cache; twice as many where they have 8 bits.
IN_L2 = 512
BYTES = 200e6  # of weights that a run reads
SECONDS = 3.0  # of the turns of a row


class Scheme(NamedTuple):
    """How weights and activations are stored, and the bytes of a weight."""

    weights: str
    activations: str
    quantize: str | None
    nbytes: float


SCHEMES = (
    Scheme("int8", "int8", "int8_grouped", 1.03),
    Scheme("int4", "int8", "int4_grouped", 0.56),
    Scheme("int8", "float32", "int8", 1.0),
    Scheme("int4", "float32", "int4", 0.56),
    Scheme("bfloat16", "float32", "bfloat16", 2.0),
    Scheme("float32", "float32", None, 4.0),
)


def _plan_file(scheme: Scheme, size: int, layers: int, folder: Path) -> Path:
    torch.manual_seed(0)
    linears = [torch.nn.Linear(size, size, bias=False) for _ in range(layers)]
    plan = taper_frontend.export(
        torch.nn.Sequential(*linears).eval(),
        (torch.randn(1, size),),
        quantize=scheme.quantize,
        verify=False,
    )
    path = folder / "chain.taper"
    plan.save(path)
    return path


def _bytes(plan: Plan) -> int:
    return sum(array.nbytes for array in plan.constants.values())


def open_chain(path: Path, size: int, weights_memory: str) -> Timed:
    """Open a plan on one thread, to be timed by CPU time."""
    options = taper_runtime.SessionOptions()
    options.intra_op_num_threads = 1
    options.weights_memory = weights_memory
    session = taper_runtime.InferenceSession(path, options)
    feed = {session.get_inputs()[0].name: np.ones((1, size), np.float32)}
    return Timed(lambda: session.run(None, feed)[0], time.thread_time)


def in_cache(path: Path, size: int) -> float:
    """Return the bytes that the nodes of a small plan read in a nanosecond, the call left out."""
    plan = taper_runtime.load(path)
    (name,) = plan.inputs
    profile = profile_plan(plan, {name: np.ones((1, size), np.float32)}, runs=4000, threads=1)
    return _bytes(plan) / sum(profile.ns)


def row_of(scheme: Scheme, folder: Path) -> str:
    """Return the row of the table."""
    layers = max(2, int(BYTES / (LAYER * LAYER * scheme.nbytes)))
    path = _plan_file(scheme, LAYER, layers, folder)
    nbytes = _bytes(taper_runtime.load(path))
    chains = {memory: open_chain(path, LAYER, memory) for memory in ("mapped", "huge")}
    rate = bandwidth(1)
    times = take_turns(chains, SECONDS)
    rate = max(rate, bandwidth(1))
    mapped, huge = (nbytes / (1e9 * min(times[memory])) for memory in chains)
    size = 2 * IN_L2 if scheme.nbytes < 2 else IN_L2
    near = in_cache(_plan_file(scheme, size, 1, folder), size)
    cells = (
        scheme.weights,
        scheme.activations,
        f"{nbytes / 1e6:.0f}",
        f"{mapped:.1f} GB/s",
        f"{huge:.1f} GB/s",
        f"{mapped / rate:.2f}, {huge / rate:.2f} of {rate:.1f}",
        f"{near:.1f} GB/s",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table into the page")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for scheme in SCHEMES:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(row_of(scheme, Path(folder)))
        print(rows[-1], flush=True)
    if options.write:
        text = f"{describe_setting(command_line('one_row'))}\n\n{HEAD}" + "\n".join(rows)
        write_section("one_row", "Products of one row beside bandwidth", text, PAGE)


if __name__ == "__main__":
    main()
