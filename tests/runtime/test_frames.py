"""Runs at the same time: never more than allowed, in turn, nothing lost, memory given back."""

import gc
import os
import subprocess
import sys
import threading
import time
import tracemalloc
import weakref
from pathlib import Path

import numpy as np
import pytest

from control_plans import branching, counting
from measured_plans import measured_arrays, measured_plan
from plan_files import chain, small_plan
from taper_runtime import InferenceSession, RunOptions, SessionOptions
from taper_runtime.base.errors import InputError, RunTimeoutError, StoppedError, TaperError
from taper_runtime.executor import _pool
from taper_runtime.executor._pool import FramePool, Lease
from taper_runtime.executor._stop import Stop, StopFlag
from weighted_plans import weighted_plan

SUPPORT = Path(__file__).parents[1] / "support"


def options(**fields):
    made = SessionOptions()
    made.intra_op_num_threads = 1
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def run_in_threads(count, work):
    """Call work(i) in so many threads at once; raises what one of them raises."""
    errors = []

    def run(i):
        try:
            work(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def sweepers(before):
    """Threads that sweep and that were not there before."""
    return [t for t in threading.enumerate() if "frame cleanup" in t.name and t not in before]


class Held:
    """Slots of a pool, all in use, until they are given back one by one."""

    def __init__(self, pool, count):
        self.leases = [Lease(pool, None, None) for _ in range(count)]
        for lease in self.leases:
            lease.__enter__()

    def release(self):
        self.leases.pop().__exit__()


def test_64_threads_never_have_more_than_4_frames():
    session = InferenceSession(chain(["SIN", "COS", "EXP"], 64), options(max_concurrent_runs=4))

    def work(i):
        x = np.linspace(i, i + 1, 64, dtype=np.float32)
        (expected,) = session.run(None, {"x": x})
        for _ in range(200):
            (y,) = session.run(None, {"x": x})
            assert y.tobytes() == expected.tobytes()
        np.testing.assert_allclose(expected, np.exp(np.cos(np.sin(x))), rtol=1e-5)

    run_in_threads(64, work)
    stats = session.stats()
    assert stats.runs == 64 * 201
    assert stats.errors == 0
    assert 1 <= stats.frames.peak <= 4
    assert stats.frames.created <= 4
    assert stats.frames.in_use == 0
    assert stats.frames.idle == stats.frames.created


def test_a_run_waits_for_a_frame_and_those_who_came_first_go_first():
    pool = FramePool(1)
    held, order = Held(pool, 1), []

    def wait(i):
        with Lease(pool, None, None):
            order.append(i)

    threads = []
    for i in range(5):
        threads.append(threading.Thread(target=wait, args=(i,)))
        threads[-1].start()
        wait_until(lambda n=i + 1: pool.waits == n)
    assert order == []
    held.release()
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]
    assert (pool.created, pool.in_use, pool.peak) == (1, 0, 1)
    assert pool.waited_s > 0


def test_a_wait_ends_by_its_timeout_and_the_turn_goes_to_the_next():
    pool = FramePool(1)
    held, got = Held(pool, 1), []
    begin = time.monotonic()
    with pytest.raises(RunTimeoutError, match=r"did not end within 0\.05 s"):
        Lease(pool, None, Stop(None, 0.05)).__enter__()
    assert time.monotonic() - begin >= 0.05
    thread = threading.Thread(target=lambda: got.append(Lease(pool, None, None).__enter__()))
    thread.start()
    wait_until(lambda: pool.waits == 2)
    held.release()
    thread.join()
    assert len(got) == 1


def test_a_wait_ends_where_the_run_is_terminated():
    pool, flag = FramePool(1), StopFlag()
    held, errors = Held(pool, 1), []

    def wait():
        try:
            Lease(pool, None, Stop(flag)).__enter__()
        except StoppedError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: pool.waits == 1)
    flag.is_set = True
    thread.join(timeout=30)
    assert [str(error) for error in errors] == ["the run was ended: run_options.terminate is set"]
    held.release()
    assert (pool.in_use, pool.n_idle) == (0, 1)


