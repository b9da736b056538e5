"""Tell what this installation runs with."""

from __future__ import annotations

import os
from collections import Counter

from taper_runtime.base.errors import InputError
from taper_runtime.base.option_values import MAX_THREADS
from taper_runtime.native import _kernels


def show_config() -> None:
    """Print the ISA level in use and those at hand, the kernels, and the threads of a run.

    Raises
    ------
    InputError
        If ``TAPER_NUM_THREADS`` is not a number of threads.
    """
    kernels = Counter(op for _, op, _ in _kernels.list_kernels())
    active = _kernels.active_isa()
    others = [isa for isa in _kernels.available_isas() if isa != active]
    print(f"isa      {active} (also here: {', '.join(others)})")
    print(f"threads  {thread_count()} of {_kernels.cpu_count()} CPUs")
    print(f"kernels  {kernels.total()} for {len(kernels)} ops: {', '.join(sorted(kernels))}")


def thread_count(wanted: int = 0) -> int:
    """Return the threads of a run: ``wanted``, ``TAPER_NUM_THREADS``, else the CPUs at hand."""
    if wanted:
        return wanted
    value = os.environ.get("TAPER_NUM_THREADS")
    if not value:
        return _kernels.cpu_count()
    if not (value.isascii() and value.isdigit() and 1 <= int(value[:20]) <= MAX_THREADS):
        raise InputError(
            f"TAPER_NUM_THREADS: expected a number of threads of at least 1 and at most "
            f"{MAX_THREADS}, got {value[:100]!r}"
        )
    return int(value)
