"""Name the model of this machine's CPU."""

from __future__ import annotations

import platform
import sys
from functools import cache

#: The lines of ``/proc/cpuinfo`` that tell the model: of x86, and of Arm, which has no name there.
_NAME, _PARTS = "model name", ("CPU implementer", "CPU part", "CPU variant")


@cache
def cpu_model() -> str:
    """Return the model of this machine's CPU, as the operating system calls it."""
    name = ""
    if sys.platform == "linux":
        name = _linux()
    elif sys.platform == "darwin":
        name = _macos()
    return name or platform.processor() or platform.machine() or "unknown"


def _linux(path: str = "/proc/cpuinfo") -> str:
    """Return the name or the parts in a file in the format of ``/proc/cpuinfo``; empty if none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.partition(":") for line in file]
    except OSError:
        return ""
    fields = {name.strip(): value.strip() for name, _, value in reversed(lines)}
    return fields.get(_NAME) or " ".join(f"{n} {fields[n]}" for n in _PARTS if n in fields)


def _macos() -> str:
    """Return what sysctl knows the CPU as; empty if it does not."""
    import subprocess

    try:
        ended = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"],
            capture_output=True,
            check=False,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return ended.stdout.strip()
