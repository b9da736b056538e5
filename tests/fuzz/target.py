"""Check any file: it is refused, or it loads, is shown, and runs or refuses its inputs."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from op_samples import array_of
from taper_runtime import InferenceSession, InputError, Plan, RunOptions, SessionOptions
from taper_runtime.base.errors import PlanFormatError
from taper_runtime.base.text import printable
from taper_runtime.executor.program import example_sizes
from taper_runtime.file.reader import loads
from taper_runtime.plan.rows import batch_data, describe_batch
from taper_runtime.plan.specialize import specialize
from taper_runtime.reports.report import describe_plan, plan_data

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Bytes of all tensors, and nodes, of a plan that is run; CPU seconds of a run, as plans may loop.
_RUN_BYTES, _RUN_NODES, _RUN_S = 1 << 20, 200, 1.0

#: Callers at the same time, runs of each, frames for them, seconds that a run may wait and take.
_CALLERS, _RUNS, _FRAMES, _CALLERS_S = 3, 2, 2, 20.0


class Endless(Exception):
    """A run took its time: whoever runs a stranger's plan has to end it."""


def check(blob: bytes) -> str:
    """Load and run a file; return what became of it.

    Raises
    ------
    Exception
        Whatever a user would not expect from the documents.
    """
    plan = load(blob)
    if isinstance(plan, str):
        return plan
    if not _show(plan):
        return "large"
    ran = [_run(plan.entry(name)) for name in plan.entry_names]
    return "ran" if all(ran) else "refused to run"


def load(blob: bytes) -> Plan | str:
    """Load a file; return its plan, or what became of it.

    Raises
    ------
    Exception
        Whatever a user would not expect from the documents.
    """
    try:
        plan = _loaded(blob)
        len(plan.provenance)  # which is parsed when it is asked for
    except PlanFormatError as error:
        text = str(error)
        assert text.isprintable() and len(text) < 600, text  # noqa: PT018
        return "refused"
    return plan


def _show(plan: Plan) -> bool:
    """Show a plan; return whether its tensors and arena are no larger than they may be."""
    try:
        text = "\n".join([describe_plan(plan), *map(printable, describe_batch(plan))])
        plan_data(plan)
        batch_data(plan)
    except InputError:
        return False
    assert all(line.isprintable() for line in text.splitlines())
    plan.fingerprint()
    return True


def _loaded(blob: bytes) -> Plan:
    """Load the only plan of a file, or the first of several."""
    try:
        return loads(blob)
    except InputError as error:  # which lists them
        return loads(blob, str(error).split("['")[1].split("'")[0])


def _run(plan: Plan) -> bool:
    """Run on one thread, on two, nodes at the same time, from several callers: the same bits."""
    try:
        specs = specialize(plan, example_sizes(plan)).tensors
    except InputError:
        return False
    bodies = [block for node in plan.nodes for block in node.blocks]
    if len(plan.nodes) + sum(len(body.nodes) for body in bodies) > _RUN_NODES:
        return False
    if sum(spec.nbytes for spec in specs.values()) > _RUN_BYTES:
        return False
    rng = np.random.default_rng(0)
    feed = {
        name: plan.samples[name] if name in plan.samples else array_of(specs[name].type, rng)
        for name in plan.inputs
    }
    results = [_outputs(plan, feed, _options(threads)) for threads in (1, 2)]
    assert results[0] == results[1], "the bits depend on the number of threads"
    if results[0] is None:
        return False
    at_once = _options(2)
    at_once.execution_mode = "parallel"
    at_once.inter_op_num_threads = 2
    assert results[0] == _outputs(plan, feed, at_once), "the bits depend on the order of nodes"
    _run_from_callers(plan, feed, at_once, results[0][: len(plan.outputs)])
    return True


def _options(threads: int) -> SessionOptions:
    options = SessionOptions()
    options.intra_op_num_threads = threads
    options.seed = 0
    options.delegates = {"other": None}  # whose subgraph is run
    return options


def _outputs(
    plan: Plan, feed: dict[str, np.ndarray], options: SessionOptions
) -> list[bytes] | None:
    """The bytes that two runs give, None where a run refuses its inputs."""
    found = []
    try:
        with _limited(_RUN_S):
            session = InferenceSession(plan, options)
            for _ in range(2):
                found += [array.tobytes() for array in session.run(None, feed)]
    except (InputError, Endless):
        return None
    return found


def _run_from_callers(
    plan: Plan, feed: dict[str, np.ndarray], options: SessionOptions, expected: list[bytes]
) -> None:
    """Run from more callers than there are frames; without state each gives ``expected``."""
    options = options.copy()
    options.max_concurrent_runs = _FRAMES
    session = InferenceSession(plan, options)
    run_options = RunOptions()
    run_options.timeout_s = _CALLERS_S

    def call() -> None:
        for _ in range(_RUNS):
            outputs = session.run(None, feed, run_options)
            found = [array.tobytes() for array in outputs]
            assert plan.states or found == expected, "the bits depend on the callers"

    with ThreadPoolExecutor(_CALLERS) as pool:
        for done in [pool.submit(call) for _ in range(_CALLERS)]:
            done.result()
    stats = session.stats().frames
    assert stats.in_use == 0, stats
    assert stats.peak <= _FRAMES, stats


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise :class:`Endless` after so much CPU time."""

    def end(number: int, frame: object) -> None:
        raise Endless

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
