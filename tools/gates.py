"""Print PyC's five promotion gates, each with its result: `nox -s gates`.

A gate is passed if all of its sessions were run and passed; one that was skipped, because a tool of
the system that it needs is missing, leaves it open. `--since REVISION` says which change gate 3
looks at. Gate 1 compiles the kernels for eight targets, which takes long the first time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROOT = Path(__file__).parents[1]


class Gate(NamedTuple):
    """A condition of PyC for promoting a capability, and the sessions that tell whether it holds.

    Attributes
    ----------
    text : str
    sessions : sequence of (str, ...)
        Each a session of the noxfile, then its arguments. A gate without any is about the change.
    """

    text: str
    sessions: Sequence[tuple[str, ...]]


GATES = (
    Gate(
        "1. the core builds and passes on each platform",
        (("kernels",), ("scalar",), ("aarch64",), ("cross",), ("dist",)),
    ),
    Gate(
        "2. deterministic tests pass",
        (
            ("whole_models", "tests/e2e/test_determinism.py"),
            (
                "tests_runtime",
                "tests/compiler/test_fingerprint.py",
                "tests/compiler/test_module.py",
            ),
        ),
    ),
    Gate("3. a change of behaviour has tests of its own", ()),
    Gate(
        "4. reasons of failures are explicit",
        (
            ("tests_frontend", "tests/frontend/test_lowering_refusals.py"),
            (
                "tests_runtime",
                "tests/runtime/test_delegate_fallbacks.py",
                "tests/runtime/test_faults.py",
                "tests/runtime/test_fingerprint_check.py",
            ),
        ),
    ),
    Gate(
        "5. signals of runs can be seen and repeated",
        (
            (
                "tests_runtime",
                "tests/runtime/test_stats.py",
                "tests/runtime/test_decision_log.py",
                "tests/runtime/test_rails.py",
                "tests/runtime/test_profile.py",
            ),
        ),
    ),
)


#: Session -> the programs of the system that it needs: their names, or paths as its cross file has
#: them.
NEEDS = {
    "kernels": ("cc",),
    "scalar": ("cc",),
    "aarch64": ("aarch64-linux-gnu-gcc", "qemu-aarch64"),
    "cross": ("/usr/lib/wine/wine64",),
    "dist": ("cc",),
}


def run_session(session: Sequence[str]) -> str:
    """Run a session of the noxfile; return "success", "failed" or "skipped"."""
    name, *arguments = session
    if missing := [each for each in NEEDS.get(name, ()) if shutil.which(each) is None]:
        print(f"{name}: skipped, because {', '.join(missing)} is missing", flush=True)
        return "skipped"
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "nox", "-s", name, "--report", str(report)]
        subprocess.run([*command, "--", *arguments], cwd=ROOT, check=False)
        if not report.exists():
            return "failed"
        results = {each["result"] for each in json.loads(report.read_text())["sessions"]}
    if results == {"success"}:
        return "success"
    return "skipped" if results and results <= {"success", "skipped"} else "failed"


def changed_files(since: str) -> list[str]:
    """Return the files that differ between a revision and the work tree.

    Raises
    ------
    ValueError
        If there is no such revision.
    """
    command = ["git", "diff", "--name-only", since, "--"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"--since: expected a revision, got {since!r}: {done.stderr.strip()}")
    return done.stdout.splitlines()


def judge_change(files: Sequence[str]) -> str:
    """Return "success" if code comes with tests, and if there is no code, else "failed"."""
    has_code = any(each.startswith("packages/") and "/src/" in each for each in files)
    has_tests = any("tests/" in each for each in files)
    return "success" if has_tests or not has_code else "failed"


def results(
    files: Sequence[str], run: Callable[[Sequence[str]], str] = run_session
) -> Iterator[tuple[str, str]]:
    """Yield each gate's text and result: "passed", "failed", or "open", which none may be.

    ``files`` are those that changed.
    """
    for gate in GATES:
        outcomes = [run(each) for each in gate.sessions] or [judge_change(files)]
        result = "failed" if "failed" in outcomes else "open" if "skipped" in outcomes else "passed"
        told = [f"{' '.join(s)}: {o}" for s, o in zip(gate.sessions, outcomes, strict=False)]
        yield gate.text, "; ".join([result, *(told if result != "passed" else ())])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the gates; return 1 if one is not passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--since", default="HEAD~1", metavar="REVISION")
    try:
        files = changed_files(parser.parse_args(arguments).since)
    except ValueError as error:
        parser.error(str(error))
    all_pass = True
    for text, result in results(files):
        print(f"{text}: {result}", flush=True)
        all_pass &= result == "passed"
    return int(not all_pass)


if __name__ == "__main__":
    sys.exit(main())
