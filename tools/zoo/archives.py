"""Compile the zoo's programs from PT2 archives where torch is not; `--only text` takes some.

Each program is decomposed by torch and saved. Then export, with torch, and a process that cannot
import torch make a plan of the file. Their files, without samples, must have the same bytes.

python -m tools.zoo.archives [--only NAME ...] [--least 50]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import taper_frontend
from tools.zoo import GROUPS
from tools.zoo.judge import summary

# What can become of a program. The last two are not held against the reader of archives.
SAME = "same bytes"
OTHER = "another plan"
REFUSED = "refused without torch"
EXPORT = "not exported with torch"
TORCH = "not saved by torch"
VERDICTS = (SAME, OTHER, REFUSED, EXPORT, TORCH)

_WITHOUT_TORCH = """
import sys, warnings
sys.modules["torch"] = None  # whoever imports it gets an ImportError
warnings.simplefilter("ignore")
import taper_frontend
for line in sys.stdin:
    source, target = line.split()
    try:
        taper_frontend.export(source).save(target)
        print("saved", flush=True)
    except Exception as error:
        print(type(error).__name__, " ".join(str(error).split()), flush=True)
"""


class Worker:
    """A process that exports archives and cannot import torch."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", _WITHOUT_TORCH]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def export(self, source: Path, target: Path) -> str:
        """Export an archive; return what is wrong, or nothing."""
        into, out = self._process.stdin, self._process.stdout
        assert into is not None
        assert out is not None
        print(source, target, file=into, flush=True)
        answer = out.readline().strip() or "the process ended"
        return "" if answer == "saved" else answer

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def compare(module: torch.nn.Module, inputs: dict[str, torch.Tensor], worker: Worker) -> list[str]:
    """Compare the plans of one program; return the verdict and its cause."""
    with TemporaryDirectory() as folder:
        archive, ours, theirs = (Path(folder, name) for name in ("m.pt2", "a.taper", "b.taper"))
        try:
            program = torch.export.export(module, (), inputs).run_decompositions()
            torch.export.save(program, archive)
        except Exception as error:  # torch may raise anything
            return [TORCH, summary(error)]
        try:
            plan = taper_frontend.export(archive, verify=False)
        except Exception as error:  # the verdict says what it was
            return [EXPORT, summary(error)]
        plan._replace(samples={}).save(theirs)
        if cause := worker.export(archive, ours):
            return [REFUSED, cause]
        return [SAME if ours.read_bytes() == theirs.read_bytes() else OTHER, ""]


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [*GROUPS, *(name for members in GROUPS.values() for name in members)]
    every = {"choices": names, "metavar": "NAME", "help": "groups or architectures; else all"}
    parser.add_argument("--only", nargs="+", **every)
    parser.add_argument("--least", type=int, default=50, help="fail with fewer of the same bytes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # models warn of their own configs
    found: Counter[str] = Counter()
    worker = Worker()
    for group, members in GROUPS.items():
        for name, architecture in members.items():
            if options.only and not {group, name} & set(options.only):
                continue
            verdict, cause = compare(*architecture.build(), worker)
            found[verdict] += 1
            print(f"{name:36} {verdict:24} {cause[:300]}", flush=True)
    worker.close()
    print("\n".join(f"{found[verdict]:5} {verdict}" for verdict in VERDICTS))
    if found[OTHER] or found[SAME] < options.least:
        sys.exit(f"expected {options.least} or more plans of the same bytes, and no others")


if __name__ == "__main__":
    main()
