"""Time replaceable weights beside fixed ones; `--quick` only prints.

Each model is exported with fixed and with replaceable weights. The files are opened, and run on
one thread, in turns in one process; what counts is the thread's time on the CPU. The table goes to
docs/results/benchmarks.md; a quick run prints it and writes nothing.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

import taper_frontend
from classifiers import resnet18
from taper_runtime import InferenceSession, SessionOptions
from tools.peers.cases import SETS
from tools.peers.page import command_line, describe_setting, write_section
from tools.peers.turns import Timed, paired_ratios, take_turns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tools.peers.engines import Run

#: Name of each row -> a function that makes the module and its arguments.
ROWS = {
    "MLP 1x512": SETS["mlp"]["MLP 1x512"],
    "MobileNetV2 1x224": SETS["vision"]["MobileNetV2 1x224"],
    "ResNet-18 1x224": partial(resnet18, 1),
    "MiniLM 1x16": SETS["minilm"]["MiniLM 1x16"],
}

#: Name of each file -> what the table says of it.
KINDS = {
    "fixed": "fixed",
    "replaceable": "replaceable",
    "unfolded": "replaceable, saved with `folded=False`",
}


def save_all(module: torch.nn.Module, args: tuple[torch.Tensor, ...], folder: Path) -> list[Path]:
    """Write the file of each kind."""
    plans = [
        taper_frontend.export(module, args, weights=weights, verify=False)
        for weights in ("fixed", "replaceable")
    ]
    files = [folder / f"{kind}.taper" for kind in KINDS]
    plans[0].save(files[0])
    plans[1].save(files[1])
    plans[1].save(files[2], folded=False)
    return files


def session(path: Path) -> InferenceSession:
    """Open a file on one thread; what it leaves out is computed from its weights."""
    options = SessionOptions()
    options.intra_op_num_threads = 1
    options.runtime_const_folding = path.stem == "unfolded"
    return InferenceSession(path, options)


def rows(model: str, seconds: float) -> list[str]:
    """The rows of one model."""
    module, args = ROWS[model]()
    with tempfile.TemporaryDirectory() as folder:
        files = save_all(module, args, Path(folder))
        sessions = [session(path) for path in files]
        feed = dict(zip(sessions[0].plan.inputs, (a.numpy() for a in args), strict=True))
        results = [each.run(None, feed)[0] for each in sessions]
        for result in results[1:]:
            np.testing.assert_allclose(result, results[0], rtol=1e-4, atol=1e-4)
        opening = _turns([partial(session, path) for path in files], seconds)
        running = _turns([partial(each.run, None, feed) for each in sessions], seconds)
        sizes = [path.stat().st_size for path in files]
    nodes = [len(each.plan.nodes) for each in sessions]
    return [
        f"| {model} | {KINDS[kind]} | {sizes[i] / 1e6:.2f} | {sizes[i] / sizes[0]:.2f} "
        f"| {nodes[i]} | {_times(opening, kind)} | {_times(running, kind)} |"
        for i, kind in enumerate(KINDS)
    ]


def _turns(runs: Sequence[Run], seconds: float) -> dict[str, list[float]]:
    """Times of each kind on the CPU, which others of the machine use too."""
    timed = [Timed(run, time.thread_time) for run in runs]
    return take_turns(dict(zip(KINDS, timed, strict=True)), seconds)


def _times(times: dict[str, list[float]], kind: str) -> str:
    """The median time in ms, and the ratio to that of fixed weights with its interval."""
    time_ms = f"{1e3 * statistics.median(times[kind]):.3g}"
    if kind == "fixed":
        return f"{time_ms} | 1"
    median, low, high = paired_ratios(times["fixed"], times[kind])
    return f"{time_ms} | {median:.2f} ({low:.2f} to {high:.2f})"


def main() -> None:
    """Measure every row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a glance: print, write nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    setting = describe_setting(command_line("weights"))
    table = ["| model | weights | file, MB | ratio | nodes | open, ms | ratio | run, ms | ratio |"]
    table.append("| --- " * 9 + "|")
    print(setting, "", *table, sep="\n", flush=True)
    for model in ROWS:
        found = rows(model, 0.5 if options.quick else 15.0)
        print(*found, sep="\n", flush=True)
        table += found
    if not options.quick:
        write_section("weights", "Weights that can be replaced", "\n".join([setting, "", *table]))


if __name__ == "__main__":
    main()