def test_a_slot_that_comes_as_the_wait_ends_is_not_lost():
    pool = FramePool(1)

    def work(i):
        for turn in range(200):
            try:
                with Lease(pool, i, Stop(None, 1e-4 * (turn % 3 + 1))):
                    time.sleep(1e-4)
            except RunTimeoutError:
                pass

    run_in_threads(4, work)
    assert (pool.in_use, pool.n_idle, pool.created) == (0, 1, 1)


def busy(plan, work, **fields):
    """Call work() of a session on a thread while no run may begin.

    Returns (session, what holds all slots of runs that compute, thread).
    """
    session = InferenceSession(plan, options(**fields))
    held = Held(session._pool, session._pool.at_once)
    thread = threading.Thread(target=work, args=(session,))
    thread.start()
    wait_until(lambda: session.stats().frames.waits == 1)
    return session, held, thread


def test_runs_beyond_the_cpus_are_computed_in_turn_by_another_thread():
    results = {}
    x = np.linspace(0, 1, 64, dtype=np.float32)

    def work(session):
        (results["first"],) = session.run(None, {"x": x})

    session, held, first = busy(chain(["SIN", "EXP"], 64), work)
    y = np.zeros(64, np.float32)
    second = threading.Thread(target=lambda: session.run(None, {"x": -x}, out={"y": y}))
    second.start()
    wait_until(lambda: session.stats().frames.waits == 2)
    held.release()  # one thread computes both
    first.join()
    second.join()
    np.testing.assert_allclose(results["first"], np.exp(np.sin(x)), rtol=1e-6)
    np.testing.assert_allclose(y, np.exp(np.sin(-x)), rtol=1e-6)
    while held.leases:
        held.release()
    frames = session.stats().frames
    assert (frames.in_use, frames.waits, frames.peak) == (0, 2, session._pool.at_once)
    assert frames.waited_s > 0


def test_a_run_that_another_thread_computes_raises_to_its_caller():
    errors = []

    def work(session):
        with pytest.raises(InputError, match="input 'x': expected shape"):
            session.run(None, {"x": np.zeros(5, np.float32)})
        errors.append(session.stats().errors)

    session, held, thread = busy(small_plan(), work)
    held.release()
    thread.join()
    assert errors == [1]
    assert session.stats().frames.in_use == len(held.leases)


def test_a_run_that_another_thread_computes_ends_in_time():
    errors = []

    def work(session):
        run = RunOptions()
        run.timeout_s = 0.3
        try:
            session.run(None, {"x": np.zeros(1 << 20, np.float32)}, run)
        except RunTimeoutError as error:
            errors.append(error)

    session, held, thread = busy(chain(["SIN"] * 2000, 1 << 20), work)
    held.release()
    thread.join(timeout=60)
    assert len(errors) == 1
    assert session.stats().frames.in_use == len(held.leases)


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
def test_a_run_that_no_thread_can_be_had_for_is_computed_by_its_caller(monkeypatch, error):
    def start(*work):
        raise error("can't start new thread")

    monkeypatch.setattr(_pool, "start_new_thread", start)
    results = []

    def work(session):
        results.append(session.run(None, {"x": np.ones((2, 4), np.float32)})[0])

    session, held, thread = busy(small_plan(), work)
    held.release()
    thread.join()
    (expected,) = InferenceSession(small_plan(), options()).run(
        None, {"x": np.ones((2, 4), np.float32)}
    )
    np.testing.assert_array_equal(results[0], expected)
    assert session.stats().frames.in_use == len(held.leases)


def test_entries_share_frames():
    pool = FramePool(2)
    first, second = object(), object()
    for owner in (first, second, first, second):
        with Lease(pool, owner, None):
            pass
    assert pool.created == 2
    with Lease(pool, object(), None), Lease(pool, object(), None):
        assert pool.created == 2  # they take over what others had


