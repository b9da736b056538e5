"""Show the settings that this installation runs with."""

from __future__ import annotations

from collections import Counter

from taper_runtime.native import _kernels
from taper_runtime.session.opening import threads_of_environment


def show_config() -> None:
    """Print the ISA level in use and the supported ones, the kernels, and the threads of a run.

    With the threads it prints the environment variable that sets them, and the file that limits the
    CPU time of the process's control group, if there are such.

    Raises
    ------
    InputError
        If ``TAPER_NUM_THREADS`` is not a number of threads.
    """
    kernels = Counter(op for _, op, _ in _kernels.list_kernels())
    active = _kernels.active_isa()
    others = [isa for isa in _kernels.available_isas() if isa != active]
    print(f"isa      {active} (also here: {', '.join(others)})")
    threads, variable = threads_of_environment()
    limit = _kernels.cpu_limit()
    print(
        f"threads  {threads}{f' by {variable}' if variable else ''} of {_kernels.cpu_count()} CPUs"
        + (f", limited to the time of {limit[0]:.6g} by {limit[1]}" if limit else "")
    )
    print(f"kernels  {kernels.total()} for {len(kernels)} ops: {', '.join(sorted(kernels))}")
