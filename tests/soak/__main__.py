"""``python -m tests.soak``: 32 threads at several models for minutes; `nox -s soak`.

Ends with 1 where an answer was wrong, or memory grew.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT)]

from tests.soak.jobs import jobs  # noqa: E402
from tests.soak.measure import Soak, soak  # noqa: E402

RESULTS = ROOT / "docs" / "results"
PAGE, IMAGE = RESULTS / "soak.md", RESULTS / "images" / "soak.svg"

ABOUT = (
    "This page shows whether many threads that call several models for minutes get wrong answers, "
    "and whether memory grows. Each answer is compared."
)

#: Resident size of the last third of a soak over that of the second, at most.
_GROWTH = 1.05


def table(result: Soak) -> str:
    """Return how long the jobs took, as Markdown."""
    lines = ["| job | runs | p50, ms | p95, ms | p99, ms |", "| --- | ---: | ---: | ---: | ---: |"]
    for name, times in result.times.items():
        row = (f"{1e3 * times.percentile(share):.2f}" for share in (0.5, 0.95, 0.99))
        lines.append(f"| {name} | {sum(times.counts)} | {' | '.join(row)} |")
    return "\n".join(lines)


def verdict(result: Soak, threads: int) -> str:
    """Return what was found, in words."""
    last = result.samples[-1]
    return (
        f"{last.done} calls of {threads} threads in {last.seconds:.0f} s, {len(result.errors)} "
        f"wrong; resident size at the end {last.resident / 1e6:.0f} MB, largest of the last third "
        f"over that of the second {result.growth():.3f}."
    )


def plot(result: Soak) -> None:
    """Draw memory and calls over time."""
    from matplotlib import pyplot

    x = [sample.seconds for sample in result.samples]
    figure, memory = pyplot.subplots(figsize=(9, 3.6), layout="constrained")
    memory.plot(x, [sample.resident / 1e6 for sample in result.samples], color="tab:blue")
    memory.set_ylim(bottom=0)
    memory.set_xlabel("seconds")
    memory.set_ylabel("resident, MB (blue)")
    calls = memory.twinx()
    pairs = list(zip(result.samples, result.samples[1:], strict=False))
    rates = [(b.done - a.done) / (b.seconds - a.seconds) for a, b in pairs]
    calls.plot(x[1:], rates, color="tab:orange", linewidth=0.8)
    calls.set_ylim(bottom=0)
    calls.set_ylabel("calls per second (orange)")
    memory.grid(alpha=0.3)
    IMAGE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(IMAGE, metadata={"Date": None})


def main() -> int:
    """Soak, print, and with ``--write`` make the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--threads", type=int, default=32)
    parser.add_argument("--write", action="store_true", help="write docs/results/soak.md")
    parser.add_argument("--growth", type=float, default=_GROWTH, help="of memory, at most")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        result = soak(jobs(Path(folder)), 60 * options.minutes, options.threads)
    for error in result.errors:
        print(f"{type(error).__name__}: {error}")
    text = f"{verdict(result, options.threads)}\n\n{table(result)}"
    print(text)
    if options.write:
        command = f"nox -s soak -- --minutes {options.minutes:g} --threads {options.threads}"
        setting = f"`{command}`, {time.strftime('%Y-%m-%d')}, {platform.machine()}"
        plot(result)
        image = f"![memory and calls over time]({IMAGE.relative_to(RESULTS)})"
        PAGE.write_text(f"# Soak\n\n{ABOUT}\n\n{setting}: {text}\n\n{image}\n", encoding="utf-8")
    return 1 if result.errors or result.growth() > options.growth else 0


if __name__ == "__main__":
    sys.exit(main())
