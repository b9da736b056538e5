"""Measure what `taper tune` gains: docs/results/tune.md; `--quick` only prints.

Each model is exported twice, tuned for a while, and exported again by the database: within the same
bits, and with others allowed. The tuned session and the one with defaults then run in turns, on one
thread or as many as `--threads` says, unless both run the same kernels on the same plan. If commit
a2ddc4c1 chose other forms of convolutions, the session with other bits also runs beside a plan with
these. Times are those of the CPU on one thread. A model takes about one `--budget` and at most
three `--seconds` besides its exports.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
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
from tools.peers.packing import Detector
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
    "Bit 1x224": partial(classifiers.other, "Bit", 1),
    "CRAFT's form 1x128": lambda: (Detector(), (torch.zeros(1, 3, 128, 128),)),
}


#: What the passes that pack a weight add to its name.
_PACKED = re.compile(r"(\.tiles\d|\.packed)+$")


class Gain(NamedTuple):
    """What tuning gained for one model: median and 95% interval of the ratios of times.

    They are 1 where the same kernels run on the same plan. ``changed``, ``formats`` and ``splits``
    count what differs from the plan beside which it ran.
    """

    median: float
    low: float
    high: float
    changed: int
    formats: int
    splits: int

    def __str__(self) -> str:
        """Return two cells of the table."""
        changes = f"{self.changed}, {self.formats}, {self.splits}"
        if self.low == self.high:
            return f"the same plan | {changes}"
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f}) | {changes}"


def session_of(plan: Plan, threads: int, **fields: Any) -> InferenceSession:
    """Open a plan."""
    options = SessionOptions()
    options.intra_op_num_threads = threads
    for name, value in fields.items():
        setattr(options, name, value)
    return InferenceSession(plan, options)


def tune(plan: Path, database: Path, budget: float, threads: int) -> str:
    """Run `taper tune`; return how many nodes and chains it measured of those with a choice.

    With other bits, since choices within the same bits are made by the same times.
    """
    command = [
        *(sys.executable, "-m", "taper_runtime.cli", "tune", str(plan), "--db", str(database)),
        *("--budget", f"{budget}s", "--threads", str(threads), "--json", "--other-bits"),
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    data = json.loads(done.stdout)
    left = sum(map(len, data["left"]))
    return f"{data['nodes'] - left} of {data['nodes']}"


def formats_of(plan: Plan) -> dict[str, str]:
    """Return the format of each weight, by its name before it was packed."""
    specs = plan.tensors.values()
    return {re.sub(_PACKED, "", s.name): s.format for s in specs if s.role == "constant"}


def gain(
    default: Plan, tuned: Plan, database: Path, threads: int, seconds: float, *, other_bits: bool
) -> Gain:
    """Run a tuned plan and its default in turns, if they differ."""
    choice = "measured" if other_bits else "first"
    after = session_of(tuned, threads, tuned=database, kernel_choice=choice)
    before = session_of(default, threads)
    nodes = after.stats().tuned
    assert nodes is not None
    formats, tuned_formats = map(formats_of, (default, tuned))
    shared = formats.keys() & tuned_formats.keys()
    different = sum(formats[name] != tuned_formats[name] for name in shared)
    splits = tuned.metadata["tuned"]["splits"]
    others = sum(way != "parts for the cache" for way in splits.values())
    changes = len(nodes.changed), different, others
    if not nodes.changed and tuned.fingerprint() == default.fingerprint():
        return Gain(1.0, 1.0, 1.0, *changes)
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
    return Gain(*paired_ratios(times["tuned"], times["default"]), *changes)


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
        tuned_nodes = tune(path, database, args.budget, args.threads)
        for other_bits in (False, True):
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
    cells = [*map(str, gains), *["- | -"] * (3 - len(gains))]
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
    same, other, old = ([each[i].median for each in found if len(each) > i] for i in range(3))
    differ = [each[2].median for each in found if len(each) > 2 and each[2].formats]
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
    beside = f", {mean(old):.3f} beside the forms of a2ddc4c1" if old else ""
    if differ:
        beside += f", {mean(differ):.3f} over the {len(differ)} models in which these differ"
    summary = (
        f"Geometric mean: {mean(same):.3f} within the same bits, {mean(other):.3f} with others "
        f"allowed{beside}. Slower than the defaults (an interval wholly below 0.98): "
        f"{', '.join(slower) or 'none'}."
    )
    setting = describe_setting(command_line("tuned"))
    text = "\n".join([setting, "", head, f"{'| --- ' * 8}|", *rows, "", summary])
    if args.quick:
        print(text)
    else:
        write_section("tuned", f"On {args.threads} thread", text, PAGE)


if __name__ == "__main__":
    main()
