"""Time every op beside torch, on one thread: docs/results/ops.md.

`--only "SCATTER|GATHER"` times some, `--below 1` prints those alone that are slower at some size,
`--minutes 2` is the CPU time that all turns together take, and `--write docs/results/ops.md` writes
the page. The cases, and the reasons why some may be slow, are in tools/peers/op_cases. A slow case
without a reason, and a reason that no slow case has, are named at the end.
"""

from __future__ import annotations

import argparse
import re
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

import taper_frontend
import taper_runtime
from taper_runtime.base.progress import progress
from tools.peers.op_cases import cases
from tools.peers.op_cases.reasons import NOT_TIMED, REASONS
from tools.peers.page import command_line, describe_setting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taper_runtime import Plan
    from tools.peers.op_cases.case import Case

SECONDS = 3e-4  # of a turn: enough for the clock
AT_LEAST = 3  # runs of a turn: the first one finds the caches full of the other's arrays
LEAST = 0.8  # of torch's time over ours, below which a case needs a reason
LEAST_SECONDS = 0.01  # of the turns of a size
CALL = 2e-6  # seconds that a run may take more than a call of torch, whatever it computes

PAGE = """# Speed of each op

This page compares the speed of single ops with that of torch, on one thread. Each number is torch's
time divided by Taper's: above 1, Taper is faster. Both compute from plain arrays in memory and
allocate their results. A time is the least CPU time of many turns, which the two take in
alternation. A size that is slow is measured three times, each time with arrays of its own, and the
median counts: the speed of copies depends on where a process has its pages.

`*` marks a plan that numpy computes in part. A row without an op is a call that plans compute by
several. A case below {least} has a reason beside it{unexplained}; `a call` says that a run takes
at most two microseconds more than a call of torch, whatever it computes.

{setting}

| op | call | sizes | torch over Taper | reason |
| --- | --- | --- | --- | --- |
{rows}

These ops have no case:

| op | why |
| --- | --- |
{others}
"""


class Called(nn.Module):
    """Calls a function of some tensors."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Return what the function returns."""
        return self._function(*inputs)


def least_times(runs: Sequence[Callable[[], Any]], seconds: float) -> list[float]:
    """Return the least CPU time of each function, in seconds; the functions take turns.

    Each turn begins with another function, and runs each several times: what runs after one that
    fills the cache is slower.

    Parameters
    ----------
    runs : sequence of callable
    seconds : float
        CPU time for all turns together.
    """
    counts = []
    for run in runs:
        run()
        begin = time.thread_time()
        run()
        counts.append(max(1, round(SECONDS / max(time.thread_time() - begin, 1e-7))))
    best = [float("inf")] * len(counts)
    end, turns = time.thread_time() + seconds, 0
    while turns < 5 or time.thread_time() < end:
        for place in range(len(runs)):
            i = (turns + place) % len(runs)
            run, count = runs[i], counts[i]
            for _ in range(AT_LEAST if count < AT_LEAST else 1):
                begin = time.thread_time()
                for _ in range(count):
                    run()
                best[i] = min(best[i], (time.thread_time() - begin) / count)
        turns += 1
    return best


def ops_of(plan: Plan) -> set[str]:
    """Return the ops of a plan's nodes and of their tile programs."""
    ops = {node.op for node in plan.nodes}
    for node in plan.nodes:
        ops |= {code.partition(":")[0] for code in node.attrs.get("code", ())}
    return ops


class Timing(NamedTuple):
    """The least times of a run of ours and a call of torch, in seconds."""

    ours: float
    theirs: float
    by_numpy: bool

    @property
    def ratio(self) -> float:
        """Return torch's time over ours."""
        return self.theirs / self.ours

    @property
    def is_slow(self) -> bool:
        """Return whether the op itself is slower than torch's."""
        return self.ratio < LEAST and self.ours - self.theirs > CALL