def test_two_sweeps_free_what_rests_but_the_floor():
    pool = FramePool(8, 2)
    held = Held(pool, 5)
    for _ in range(5):
        held.release()
    assert pool.n_idle == 5
    pool.sweep()
    with Lease(pool, None, None):  # one is used between the sweeps
        pass
    assert pool.n_idle == 5
    pool.sweep()
    assert pool.n_idle == 2
    pool.sweep()
    pool.sweep()
    assert pool.n_idle == 2


def test_what_was_used_between_two_sweeps_stays():
    pool = FramePool(8, 0)
    held = Held(pool, 3)
    for _ in range(3):
        held.release()
    pool.sweep()
    again = Held(pool, 2)
    again.release()
    again.release()
    assert pool.sweep()
    assert pool.n_idle == 2
    assert not pool.sweep()
    assert pool.n_idle == 0


def test_a_session_that_nobody_refers_to_is_freed_at_once():
    session = InferenceSession(small_plan(), options())
    session.run(None, {"x": np.zeros((2, 4), np.float32)})
    pool = weakref.ref(session._pool)
    gc.disable()
    try:
        del session
        assert pool() is None
    finally:
        gc.enable()


def test_one_caller_has_no_thread_that_sweeps():
    before = threading.enumerate()
    session = InferenceSession(small_plan(), options(frame_cleanup_interval_s=3600))
    for _ in range(3):
        session.run(None, {"x": np.zeros((2, 4), np.float32)})
    assert not sweepers(before)


def test_the_thread_that_sweeps_goes_when_nothing_is_left():
    pool = FramePool(8, 1, 0.02)
    for _ in range(2):
        before = threading.enumerate()
        held = Held(pool, 4)
        for _ in range(4):
            held.release()
        (sweeper,) = sweepers(before)
        sweeper.join(timeout=60)
        assert pool.n_idle == 1


def test_the_thread_that_sweeps_ends_with_its_session():
    before = threading.enumerate()
    pool = FramePool(8, 1, 3600.0)
    held = Held(pool, 4)
    for _ in range(4):
        held.release()
    (sweeper,) = sweepers(before)
    gone = weakref.ref(pool)
    held.leases.clear()
    del pool, held
    gc.collect()
    assert gone() is None
    sweeper.join(timeout=60)
    assert not sweeper.is_alive()


