"""Measure plans within memory budgets: docs/results/memory-budget.md; `--quick` only prints.

Each model is exported without a budget, and with 80, 60 and 40% of the arena that this takes. Both
plans run on one thread in turns, for `--seconds` a row, and their results are compared. Times are
those of the CPU. `--only` takes models whose names have one of some texts.
"""

from __future__ import annotations

import argparse
import time
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

import classifiers
import taper_frontend
from models import block, gpt2
from taper_runtime.executor.memory_use import memory_use
from taper_runtime.session.inference_session import InferenceSession
from taper_runtime.session.options import SessionOptions
from tools.peers.page import ROOT, command_line, describe_setting, write_section
from tools.peers.turns import Timed, paired_ratios, take_turns
from vision_models import UNet

if TYPE_CHECKING:
    from collections.abc import Callable

    from taper_runtime.plan.plan import Plan

PAGE = ROOT / "docs" / "results" / "memory-budget.md"

SHARES = (0.8, 0.6, 0.4)


def unet() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    """Return a U-Net of three levels, and an image of 256 x 256."""
    return UNet(), (torch.randn(1, 3, 256, 256),)


MODELS: dict[str, Callable[[], tuple[torch.nn.Module, tuple[Any, ...]]]] = {
    "block 4x128x256": partial(block, 4, 128, 256),
    "GPT-2 1x64": partial(gpt2, 1, 64),
    "ResNet-50 1x224": partial(classifiers.resnet50, 1),
    "U-Net 1x256": unet,
}


class Exported(NamedTuple):
    """A plan, and the CPU seconds of its export."""

    plan: Plan
    seconds: float


def export(model: torch.nn.Module, args: tuple[Any, ...], budget: int | None = None) -> Exported:
    """Export a model, without comparing it."""
    begin = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", taper_frontend.ExportWarning)
        plan = taper_frontend.export(model, args, verify=False, memory_budget=budget)
    return Exported(plan, time.process_time() - begin)


def session_of(plan: Plan) -> InferenceSession:
    """Open a plan on one thread."""
    options = SessionOptions()
    options.intra_op_num_threads = 1
    return InferenceSession(plan, options)


def ratio(plan: Plan, natural: Plan, seconds: float) -> str:
    """Return the time of a plan over that of another: the median of turns, and its interval."""
    sessions = session_of(plan), session_of(natural)
    feeds = dict(natural.samples)
    results = [session.run(None, feeds) for session in sessions]
    for got, want in zip(*results, strict=True):
        assert got.tobytes() == want.tobytes()
    runners = {
        name: Timed(partial(session.run, None, feeds), time.thread_time)
        for name, session in zip(("budget", "natural"), sessions, strict=True)
    }
    times = take_turns(runners, seconds)
    median, low, high = paired_ratios(times["natural"], times["budget"])
    return f"{median:.2f} ({low:.2f} to {high:.2f})"


def rows(name: str, seconds: float) -> list[str]:
    """Return the rows of a model in the table."""
    torch.manual_seed(0)
    model, args = MODELS[name]()
    export(model.eval(), args)  # torch loads what it needs
    natural, taken = export(model, args)
    bytes_ = memory_use(natural).arena
    found = [f"| {name} | 100% | {bytes_ / 1e6:.2f} MB | 100% | 1 | 1 | | {taken:.1f} s |"]
    for share in SHARES:
        plan, taken = export(model, args, int(share * bytes_))
        told = plan.metadata["memory"]
        achieved = memory_use(plan).arena
        session = session_of(plan)
        session.run(None, dict(plan.samples))
        assert told["natural"] == bytes_
        assert told["achieved"] == achieved == session.stats().layout.arena_bytes
        kinds: dict[str, list[int]] = {}
        for move in told["moves"]:
            kinds.setdefault(move["kind"], []).append(move["bytes"])
        moves = ", ".join(f"{kind} {sum(each) / 1e6:.2f}" for kind, each in kinds.items())
        found.append(
            f"| {name} | {share:.0%} | {achieved / 1e6:.2f} MB | {achieved / bytes_:.0%}"
            f"{'' if achieved <= told['budget'] else ', not met'} "
            f"| {told['ns'] / told['natural_ns']:.2f} | {ratio(plan, natural, seconds)} "
            f"| {moves} | {taken:.1f} s |"
        )
        print(found[-1], flush=True)
    return found


def main() -> None:
    """Measure all models, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", default=[""])
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    chosen = [name for name in MODELS if any(each in name for each in args.only)]
    table = [row for name in chosen for row in rows(name, 1.0 if args.quick else args.seconds)]
    text = "\n".join(
        [
            f"{describe_setting(command_line('budgets'))}",
            "",
            "| model | budget | arena | of natural | estimated | measured | MB saved | export |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
            *table,
        ]
    )
    if args.quick:
        print(text)
    else:
        write_section("budgets", "Budgets", text, PAGE)


if __name__ == "__main__":
    main()
