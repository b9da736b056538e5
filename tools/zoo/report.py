"""Judge every architecture of the zoo; `--only audio GPT2LMHeadModel` prints some.

python -m tools.zoo.report [--only NAME ...] [--write PAGE]
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from taper_runtime.base.progress import progress
from tools.zoo import ALL_GROUPS
from tools.zoo.page import counts, page

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from tools.zoo.judge import Verdict

#: Seconds of a core that building, exporting and comparing an architecture may take.
LIMIT = 120


def judge_apart(group: str, name: str) -> Verdict:
    """Judge an architecture in a process of its own, which the system ends at the limit."""
    from tools.zoo.judge import EXPORT, Verdict

    context = get_context("forkserver")
    context.set_forkserver_preload(["taper_frontend", "transformers", "tools.zoo.judge"])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(group, name, theirs))
    process.start()
    theirs.close()
    try:
        answer: Verdict = ours.recv()
    except EOFError:  # it was ended, or crashed
        process.join()
        overtime = process.exitcode == -signal.SIGXCPU
        cause = f"takes more than {LIMIT} s" if overtime else f"ended with {process.exitcode}"
        return Verdict(EXPORT, cause)
    process.join()
    return answer


def _work(group: str, name: str, pipe: Connection) -> None:
    from tools.zoo.judge import judge

    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT + 5))
    # models warn, and torch prints the graphs that it refuses
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        verdict = judge(ALL_GROUPS[group][name])
    pipe.send(verdict)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [*ALL_GROUPS, *(name for members in ALL_GROUPS.values() for name in members)]
    every = {"choices": names, "metavar": "NAME", "help": "groups or architectures; else all"}
    parser.add_argument("--only", nargs="+", **every)
    parser.add_argument("--write", type=Path, help="the page to write")
    options = parser.parse_args()
    chosen = [
        (group, name)
        for group, members in ALL_GROUPS.items()
        for name in members
        if not options.only or group in options.only or name in options.only
    ]
    start = time.monotonic()
    verdicts: dict[str, dict[str, Verdict]] = {group: {} for group, _ in chosen}
    with (
        progress("models", len(chosen)) as advance,
        ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool,
    ):
        for (group, name), verdict in zip(
            chosen, pool.map(judge_apart, *zip(*chosen, strict=True)), strict=True
        ):
            verdicts[group][name] = verdict
            fallbacks = ", ".join(sorted(set(verdict.fallbacks)))
            line = f"{name:36} {verdict.verdict:12} {verdict.nodes:5} nodes {verdict.error:.1e}"
            print(line, verdict.cause or fallbacks, flush=True)
            advance()
    print()
    for row in counts(verdicts):
        print(" ".join(f"{cell:>16}" for cell in row))
    print(f"{time.monotonic() - start:.0f} s")
    if options.write:
        options.write.write_text(page(verdicts))


if __name__ == "__main__":
    main()
