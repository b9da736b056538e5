"""Statistics of a session's runs."""

import numpy as np
import pytest

from plan_files import chain, small_plan
from taper_runtime import InferenceSession, SessionOptions
from taper_runtime.base.errors import InputError
from taper_runtime.executor._run import RunLog
from taper_runtime.session.stats import FrameStats, RunTimes, Stats, _times

X = np.zeros((2, 4), np.float32)


def test_a_new_session_has_done_nothing():
    stats = InferenceSession(small_plan()).stats()
    assert (stats.runs, stats.errors, stats.times) == (0, 0, RunTimes(0, 0.0, 0.0, 0.0, 0.0))
    assert (stats.window, stats.baseline) == (stats.times, None)
    assert stats.frames == FrameStats(0, 0, 0, 0, 0, 0.0, 0)
    assert stats.packed_bytes == 0
    assert stats.memory_planning is None


@pytest.mark.parametrize("executor", ["compiled", "interpreted"])
def test_runs_and_errors_are_counted(executor):
    options = SessionOptions()
    options.executor = executor
    session = InferenceSession(small_plan(), options)
    for _ in range(5):
        session.run(None, {"x": X})
    for feed in ({}, {"x": X[:1]}, {"x": X, "y": X}):
        with pytest.raises(InputError):
            session.run(None, feed)
    stats = session.stats()
    assert stats.errors == 3
    assert stats.runs == 6  # the run that began was refused by the executor
    assert stats.times.runs == 6
    assert 0 < stats.times.p50_s <= stats.times.p95_s <= stats.times.p99_s < 60
    assert stats.frames.in_use == 0
    assert stats.frames.created == stats.frames.idle == 1
    assert stats.fallback_nodes == 0


def test_arena_bytes_are_those_of_all_frames():
    session = InferenceSession(chain(["SIN", "COS"], 1000))
    session.run(None, {"x": np.zeros(1000, np.float32)})
    assert 4000 <= session.stats().frames.arena_bytes < 8192


def nanoseconds(times):
    """Bytes of times that are given in seconds."""
    return np.rint(1e9 * np.array(times)).astype(np.int64).tobytes()


def test_percentiles_are_nearest_ranks():
    times = _times(nanoseconds([i / 100 for i in range(100, 0, -1)]), 1_990_000_000)
    assert times == pytest.approx(RunTimes(100, 0.5, 0.95, 0.99, 100 / 1.99))
    assert _times(nanoseconds([3.0]), 3 * 10**9) == pytest.approx(RunTimes(1, 3.0, 3.0, 3.0, 1 / 3))


def durations(log):
    """The nanoseconds of each run of a log."""
    times, _ = log
    return np.frombuffer(times, np.int64).tolist()


def test_the_rate_counts_runs_that_overlap():
    log = RunLog()
    log.run(log.run, dict)
    times, span = log.latest()
    inner, outer = np.frombuffer(times, np.int64)
    assert inner <= outer == span
    assert _times(times, span).runs_per_s == pytest.approx(2e9 / span)


def test_the_window_holds_the_latest_runs():
    log = RunLog()
    for _ in range(1030):
        log.run(dict)
    times, span = log.latest()
    latest, recent = durations((times, span)), log.latest(20)
    assert (log.timed, len(latest)) == (1030, 1024)
    assert durations(recent) == latest[-20:]
    assert sum(latest) <= span
    assert sum(latest[-20:]) <= recent[1] < span
    assert RunLog().latest() == (b"", 0)


def test_the_baseline_stays_that_of_runs_11_to_30():
    log = RunLog()
    for _ in range(29):
        log.run(dict)
    assert log.baseline() is None
    log.run(dict)
    expected = log.latest(20)
    for _ in range(2000):
        log.run(dict)
    assert log.baseline() == expected


def test_stats_tell_the_window_beside_the_baseline():
    session = InferenceSession(small_plan())
    for _ in range(31):
        session.run(None, {"x": X})
    stats = session.stats()
    assert (stats.times.runs, stats.window.runs, stats.baseline.runs) == (31, 20, 20)
    assert stats.window.runs_per_s > 0


def test_prometheus_text():
    times, frames = RunTimes(2, 0.5, 0.75, 1.0, 4.0), FrameStats(3, 1, 2, 3, 4, 0.25, 4096)
    stats = Stats(7, 1, times, times, None, frames, 0, 2, 512, 256, 128, None, None)
    lines = stats.prometheus(model='a "b"\\').splitlines()
    samples = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    label = 'model="a \\"b\\"\\\\"'
    assert samples[f"taper_runs_total{{{label}}}"] == "7"
    assert samples[f'taper_run_seconds{{{label},quantile="0.95"}}'] == "0.75"
    assert samples[f"taper_frame_wait_seconds_total{{{label}}}"] == "0.25"
    assert samples[f"taper_runs_per_second{{{label}}}"] == "4.0"
    assert samples[f"taper_weights_version{{{label}}}"] == "2"
    assert samples[f"taper_packed_bytes{{{label}}}"] == "512"
    assert samples[f"taper_copied_bytes{{{label}}}"] == "256"
    assert samples[f"taper_large_page_bytes{{{label}}}"] == "128"
    helps = [line.split()[2] for line in lines if line.startswith("# HELP")]
    types = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert helps == types
    assert len(set(helps)) == len(samples) - 2
    assert stats.prometheus().splitlines()[2] == "taper_runs_total 7"
