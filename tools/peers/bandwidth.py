"""Measure what this machine reads from memory, for tables that are beside it."""

from __future__ import annotations

from taper_runtime.machine.measure import measure_limits
from taper_runtime.native import _kernels


def bandwidth(threads: int) -> float:
    """Measure the bytes that so many threads read from memory in a nanosecond."""
    (limits,) = measure_limits([_kernels.active_isa()], [threads])
    return limits.memory[-1].read
