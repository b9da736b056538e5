"""Write the page of results: replace the tables between its markers."""

from __future__ import annotations

import platform
import re
import sys
import time
from importlib.metadata import version
from pathlib import Path

import taper_runtime
from taper_runtime.native import _kernels

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "benchmarks.md"


def describe_setting(command: str, *engines: str) -> str:
    """The command, date, versions of torch, numpy and ``engines``, CPU: as a paragraph."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("numpy", "torch", *engines))
    return (
        f"`{command}`, {time.strftime('%Y-%m-%d')}: taper {taper_runtime.__version__}, {versions}, "
        f"Python {platform.python_version()}; {cpu_name()}, {_kernels.active_isa()}"
    )


def command_line(session: str) -> str:
    """How nox repeats this run."""
    arguments = " ".join(sys.argv[1:])
    return f"nox -s {session} -- {arguments}" if arguments else f"nox -s {session}"


def cpu_name() -> str:
    """The CPU as the system calls it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def write_section(key: str, title: str, text: str, page: Path = PAGE) -> None:
    """Put ``text`` between the markers of ``key``; without markers, at the end under ``title``.

    It replaces what this CPU had there and leaves what others have.
    """
    begin, end = f"<!-- begin {key} -->\n", f"<!-- end {key} -->"
    content = page.read_text() if page.exists() else "# Benchmarks\n"
    if begin not in content:
        content += f"\n### {title}\n\n{begin}{end}\n"
    before, rest = content.split(begin, 1)
    if end not in rest:
        raise ValueError(f"{page}: {begin.strip()} without {end}")
    section, after = rest.split(end, 1)
    parts = re.split(r"<!-- on (.*) -->\n", section)[1:]
    by_cpu = dict(zip(parts[::2], parts[1::2], strict=True))
    by_cpu[cpu_name()] = f"{text.strip()}\n"
    blocks = "\n".join(f"<!-- on {cpu} -->\n{by_cpu[cpu].strip()}\n" for cpu in sorted(by_cpu))
    page.write_text(f"{before}{begin}{blocks}{end}{after}")
