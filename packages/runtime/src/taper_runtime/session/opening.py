"""Open a session: read and check its plan, and make the objects that its runs share."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from taper_runtime.base.errors import InputError, OptionError
from taper_runtime.base.option_values import CPU_DEVICE, MAX_THREADS
from taper_runtime.executor._pool import FramePool
from taper_runtime.executor.executor import ShortRuns
from taper_runtime.extend.providers import Dispatch, check_kernels, computing
from taper_runtime.file.reader import load, loads
from taper_runtime.native._kernels import active_isa, cpu_count, cpu_limit
from taper_runtime.plan.plan import Plan
from taper_runtime.plan.validate import check_plan

if TYPE_CHECKING:
    from taper_runtime.machine.choices import Choice
    from taper_runtime.session.options import SessionOptions

WARNING = 2  # ONNX Runtime's number

#: Of limits on CPU time, unless somebody sets another one.
_PERIOD_NS = 100_000_000


def check_device(options: SessionOptions) -> None:
    """Check that the device in the options is available.

    Raises
    ------
    InputError
        If the device is not available.
    """
    if options.device != CPU_DEVICE:
        from taper_runtime.base import device

        device.check_device(options.device)


def read_plan(
    source: object, model: str | None, options: SessionOptions, providers: tuple[str, ...]
) -> tuple[Plan, frozenset[str]]:
    """Return the plan of a file, or check one; weights that it has plain are packed.

    Parameters
    ----------
    source : path, bytes or Plan
    model : str or None
        The name of the plan, if the file has several.
    options : SessionOptions
    providers : tuple of str
        As :func:`.choose_providers` returns them.

    Returns
    -------
    plan : Plan
        With all its constants.
    computed : frozenset of str
        The constants that were computed now, so that they are memory of the process.

    Raises
    ------
    PlanFormatError
        If the file or the Plan is not a valid plan.
    InputError
        If ``source`` is of another type, or ``model`` names none, or weights cannot be packed as
        the options say.
    OSError
        If the file cannot be opened.
    """
    plan = _read(source, model, options)
    packs = options.packing == "at_open"
    if not (plan.weights or options.runtime_const_folding or packs):
        return _placed(plan, options), frozenset()
    # most plans do not need this import
    from taper_runtime.executor.packing import made_at_open, plan_to_run

    whole = plan_to_run(
        plan,
        make_dispatch(options, providers),
        fold=options.runtime_const_folding,
        packs=packs,
        other_bits=options.kernel_choice == "cost",
    )
    return _placed(whole, options), made_at_open(whole, plan.constants)


def _placed(plan: Plan, options: SessionOptions) -> Plan:
    """Return a plan whose weights are in the memory that the options ask for."""
    if options.weights_memory == "mapped":
        return plan
    from taper_runtime.session.large_pages import in_large_pages

    return in_large_pages(plan)


def _read(source: object, model: str | None, options: SessionOptions) -> Plan:
    """Return the plan of a file, of a file's bytes, or of a Plan, which is checked."""
    if isinstance(source, bytes):
        return loads(
            source, model, limits=options.limits, check_fingerprint=options.check_fingerprint
        )
    if isinstance(source, (str, os.PathLike)):
        return load(
            source,
            model,
            load_mode=options.load_mode,
            limits=options.limits,
            check_fingerprint=options.check_fingerprint,
        )
    if not isinstance(source, Plan):
        got = type(source).__name__
        raise InputError(f"path_or_bytes: expected a path, bytes or a Plan, got {got}")
    if model is not None:
        raise InputError(f"model: expected None, for a Plan is one model, got {model!r}")
    check_plan(source)
    return source


def absolute_path(source: object) -> str | None:
    """Return a path as an absolute one, for other working directories; None if it is no path."""
    if not isinstance(source, (str, os.PathLike)):
        return None
    path = os.fspath(source)
    return path if os.path.isabs(path) else os.path.abspath(path)


def thread_count(wanted: int = 0) -> int:
    """Return the threads of a run: ``wanted``, those of the environment, else the CPUs at hand."""
    return wanted or threads_of_environment()[0]


