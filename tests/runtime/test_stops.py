"""A run ends before its time where a flag or a timeout says so; the session goes on."""

import copy
import pickle
import threading
import time

import numpy as np
import pytest

from plan_files import chain, small_plan
from taper_runtime import InferenceSession, RunOptions, SessionOptions
from taper_runtime.errors import RunTimeoutError, StoppedError, TaperError

SIZE = 1 << 18
X = {"x": np.zeros(SIZE, np.float32)}


def session_of(nodes, threads=1, executor="compiled"):
    options = SessionOptions()
    options.intra_op_num_threads, options.executor = threads, executor
    return InferenceSession(chain(["SIN"] * nodes, SIZE), options)


CASES = [(1, "compiled"), (2, "compiled"), (1, "interpreted")]


@pytest.mark.parametrize(("threads", "executor"), CASES)
def test_a_run_is_terminated_by_another_thread(threads, executor):
    session, run = session_of(5000, threads, executor), RunOptions()

    def terminate():
        while not session.stats().frames.in_use:
            time.sleep(0.001)
        run.terminate = True

    thread = threading.Thread(target=terminate)
    thread.start()
    with pytest.raises(StoppedError, match=r"ended: run_options\.terminate is set") as raised:
        session.run(None, X, run)
    thread.join()
    assert not isinstance(raised.value, RunTimeoutError)
    with pytest.raises(StoppedError):
        session.run(None, X, run)
    stats = session.stats()
    assert (stats.errors, stats.frames.in_use) == (2, 0)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_run_ends_at_its_timeout(threads):
    session, run = session_of(5000, threads), RunOptions()
    run.timeout_s = 0.05
    begin = time.monotonic()
    with pytest.raises(RunTimeoutError, match=r"did not end within 0\.05 s") as raised:
        session.run(None, X, run)
    assert time.monotonic() - begin >= 0.05
    assert isinstance(raised.value, (TimeoutError, TaperError))


def test_a_run_in_time_is_as_any_other():
    session, run = InferenceSession(small_plan()), RunOptions()
    run.timeout_s = 600
    x = {"x": np.ones((2, 4), np.float32)}
    np.testing.assert_array_equal(session.run(None, x, run)[0], session.run(None, x)[0])


def test_copies_of_options_do_not_end_each_others_runs():
    run = RunOptions()
    other = run.copy()
    run.terminate = True
    x = {"x": np.ones((2, 4), np.float32)}
    session = InferenceSession(small_plan())
    session.run(None, x, other)
    again = pickle.loads(pickle.dumps(run))  # noqa: S301
    for same in (copy.copy(run), again):
        with pytest.raises(StoppedError):
            session.run(None, x, same)
