"""Show the settings that this installation runs with."""

from __future__ import annotations

from collections import Counter

from taper_runtime.native import _kernels
from taper_runtime.session.opening import thread_count


def show_config() -> None:
    """Print the ISA level in use and the supported ones, the kernels, and the threads of a run.

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