def threads_of_environment() -> tuple[int, str | None]:
    """Return the threads of a run without an option, and the variable that says so, if one does.

    ``TAPER_NUM_THREADS`` is that number. ``OMP_NUM_THREADS``, which platforms set for every library
    of a process, only lowers it. OpenMP ignores values that are no number of threads, and so does
    this function.

    Raises
    ------
    InputError
        If ``TAPER_NUM_THREADS`` is not a number of threads.
    """
    value = os.environ.get("TAPER_NUM_THREADS")
    if value:
        if not _is_thread_count(value):
            raise InputError(
                f"TAPER_NUM_THREADS: expected a number of threads of at least 1 and at most "
                f"{MAX_THREADS}, got {value[:100]!r}"
            )
        return int(value), "TAPER_NUM_THREADS"
    cpus = cpu_count()
    # A list has the threads of each level of nested parallelism.
    cap = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if _is_thread_count(cap) and int(cap) < cpus:
        return int(cap), "OMP_NUM_THREADS"
    return cpus, None


def short_runs(wanted: int) -> ShortRuns:
    """Return what short runs may use beyond :func:`thread_count`, under a limit on CPU time.

    It is twice the threads, where the process may use so many CPUs, for runs that need at most a
    32nd of the time of one period. Of such runs one after the other, fewer than 1 in 20 stops until
    the next period begins.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    threads, variable = threads_of_environment()
    if wanted or variable or affinity is None:
        return ShortRuns()
    cpus = len(affinity(0))
    limit = cpu_limit() if threads < cpus else None
    if limit is None:
        return ShortRuns()
    from taper_runtime.machine.limits import TYPICAL  # which few sessions need

    work = int(limit[0] * _PERIOD_NS / 32 / TYPICAL.worker_ns)
    return ShortRuns(min(cpus, 2 * threads), work)


def _is_thread_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and 1 <= int(text[:20]) <= MAX_THREADS


def make_pool(options: SessionOptions) -> FramePool:
    """Return the frames of a session."""
    interval_s = options.frame_cleanup_interval_s if options.frame_cleanup else 0.0
    return FramePool(options.max_concurrent_runs, options.min_frames, interval_s)


def least_severity(options: SessionOptions) -> int:
    """Return the least severity that a session logs."""
    if options.log_severity_level >= 0:
        return options.log_severity_level
    if "logging" not in sys.modules:  # then nobody has set a level
        return WARNING
    from taper_runtime.session.logs import default_severity

    return default_severity()


def make_dispatch(options: SessionOptions, providers: tuple[str, ...]) -> Dispatch:
    """Return the implementations that may compute the nodes of a session."""
    delegates = {name: kind for name, kind in options.delegates.items() if kind is not None}
    isa = active_isa(options.isa)
    check_kernels(options.kernels, isa)
    choice = _choice(options, isa)
    dispatch = Dispatch(computing(providers), delegates, isa, options.kernels, choice)
    return dispatch.without_numpy() if options.strict_native else dispatch


def _choice(options: SessionOptions, isa: str) -> Choice | None:
    """Return the choice among the kernels of a node; None if the first one is taken.

    Raises
    ------
    OptionError
        If options about measured times contradict each other.
    InputError, OSError
        As :func:`.read_measurements`.
    """
    choice = options.kernel_choice
    if options.tuned is not None:
        if choice not in ("first", "measured"):
            raise OptionError(
                f"tuned: expected kernel_choice 'first' or 'measured' with it, got {choice!r}"
            )
        # which few sessions need
        from taper_runtime.executor.tuned_choice import TunedChoice, machine_setting
        from taper_runtime.file.measurements import read_measurements

        machine = machine_setting(isa, thread_count(options.intra_op_num_threads))
        return TunedChoice(
            read_measurements(options.tuned, machine),
            other_bits=choice == "measured",
            required=options.require_tuned,
        )
    if options.require_tuned or choice == "measured":
        what = "require_tuned" if options.require_tuned else "kernel_choice='measured'"
        raise OptionError(f"{what}: expected the database of `taper tune` in tuned, got None")
    if choice == "cost":
        from taper_runtime.machine.choices import LeastCost  # which few sessions need

        return LeastCost(isa)
    return None if isinstance(choice, str) else choice