#: 32 runs that would take long, ended once all have a frame, whose arena of 1 MB is touched. They
#: would end with numpy: of runs that do not, no more have a frame at once than there are CPUs.
BURST = """
import sys, threading, time
import numpy as np
sys.path.insert(0, sys.argv[1])
from plan_files import chain
from taper_runtime import InferenceSession, RunOptions, SessionOptions

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    print(condition())

size, options, run = 1 << 18, SessionOptions(), RunOptions()
options.intra_op_num_threads = 1
options.max_concurrent_runs, options.frame_cleanup_interval_s = 32, 0.3
session = InferenceSession(chain([*["SIN"] * 5000, "I0"], size), options)
x, outs = np.zeros(size, np.float32), [np.zeros(size, np.float32) for _ in range(32)]

def work(i):
    try:
        session.run(None, {"x": x}, run, out={"y": outs[i]})
    except Exception as error:
        ended.append(type(error).__name__)

def burst(count, grown):
    run.terminate = False
    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    [t.start() for t in threads]
    wait_until(lambda: session.stats().frames.in_use == count and resident() - before >= grown)
    run.terminate = True
    [t.join() for t in threads]

ended, before = [], resident()
burst(1, 1 << 20)
before = resident()
burst(32, 30 << 20)
print(ended == ["StoppedError"] * 33, session.stats().frames.idle)
wait_until(lambda: session.stats().frames.idle == 1)
now = resident()
print(session.stats().frames.arena_bytes < 2 << 20, now - before < 8 << 20)
print(now - before, file=sys.stderr)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's statm")
def test_a_burst_of_32_gives_its_memory_back():
    command = [sys.executable, "-c", BURST, SUPPORT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == [*["True"] * 3, "32", *["True"] * 3], done.stderr


def test_the_arena_of_one_large_run_goes_where_later_ones_are_small():
    session = InferenceSession(growing(), options())
    feed = {n: {"x": np.zeros((n, 1024), np.float32)} for n in (1, 4096)}
    session.run(None, feed[1])
    small = session.stats().frames.arena_bytes
    session.run(None, feed[4096])
    session.run(None, feed[1])
    assert session.stats().frames.arena_bytes >= 1 << 24
    for _ in range(2):  # the first sweep sees that it was needed since the one before
        session._pool.sweep()
        (y,) = session.run(None, feed[1])
        np.testing.assert_array_equal(y, 1)
    assert session.stats().frames.arena_bytes == small
    (y,) = session.run(None, feed[4096])
    np.testing.assert_array_equal(y, 1)


@pytest.mark.parametrize("most", [64, 1536])
def test_memory_of_results_serves_again_once_nobody_holds_it(most):
    """Not before: not while an array, a part of it or a buffer over it is left."""
    session = InferenceSession(growing(), options())

    def run(number, rows=most):
        return session.run(None, {"x": np.full((rows, 1024), number, np.float32)})[0]

    (want,) = set(run(3).flat)
    first = run(3)
    address = first.ctypes.data
    assert first.flags.writeable
    assert address % 64 == 0  # a line of the cache
    others = [run(number, rows) for number, rows in ((0, most), (1, most * 3 // 4), (2, most))]
    assert address not in [other.ctypes.data for other in others]
    part = memoryview(first[1:2].T)
    del first, others
    assert address not in [run(number).ctypes.data for number in range(4)]
    assert set(np.asarray(part).flat) == {want}
    places = set()
    for number in range(8):  # the one before is held while the next is computed
        y = run(number, rows=most - number)
        places.add(y.ctypes.data)
    assert len(places) == 2


def test_memory_of_results_is_swept():
    session = InferenceSession(growing(), options(frame_cleanup_interval_s=3600))
    before = threading.enumerate()
    tracemalloc.start()
    try:
        session.run(None, {"x": np.zeros((1000, 1024), np.float32)})
        assert tracemalloc.get_traced_memory()[0] >= 1000 << 12
        assert sweepers(before)
        for _ in range(2):
            session._pool.sweep()
        assert tracemalloc.get_traced_memory()[0] < 1000 << 12
    finally:
        tracemalloc.stop()
        session.close()


def growing():
    """exp(sin(x)) of rows whose number varies."""
    from taper_runtime.base.sizes import variable

    plan = chain(["SIN", "NEG", "EXP"], 1024)
    low, high = 1, 1 << 16
    shape = (variable("n", low, high), 1024)
    return plan._replace(
        sizes={"n": (low, high)},
        tensors={name: spec._replace(shape=shape) for name, spec in plan.tensors.items()},
        placements={n: p._replace(strides=(1024, 1)) for n, p in plan.placements.items()},
    )


def test_1000_failing_runs_leak_nothing():
    session = InferenceSession(chain(["SIN", "EXP"], 1 << 18), options(max_concurrent_runs=2))
    x = np.zeros(1 << 18, np.float32)
    bad = [
        ({"x": x[:5]}, None),
        ({"x": x}, {"y": x}),
        ({"x": x.astype(np.float64)}, None),
        ({}, None),
    ]
    stop = RunOptions()
    stop.terminate = True

    def work(i):
        for turn in range(100):
            feed, out = bad[turn % len(bad)]
            with pytest.raises(InputError):
                session.run(None, feed, out=out)
            with pytest.raises(StoppedError):
                session.run(None, {"x": x}, stop)

    run_in_threads(5, work)
    session.run(None, {"x": x})
    stats = session.stats()
    assert stats.errors == 1000
    assert stats.runs == 1001 - 125  # but for those with an input missing
    assert stats.frames.in_use == 0
    assert stats.frames.created <= 2
    gc.collect()
    assert sum(type(each) is Lease for each in gc.get_objects()) == 0


def test_options_are_checked():
    for name, value in [
        ("max_concurrent_runs", 0),
        ("max_concurrent_runs", -1),
        ("min_frames", -1),
        ("frame_cleanup_interval_s", 0),
        ("frame_cleanup_interval_s", "1"),
    ]:
        with pytest.raises(InputError, match=f"{name}: expected"):
            options(**{name: value})
    run = RunOptions()
    for value in (0, -1, "1", float("nan")):
        with pytest.raises(InputError, match="timeout_s: expected seconds"):
            run.timeout_s = value


def test_no_cleanup_where_none_is_wanted():
    before = threading.enumerate()
    session = InferenceSession(small_plan(), options(frame_cleanup=False, min_frames=0))
    session.run(None, {"x": np.zeros((2, 4), np.float32)})
    assert not sweepers(before)
    assert session.stats().frames.idle == 1


def test_a_closed_session_ends_what_has_begun_and_begins_nothing():
    x = {"x": np.zeros((2, 4), np.float32)}
    with InferenceSession(small_plan(), options(max_concurrent_runs=1)) as session:
        expected = session.run(None, x)
        held, results = Held(session._pool, 1), []
        thread = threading.Thread(target=lambda: results.append(session.run(None, x)))
        thread.start()
        wait_until(lambda: session.stats().frames.waits == 1)
    with pytest.raises(TaperError, match="the session is closed"):
        session.run(None, x)
    with pytest.raises(TaperError, match="the session is closed"):
        session.run_async(None, x, print, None)
    held.release()
    thread.join()
    np.testing.assert_array_equal(results[0][0], expected[0])
    frames = session.stats().frames
    assert (frames.in_use, frames.idle, frames.arena_bytes) == (0, 0, 0)
    session.close()


def test_asynchronous_runs_of_a_closed_session_are_told():
    session = InferenceSession(small_plan(), options(max_concurrent_runs=1))
    x, done, told = {"x": np.zeros((2, 4), np.float32)}, threading.Event(), []

    def callback(outputs, data, error):
        told.append((len(outputs), error))
        if len(told) == 2:
            done.set()

    held = Held(session._pool, 1)
    session.run_async(None, x, callback, None)  # begins, and waits
    wait_until(lambda: session.stats().frames.waits == 1)
    session.run_async(None, x, callback, None)  # has not begun: the thread is busy
    session.close()
    held.release()
    assert done.wait(60)
    assert sorted(told) == [(0, "the session is closed"), (1, "")]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks with threads
def test_the_child_of_a_fork_has_all_frames_and_no_one_who_waits():
    session = InferenceSession(small_plan(), options(max_concurrent_runs=1))
    x = {"x": np.zeros((2, 4), np.float32)}
    (expected,) = session.run(None, x)
    held = Held(session._pool, 1)
    thread = threading.Thread(target=lambda: session.run(None, x))
    thread.start()
    wait_until(lambda: session.stats().frames.waits == 1)
    child = os.fork()
    if child == 0:
        (y,) = session.run(None, x)
        os._exit(0 if y.tobytes() == expected.tobytes() else 1)
    assert os.waitpid(child, 0)[1] == 0
    held.release()
    thread.join()


@pytest.mark.parametrize("kind", ["compiled", "interpreted"])
@pytest.mark.parametrize("make", [small_plan, measured_plan, weighted_plan, branching, counting])
def test_what_a_session_holds_is_gone_with_it(make, kind):
    plan = make()
    session = InferenceSession(plan, options(executor=kind))
    if make is measured_plan:  # its executor keeps one for the sizes of the last run
        session.run(None, measured_arrays(np.random.default_rng(0), 4))
    held = [weakref.ref(session), weakref.ref(session._default.executor)]
    gc.disable()  # which would free a cycle, but late
    try:
        del session
        assert [each() for each in held] == [None, None]
    finally:
        gc.enable()
