"""Plans in which nodes compute sizes: right at first sight, whatever came before."""

import gc
import threading
import time

import numpy as np
import pytest

import taper_runtime
from measured_plans import measured_arrays, measured_plan, measured_result
from taper_runtime.base.checks import aligned
from taper_runtime.base.errors import InputError
from taper_runtime.executor.layouts import LAYOUTS, lay_out
from taper_runtime.executor.memory_planner import Slab
from taper_runtime.executor.segmented import _at
from taper_runtime.plan.liveness import LiveRange
from taper_runtime.plan.validate import validate

Planning = taper_runtime.SessionOptions.MemoryPlanning


def session(executor="compiled", planning=None, plan=None):
    options = taper_runtime.SessionOptions()
    if executor == "parallel":
        options.execution_mode, options.inter_op_num_threads = "parallel", 2
    else:
        options.executor = executor
    if planning is not None:
        options.memory_planning = planning
    return taper_runtime.InferenceSession(plan or measured_plan(), options)


def check(opened, arrays):
    for got, want in zip(opened.run(None, arrays), measured_result(arrays), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("executor", ["compiled", "parallel", "interpreted"])
def test_every_share(executor):
    validate(measured_plan())
    opened, rng = session(executor), np.random.default_rng(0)
    for n in (7, 64, 1, 0, 7):
        for share in (0.5, 0, 1, 0.1):
            check(opened, measured_arrays(rng, n, share))


@pytest.mark.parametrize("algorithm", LAYOUTS)
def test_the_planner_learns_how_large_tensors_become(algorithm):
    opened = session(planning=Planning(algorithm=algorithm, interval_s=1000))
    planner, rng = opened._default.executor._planner, np.random.default_rng(1)
    for _ in range(400):
        arrays = measured_arrays(rng, int(rng.integers(0, 65)), rng.random())
        check(opened, arrays)
        planner.replan()
    outgrown = planner.stats()["outgrown"]
    assert 0 < planner.stats()["plan_version"] <= outgrown
    check(opened, measured_arrays(rng, 64, 1))  # the largest there are
    planner.replan()
    outgrown = planner.stats()["outgrown"]
    for _ in range(100):
        check(opened, measured_arrays(rng, int(rng.integers(0, 65)), rng.random()))
    assert planner.stats()["outgrown"] == outgrown
    needed = planner.stats()["bytes_by_algorithm"]
    assert planner.stats()["slab_bytes"] == needed[algorithm]
    assert needed["best"] == min(needed.values())


def test_the_slab_is_what_runs_have_needed(monkeypatch):
    """At most 1.05 times the most bytes that were needed at one time, however sizes vary."""
    opened = session(planning=Planning(algorithm="greedy_by_size", interval_s=1000))
    planner, rng = opened._default.executor._planner, np.random.default_rng(7)
    sizes, needed = {}, 0
    take = Slab.array

    def noted(slab, name, shape, dtype):
        array = take(slab, name, shape, dtype)
        sizes[name] = aligned(array.nbytes)
        return array

    monkeypatch.setattr(Slab, "array", noted)
    runs = [(int(rng.integers(0, 65)), rng.random()) for _ in range(300)]
    for n, share in [*runs, (64, 1)]:
        sizes.clear()
        check(opened, measured_arrays(rng, n, share))
        lives = planner._lives
        last = max(death for _, death in lives.values())
        for step in range(last + 1):
            live = [name for name in sizes if lives[name][0] <= step <= lives[name][1]]
            needed = max(needed, sum(sizes[name] for name in live))
        planner.replan()
    assert 0 < planner.stats()["slab_bytes"] <= 1.05 * needed
    before = planner.stats()["outgrown"]
    for n, share in runs:
        check(opened, measured_arrays(rng, n, share))
    assert planner.stats()["outgrown"] == before


def test_runs_go_on_while_a_layout_is_made(monkeypatch):
    opened = session(planning=Planning(interval_s=1000))
    planner, rng = opened._default.executor._planner, np.random.default_rng(8)
    check(opened, measured_arrays(rng, 20))
    begun, end = threading.Event(), threading.Event()

    def slow(blocks, algorithm):
        begun.set()
        assert end.wait(60)
        return lay_out(blocks, algorithm)

    monkeypatch.setattr("taper_runtime.executor.memory_planner.lay_out", slow)
    thread = threading.Thread(target=planner.replan)
    thread.start()
    assert begun.wait(60)
    for n in (64, 20, 7):  # the first needs more than ever
        check(opened, measured_arrays(rng, n, 1))
    assert planner.layout.version == 0, "no layout so far"
    end.set()
    thread.join()
    assert planner.layout.version == 1


def test_without_planning_every_tensor_has_memory_of_its_own():
    opened, rng = session(planning=Planning(enabled=False)), np.random.default_rng(2)
    for n in (0, 5, 64):
        check(opened, measured_arrays(rng, n))
    opened._default.executor._planner.replan()
    stats = opened._default.executor._planner.stats()
    assert (stats["plan_version"], stats["slab_bytes"]) == (0, 0)


def planner_threads():
    return [t for t in threading.enumerate() if t.name == "taper_runtime memory planner"]


def layout_version(opened):
    return opened._default.executor._planner.layout.version


def test_the_planner_s_thread_ends_with_its_session():
    before = planner_threads()
    rng = np.random.default_rng(3)
    one, two = (session(planning=Planning(interval_s=0.01)) for _ in range(2))
    deadline = time.monotonic() + 60
    while not (layout_version(one) and layout_version(two)):
        check(one, measured_arrays(rng, 20))
        check(two, measured_arrays(rng, 30))
        assert time.monotonic() < deadline
    threads = [t for t in planner_threads() if t not in before]
    assert len(threads) == 2
    del one, two
    gc.collect()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("keep", [False, True])
def test_many_threads_while_the_layout_changes(keep):
    opened = session(planning=Planning(interval_s=0.001, deallocate_between_runs=not keep))
    errors = []

    def run(seed):
        rng = np.random.default_rng(seed)
        try:
            for _ in range(40):
                check(opened, measured_arrays(rng, int(rng.integers(0, 65)), rng.random()))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_a_size_out_of_range():
    plan = measured_plan()
    from taper_runtime.plan.specialize import with_ranges

    plan = with_ranges(plan, {**plan.sizes, "n": (5, 64), "positive": (0, 5)})
    opened, rng = session(plan=plan), np.random.default_rng(4)
    with pytest.raises(InputError) as caught:
        opened.run(None, measured_arrays(rng, 9, 1))
    assert str(caught.value) == (
        "node count (SEARCHSORTED) at model.py:1: the size positive that it computes: expected "
        "0 to 5, got 9"
    )
    check(opened, measured_arrays(rng, 9, 0.1))


def test_an_input_that_holds_a_size_and_has_gaps_is_read_as_its_copy():
    array = np.array([1, 99, 3, 99], np.int64)[::2]
    assert [_at(array, 0), _at(array, 8)] == [1, 3]
    assert _at(np.array([[1, 2], [3, 4]], np.int64).T, 8) == 3


def test_given_outputs():
    arrays = measured_arrays(np.random.default_rng(5), 12, 1)
    rows = np.empty((12, 3), np.float32)
    opened = session()
    got = opened.run(None, arrays, out={"rows": rows})
    assert got[0] is rows
    np.testing.assert_array_equal(rows, arrays["x"])
    with pytest.raises(InputError, match="expected shape"):
        opened.run(None, arrays, out={"rows": rows[1:]})


@pytest.mark.parametrize("algorithm", LAYOUTS)
def test_layouts(algorithm):
    """No two that are needed at one step overlap; nothing is smaller than what is live."""
    rng = np.random.default_rng(6)
    for count in (0, 1, 5, 40):
        births = rng.integers(0, 20, count)
        blocks = [LiveRange(b, b + rng.integers(0, 6), int(rng.integers(0, 5000))) for b in births]
        offsets, total = lay_out(blocks, algorithm)
        for i, (a, at) in enumerate(zip(blocks, offsets, strict=True)):
            assert at % 64 == 0
            assert at + a.nbytes <= total
            for b, other in zip(blocks[:i], offsets, strict=False):
                if a.birth <= b.death and b.birth <= a.death:
                    assert at + a.nbytes <= other or other + b.nbytes <= at


@pytest.mark.parametrize(
    ("planning", "words"),
    [
        ("best", "expected a SessionOptions.MemoryPlanning"),
        (Planning(algorithm="worst"), "expected one of bump"),
        (Planning(interval_s=0), "more than 0"),
        (Planning(enabled="yes"), "memory_planning.enabled"),
    ],
)
def test_bad_options(planning, words):
    with pytest.raises(InputError, match=words):
        taper_runtime.SessionOptions().memory_planning = planning
