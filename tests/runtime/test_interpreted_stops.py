"""Test that the interpreted executor stops between nodes, and inside loops."""

import signal
import sys
import threading

import numpy as np
import pytest

from control_plans import counting
from plan_files import chain
from taper_runtime import InferenceSession, RunOptions, SessionOptions
from taper_runtime.base.errors import RunTimeoutError, StoppedError

#: A loop that counts by multiplying, so that it never comes to an end.
ENDLESS = counting(add="MUL")
FEED = {"i0": np.array(0), "x0": np.zeros(2, np.float32), "top": np.array(5)}


def interpreted(plan):
    options = SessionOptions()
    options.executor = "interpreted"
    return InferenceSession(plan, options)


def test_a_timeout_ends_a_loop():
    session, run = interpreted(ENDLESS), RunOptions()
    run.timeout_s = 0.05
    with pytest.raises(RunTimeoutError):
        session.run(None, FEED, run)
    ended = interpreted(counting())
    count, _ = ended.run(None, FEED, RunOptions())
    assert count == 5


def test_another_thread_ends_a_loop():
    session, run = interpreted(ENDLESS), RunOptions()
    timer = threading.Timer(0.05, lambda: setattr(run, "terminate", True))
    timer.start()
    with pytest.raises(StoppedError, match="terminate is set"):
        session.run(None, FEED, run)
    timer.join()


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_ends_a_loop():
    timer = threading.Timer(0.05, lambda: signal.pthread_kill(main, signal.SIGINT))
    main = threading.get_ident()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        interpreted(ENDLESS).run(None, FEED)
    timer.join()


def test_runs_at_the_same_time_end_by_their_own_options():
    """What ends a run is known to the blocks of that run alone."""
    session = interpreted(ENDLESS)
    first, second = RunOptions(), RunOptions()
    ended = []

    def work(name, run):
        with pytest.raises(StoppedError):
            session.run(None, FEED, run)
        ended.append(name)

    threads = [threading.Thread(target=work, args=each) for each in (("a", first), ("b", second))]
    for thread in threads:
        thread.start()
    second.terminate = True
    threads[1].join()
    assert ended == ["b"]
    first.terminate = True
    threads[0].join()
    assert ended == ["b", "a"]


def test_a_run_ends_between_two_nodes():
    session, run = interpreted(chain(["NEG"] * 20, 8)), RunOptions()
    run.timeout_s = 1e-9
    with pytest.raises(RunTimeoutError):
        session.run(None, {"x": np.zeros(8, np.float32)}, run)