def measure(case: Case, size: tuple[int, ...], seconds: float, kept: list[torch.Tensor]) -> Timing:
    """Return the times of a case, and whether numpy computes a part of the plan.

    It adds the inputs to ``kept``.

    Raises
    ------
    ValueError
        If the plan does not have the case's op.
    """
    torch.manual_seed(0)
    function, inputs = case.make(*size)
    kept += inputs
    module = function if isinstance(function, nn.Module) else Called(function)
    plan = taper_frontend.export(module.eval(), inputs, verify=False)
    if case.op and case.op not in ops_of(plan):
        raise ValueError(f"{case.op} {case.call}: expected the op, got {sorted(ops_of(plan))}")
    options = taper_runtime.SessionOptions()
    options.intra_op_num_threads = 1
    options.bfloat16 = "bits"  # as torch's result is; numpy's floats would be another conversion
    session = taper_runtime.InferenceSession(plan, options)
    feeds = dict(plan.samples)
    with torch.inference_mode():
        runs = (lambda: session.run(None, feeds), lambda: function(*inputs))
        ours, theirs = least_times(runs, seconds)
    return Timing(ours, theirs, bool(plan.metadata["fallbacks"]))


def judge(case: Case, size: tuple[int, ...], seconds: float) -> Timing:
    """Measure a case; where it is slow three times, and return the times of the median ratio.

    Each time has arrays of its own, which are kept: how fast some copies are depends on the pages
    where a process happens to have its arrays.
    """
    kept: list[torch.Tensor] = []
    found = [measure(case, size, seconds, kept)]
    if found[0].is_slow:
        found += [measure(case, size, seconds, kept) for _ in range(2)]
    return sorted(found, key=lambda timing: timing.ratio)[len(found) // 2]


def pattern_for(case: Case) -> str | None:
    """Return the first pattern of REASONS that fits a case; None if none does."""
    name = f"{case.op} {case.call}"
    return next((pattern for pattern in REASONS if re.search(pattern, name)), None)


def reason_for(case: Case) -> str:
    """Return why a case may be slower than torch; empty if it may not."""
    pattern = pattern_for(case)
    return REASONS[pattern] if pattern else ""


def stale_reasons(slow: Sequence[Case], timed: Sequence[Case]) -> list[str]:
    """Return the patterns that fit cases which were timed, none of which is slow."""
    used = {pattern_for(case) for case in slow}
    return [p for p in REASONS if p not in used and p in {pattern_for(case) for case in timed}]


def row_of(case: Case, timings: Sequence[Timing]) -> str:
    """Return a case's row of the page."""
    sizes = ", ".join("x".join(map(str, size)) for size in case.sizes)
    ratios = " ".join(f"{t.ratio:.2f}{'*' * t.by_numpy}" for t in timings)
    slow = any(t.is_slow for t in timings)
    reason = reason_for(case) if slow else "a call" * any(t.ratio < LEAST for t in timings)
    return f"| {case.op} | {case.call} | {sizes} | {ratios} | {reason} |"


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a regular expression of op and call")
    parser.add_argument("--minutes", type=float, default=4, help="of CPU time, of all turns")
    parser.add_argument("--below", type=float, help="print cases below this ratio alone")
    parser.add_argument("--write", type=Path, help="the page to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # exports name the nodes that numpy computes
    rows, unexplained, slow = [], [], []
    chosen = [case for case in cases() if re.search(options.only, f"{case.op} {case.call}")]
    seconds = 60 * options.minutes / max(1, sum(len(case.sizes) for case in chosen))
    seconds = max(LEAST_SECONDS, seconds)
    with progress("ops", len(chosen)) as advance:
        for case in chosen:
            timings = [judge(case, size, seconds) for size in case.sizes]
            rows.append(row_of(case, timings))
            if any(t.is_slow for t in timings):
                slow.append(case)
                if not reason_for(case):
                    unexplained.append(f"{case.op} {case.call}".strip())
            least = min(t.ratio for t in timings)
            if not options.write and (options.below is None or least < options.below):
                print(rows[-1], flush=True)
            advance()
    if unexplained:
        print(f"below {LEAST} without a reason: {'; '.join(unexplained)}")
    if stale := stale_reasons(slow, chosen):
        print(f"reasons that no slow case has: {'; '.join(stale)}")
    if options.write:
        others = "\n".join(f"| {op} | {why} |" for op, why in NOT_TIMED.items())
        setting = describe_setting(command_line("ops"))
        missing = f", but for {len(unexplained)}" if unexplained else ""
        page = PAGE.format(
            least=LEAST, unexplained=missing, setting=setting, rows="\n".join(rows), others=others
        )
        options.write.write_text(page)


if __name__ == "__main__":
    main()
