"""Measure what `taper tune` gains: docs/results/tune.md; `--quick` only prints.

Each model is exported twice, tuned for a while, and exported again by the database: within the same
bits, and with others allowed. The tuned session and the one with defaults then run in turns, on one
thread or as many as `--threads` says. Where there are forms of convolutions, the session with other
bits also runs beside a plan whose forms were chosen as commit a2ddc4c1 did. Times are those of the
CPU on one thread. A model takes about two `--budget` and three `--seconds` besides its exports.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

import classifiers
import taper_frontend
from taper_runtime.session.inference_session import InferenceSession
from taper_runtime.session.options import SessionOptions
from tools.peers.budgets import unet
from tools.peers.cases import SETS
from tools.peers.old_forms import old_forms
from tools.peers.page import ROOT, command_line, describe_setting, write_section
from tools.peers.turns import Timed, paired_ratios, take_turns

if TYPE_CHECKING:
    from taper_runtime.plan.plan import Plan

PAGE = ROOT / "docs" / "results" / "tune.md"

#: The models of the comparison with peers, and how many a quick run takes.
FAMILIES, QUICK = ("mlp", "block", "minilm", "gpt2", "vision"), 2

#: Further models with convolutions that have several forms.
CONVOLUTIONS = {
    "ResNet-18 1x224": partial(classifiers.resnet18, 1),
    "U-Net 1x256": unet,
    "HGNetV2 1x224": partial(classifiers.other, "HGNetV2", 1),
    "MobileViT 1x256": partial(classifiers.other, "MobileViT", 1),
}


class Gain(NamedTuple):
    """What tuning gained for one model: median and 95% interval of the ratios of times."""

    median: float
    low: float
    high: float
    changed: int
    formats: int
    splits: int


def session_of(plan: Plan, threads: int, **fields: Any) -> InferenceSession:
    """Open a plan."""
    options = SessionOptions()
    options.intra_op_num_threads = threads
    for name, value in fields.items():
        setattr(options, name, value)
    return InferenceSession(plan, options)


def tune(plan: Path, database: Path, budget: float, threads: int, *, other_bits: bool) -> str:
    """Run `taper tune`; return how many nodes and chains it measured of those with a choice."""
    command = [
        *(sys.executable, "-m", "taper_runtime.cli", "tune", str(plan), "--db", str(database)),
        *("--budget", f"{budget}s", "--threads", str(threads), "--json"),
        *(["--other-bits"] if other_bits else []),
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    data = json.loads(done.stdout)
    left = sum(map(len, data["left"]))
    return f"{data['nodes'] - left} of {data['nodes']}"


def gain(
    default: Plan, tuned: Plan, database: Path, threads: int, seconds: float, *, other_bits: bool
) -> Gain:
    """Run a tuned plan and its default in turns."""
    choice = "measured" if other_bits else "first"
    after = session_of(tuned, threads, tuned=database, kernel_choice=choice)
    before = session_of(default, threads)
    feeds = dict(default.samples)
    if not other_bits:
        results = [session.run(None, feeds) for session in (before, after)]
        for got, want in zip(*results, strict=True):
            assert got.tobytes() == want.tobytes()
    clock = time.thread_time if threads == 1 else time.perf_counter
    runners = {
        "default": Timed(lambda: before.run(None, feeds), clock),
        "tuned": Timed(lambda: after.run(None, feeds), clock),
    }
    times = take_turns(runners, seconds, 21)
    nodes = after.stats().tuned
    assert nodes is not None
    shared = default.tensors.keys() & tuned.tensors.keys()
    formats = sum(default.tensors[n].format != tuned.tensors[n].format for n in shared)
    splits = tuned.metadata["tuned"]["splits"]
    others = sum(way != "parts for the cache" for way in splits.values())
    ratios = paired_ratios(times["tuned"], times["default"])
    return Gain(*ratios, len(nodes.changed), formats, others)


def row(name: str, case: Any, args: argparse.Namespace) -> tuple[str, list[Gain]]:
    """Tune one model; return its row in the table, and what was gained.

    These are the gains within the same bits, with others allowed, and, if the model has forms of
    convolutions, with others allowed beside the forms of a2ddc4c1.
    """
    torch.manual_seed(0)
    module, example = case()
    module.eval()
    gains = []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", taper_frontend.ExportWarning)
        path, database = Path(folder, "m.taper"), Path(folder, "times")
        default = taper_frontend.export(module, example, verify=False)
        taper_frontend.export(module, example, verify=False, packing="at_open").save(path)
        for other_bits in (False, True):
            tuned_nodes = tune(path, database, args.budget, args.threads, other_bits=other_bits)
            tuned = taper_frontend.export(
                module, example, verify=False, tuned=database, other_bits=other_bits
            )
            gains.append(
                gain(default, tuned, database, args.threads, args.seconds, other_bits=other_bits)
            )
        if any(each["about"] == "form" for each in default.metadata["decisions"]):
            with old_forms():
                old = taper_frontend.export(module, example, verify=False)
            gains.append(gain(old, tuned, database, args.threads, args.seconds, other_bits=True))
    cells = [
        f"{each.median:.3f} ({each.low:.3f} to {each.high:.3f}) | "
        f"{each.changed}, {each.formats}, {each.splits}"
        for each in gains
    ]
    cells += ["- | -"] * (3 - len(cells))
    return f"| {name} | {tuned_nodes} | {' | '.join(cells)} |", gains


def mean(values: list[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def main() -> None:
    """Measure all models, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", help="models whose names have one of these texts")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["TAPER_NUM_THREADS"] = str(args.threads)  # of exports, too
    cases = [pair for family in FAMILIES for pair in SETS.get(family, {}).items()]
    cases += CONVOLUTIONS.items()
    if args.only:
        cases = [(name, case) for name, case in cases if any(each in name for each in args.only)]
    if args.quick:
        args.budget, args.seconds, cases = min(args.budget, 4.0), 2.0, cases[:QUICK]
    rows, found = [], []
    for name, case in cases:
        line, gains = row(name, case, args)
        print(line, flush=True)
        rows.append(line)
        found.append(gains)
    same, other, old = ([each[i] for each in found if len(each) > i] for i in range(3))
    slower = [
        name
        for (name, _), each in zip(cases, found, strict=True)
        if min(g.high for g in each[:2]) < 0.98
    ]
    head = (
        "| model | nodes and chains tuned | same bits | kernels, formats, splits changed "
        "| other bits allowed | kernels, formats, splits changed "
        "| other bits allowed, beside the forms of a2ddc4c1 | kernels, formats, splits changed |"
    )
    summary = (
        f"Geometric mean: {mean([g.median for g in same]):.3f} within the same bits, "
        f"{mean([g.median for g in other]):.3f} with others allowed"
        + (f", {mean([g.median for g in old]):.3f} beside the forms of a2ddc4c1" if old else "")
        + ". Slower than the defaults "
        f"(an interval wholly below 0.98): {', '.join(slower) or 'none'}."
    )
    setting = describe_setting(command_line("tuned"))
    text = "\n".join([setting, "", head, f"{'| --- ' * 8}|", *rows, "", summary])
    if args.quick:
        print(text)
    else:
        write_section("tuned", f"On {args.threads} thread", text, PAGE)


if __name__ == "__main__":
    main()
