"""Many sequences over one session: a state each, one after the other, at once, and in a batch."""

import copy
import pickle
import threading
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import taper_runtime
from plan_files import small_plan
from stateful_plans import LENGTH, WIDTH, accumulating_plan, sequence_plan
from taper_frontend.compiler.planning import join_plans
from taper_runtime import InferenceSession, InputError, OrtValue, RunOptions, SessionOptions
from taper_runtime.base.errors import PlanFormatError, RunTimeoutError
from taper_runtime.file.reader import loads
from taper_runtime.plan.specialize import with_ranges
from taper_runtime.reports.profile import profile_plan


def session_of(plan, executor="compiled", **options):
    made = SessionOptions()
    made.executor = executor
    for name, value in options.items():
        setattr(made, name, value)
    return InferenceSession(plan, made)


def feed(rows, step, seed=0):
    rng = np.random.default_rng([seed, step])
    x = rng.standard_normal((16, 1, WIDTH)).astype(np.float32)[list(rows)]
    return {"x": x, "at": np.array([step])}


def values(state):
    return {name: state.get(name) for name in state.names}


def assert_equal(found, wanted):
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)


def ends(results):
    return {str(i): array for i, array in enumerate(results)}


@pytest.mark.parametrize("executor", ["compiled", "interpreted"])
def test_two_sequences_over_one_session_are_those_of_two_sessions(executor):
    plan = sequence_plan()
    assert plan.is_in_place("cache")
    assert not plan.is_in_place("total")
    alone = [session_of(plan, executor) for _ in range(2)]
    session = session_of(plan, executor)
    states = [session.new_state() for _ in range(2)]
    for step in range(LENGTH - 1):
        for row, (other, state) in enumerate(zip(alone, states, strict=True)):
            wanted = other.run(None, feed([row], step))
            assert_equal(ends(session.run(None, feed([row], step), state=state)), ends(wanted))
            assert_equal(values(state), {n: other.get_state(n) for n in other.state_names})
    assert not session.get_state("cache").any(), "the session's own state stays as it was"


@pytest.mark.parametrize("executor", ["compiled", "interpreted"])
def test_a_batch_of_states_is_as_many_runs(executor):
    """The members change: the same again, another order, fewer, and single runs between."""
    session = session_of(sequence_plan(), executor)
    one, many = ([session.new_state() for _ in range(4)] for _ in range(2))
    batches = [(0, 1, 2), (0, 1, 2), (2, 0, 1), (2, 0, 1), (3, 1), (0,), (3, 1, 0, 2), (0, 1, 2)]
    for number, rows in enumerate(batches):
        step = number % (LENGTH - 1)
        if number == 4:
            for states in (one, many):
                session.run(None, feed([2], step, 7), state=states[2])
                states[0].reset("total")
        wanted = [session.run(None, feed([row], step), state=one[row]) for row in rows]
        got = session.run(None, feed(rows, step), state=[many[row] for row in rows])
        for row in range(len(rows)):
            np.testing.assert_array_equal(got[0][[row]], wanted[row][0])
            np.testing.assert_array_equal(got[1][:, [row]], wanted[row][1])
        for mine, other in zip(many, one, strict=True):
            assert_equal(values(mine), values(other))


def test_what_a_batch_leaves_is_no_output():
    session = session_of(sequence_plan())
    states = [session.new_state() for _ in range(2)]
    results = session.run(None, feed([0, 1], 0), state=states)
    before = [values(state) for state in states]
    for array in results:
        array[...] = np.nan
    held = states[0].copy()
    held["cache"][...] = np.nan
    for state, wanted in zip(states, before, strict=True):
        assert_equal(values(state), wanted)


@pytest.mark.parametrize("executor", ["compiled", "interpreted"])
@pytest.mark.parametrize("prepared", [False, True])
def test_a_batch_that_fails_leaves_every_state(executor, prepared):
    session = session_of(sequence_plan(), executor)
    states = [session.new_state() for _ in range(3)]
    for row, state in enumerate(states):
        session.run(None, feed([row], 0), state=state)
    if prepared:  # rows side by side already, in the memory that the run writes to
        session.run(None, feed(range(3), 1), state=states)
    before = [values(state) for state in states]
    with pytest.raises(InputError, match="INDEX_SELECT"):
        session.run(None, feed(range(3), LENGTH - 1), state=states)
    options = RunOptions()
    options.timeout_s = 1e-9
    with pytest.raises(RunTimeoutError):
        session.run(None, feed(range(3), 2), options, state=states)
    for state, wanted in zip(states, before, strict=True):
        assert_equal(values(state), wanted)
    session.run(None, feed(range(3), 2), state=states)


def test_a_batch_that_waits_in_vain_gives_back_the_turns_that_it_has():
    session = session_of(sequence_plan())
    states = [session.new_state() for _ in range(3)]
    options = RunOptions()
    options.timeout_s = 0.05
    for held in states:
        with held.take(None):
            before = [state.rows for state in states]
            with pytest.raises(RunTimeoutError):
                session.run(None, feed(range(3), 0), options, state=states)
        assert before == [1, 1, 1]
        for state in states:
            assert not state.get("cache").any()
    session.run(None, feed(range(3), 0), options, state=states)


def test_runs_over_one_state_take_turns_and_those_over_two_do_not():
    session = session_of(sequence_plan())
    first, second = session.new_state(), session.new_state()
    done = threading.Event()
    with first.take(None):  # as a run over it has
        session.run(None, feed([1], 0), state=second)
        thread = threading.Thread(
            target=lambda: (session.run(None, feed([0], 0), state=first), done.set())
        )
        thread.start()
        assert not done.wait(0.05)
    thread.join()
    assert first.get("cache").any()


def test_threads_over_states_and_batches_do_not_meet():
    """Each row's steps commute, so the sums are known; batches take turns in any order."""
    plan = sequence_plan()
    session = session_of(plan, max_concurrent_runs=4)
    states = [session.new_state() for _ in range(4)]
    ways = [(0, 1, 2), (2, 1, 0), (3, 0), (1, 3), (2,), (0,)]
    failed = []

    def work(rows):
        try:
            for _ in range(40):
                x = np.zeros((len(rows), 1, WIDTH), np.float32)
                given = [states[row] for row in rows]
                given = given[0] if len(rows) == 1 else given
                session.run(None, {"x": x + 9, "at": np.array([0])}, state=given)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(rows,)) for rows in ways]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    one = np.tanh(np.float32(9))
    for row, state in enumerate(states):
        runs = 40 * sum(row in rows for rows in ways)
        np.testing.assert_allclose(state.get("total"), np.full((1, WIDTH), runs * one), rtol=1e-5)


def test_every_way_to_run_takes_a_state():
    session = session_of(sequence_plan())
    states = [session.new_state() for _ in range(5)]
    done = threading.Event()
    given = feed([3], 0)
    session.run(None, given, state=states[0])
    session.run_with_ort_values(
        None, {name: OrtValue(array) for name, array in given.items()}, state=states[1]
    )
    binding = session.io_binding()
    for name, array in given.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output(session.get_outputs()[0].name)
    session.run_with_iobinding(binding, state=states[2])
    session.run_async(None, given, lambda *result: done.set(), None, state=states[3])
    assert done.wait(60)
    session.run(None, {"x": np.repeat(given["x"], 1, 0), "at": given["at"]}, state=states[4:])
    for state in states[1:]:
        assert_equal(values(state), values(states[0]))
    assert states[0].get("cache").any()


def test_states_are_recorded_and_profiled(tmp_path):
    session = session_of(
        sequence_plan(), enable_profiling=True, profile_file_prefix=str(tmp_path / "trace")
    )
    states = [session.new_state() for _ in range(2)]
    session.run(None, feed([0, 1], 0), state=states)
    assert states[1].get("cache").any()
    assert "WRITE" in Path(session.end_profiling()).read_text()


def test_a_profile_begins_with_as_many_rows_as_the_inputs_have():
    profile = profile_plan(sequence_plan(), feed([0, 1, 2], 0), runs=1, threads=1)
    assert profile.plan.tensors["means"].shape == (2, 3)
    assert profile.total > 0


def test_copy_restore_reset():
    session = session_of(sequence_plan())
    state, other = session.new_state(), session.new_state()
    session.run(None, feed([0], 0), state=state)
    other.restore(state.copy())
    for step in (1, 2):
        wanted = session.run(None, feed([5], step), state=state)
        assert_equal(ends(session.run(None, feed([5], step), state=other)), ends(wanted))
    other.reset()
    assert_equal(values(other), values(session.new_state()))
    assert state.get("total").any()
    state.set("means", np.ones((2, 1), np.float32))
    with pytest.raises(InputError, match=r"expected shape \(2, 1\)"):
        state.set("means", np.ones((2, 2), np.float32))
    for wrong in (None, {}, {**state.copy(), "total": np.zeros((2, WIDTH), np.float32)}):
        with pytest.raises(InputError):
            state.restore(wrong)
    with pytest.raises(InputError, match="unknown state"):
        state.get("x")


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_state_is_not_copied_unseen(again):
    state = session_of(sequence_plan()).new_state()
    with pytest.raises(InputError, match="a State cannot be copied or pickled: take the values"):
        again(state)


def test_a_new_state_begins_with_the_first_values():
    plan = accumulating_plan(4, 3)
    session = session_of(plan)
    session.run(None, {"x": np.ones((2, 3), np.float32), "at": np.array([0, 1])})
    state = session.new_state()
    np.testing.assert_array_equal(state.get("total"), np.ones(3))
    np.testing.assert_array_equal(state.get("cache"), np.zeros((4, 3)))


def test_entries_share_the_states_that_runs_are_given():
    plan = sequence_plan()
    both = session_of(join_plans({"first": plan, "second": plan}))
    alone = session_of(plan)
    states, wanted = ([each.new_state() for _ in range(2)] for each in (both, alone))
    for step, entry in enumerate(("second", "first", "second")):
        both.run(None, feed([0, 1], step), state=states, entry=entry)
        alone.run(None, feed([0, 1], step), state=wanted)
    for state, other in zip(states, wanted, strict=True):
        assert_equal(values(state), values(other))
    assert not both.get_state("total").any()


def test_random_numbers_are_the_states_own():
    plan = sequence_plan(draws=True)
    session, other = session_of(plan, seed=3), session_of(plan, seed=3)
    states = session.new_state(), session.new_state()
    for step in range(3):
        wanted = other.run(None, feed([0], step))
        for state in states:
            assert_equal(ends(session.run(None, feed([0], step), state=state)), ends(wanted))
    with pytest.raises(InputError, match=r"draw from one generator; RunOptions\.seed"):
        session.run(None, feed([0, 1], 4), state=[*states])
    options = RunOptions()
    options.seed = 5
    first = session.run(None, feed([0, 1], 4), options, state=[*states])
    for state in states:
        state.restore(session.new_state().copy())
    unseeded = session_of(plan)
    pair = [unseeded.new_state() for _ in range(2)]
    assert np.isfinite(unseeded.run(None, feed([0, 1], 0), state=pair)[0]).all()
    assert first[0].shape == (2, WIDTH)


def refused(session, rows, state, match):
    errors = session.stats().errors
    with pytest.raises(InputError, match=match):
        session.run(None, feed(rows, 0), state=state)
    assert session.stats().errors == errors + 1


def test_wrong_states_are_refused():
    session, other = session_of(sequence_plan()), session_of(sequence_plan())
    a, b = session.new_state(), session.new_state()
    refused(session, [0], other.new_state(), "of this session")
    refused(session, [0], "a", "expected a State or a list of them, got str")
    refused(session, [0], [a, None], "expected a State or a list of them, got NoneType")
    refused(session, [0], {"cache": a}, "got dict")
    refused(session, [0], [], "one or more states, each once, got 0")
    refused(session, [0, 1], [a, a], "one or more states, each once, got 2")
    refused(session, [0, 1, 2], [a, b], r"expected 3 states.* dimension 0 of input 'x', got 2")
    refused(session, [0, 1, 2], a, r"expected 3 states.*, got 1")
    refused(session, [0, 1], None, r"expected 2 states.*, got 1")
    assert not a.get("cache").any()
    with pytest.raises(InputError, match="no state"):
        InferenceSession(small_plan()).new_state()
    with pytest.raises(InputError, match="no state"):
        InferenceSession(small_plan()).run(None, dict(small_plan().samples), state=a)


@pytest.mark.parametrize(
    ("plan", "name", "shape"),
    [(sequence_plan(3), "cache", r"\(3, 6, 8\)"), (sequence_plan(shared=True), "steps", r"\(1,\)")],
    ids=["fixed", "shared"],
)
def test_states_without_a_dim_for_rows_are_no_batch(plan, name, shape):
    session = session_of(plan)
    states = [session.new_state() for _ in range(3)]
    refused(session, range(3), states, f"state '{name}' of shape {shape} has no dim that varies")
    if not plan.sizes:
        session.run(None, feed(range(3), 0), state=states[0])
        assert states[0].get("cache").shape == (3, LENGTH, WIDTH)


def edited(plan, name, shape):
    after = plan.states[name]
    specs = {each: plan.tensors[each]._replace(shape=shape) for each in (name, after)}
    return plan._replace(tensors={**plan.tensors, **specs})


def test_a_file_keeps_the_batch_of_states_and_a_wrong_one_is_refused(tmp_path):
    plan = sequence_plan()
    plan.save(tmp_path / "m.taper")
    data = (tmp_path / "m.taper").read_bytes()
    session = InferenceSession(data)
    states = [session.new_state() for _ in range(2)]
    session.run(None, feed([0, 1], 0), state=states)
    assert loads(data).fingerprint() == plan.fingerprint()
    rows = plan.tensors["cache"].shape[0]
    for shape in ((2 * rows, WIDTH), (rows, rows), (rows + 1, WIDTH)):
        with pytest.raises(PlanFormatError, match="at most one dim that varies"):
            InferenceSession(edited(plan, "total", shape))
    with pytest.raises(PlanFormatError, match="at most one dim that varies"):
        InferenceSession(with_ranges(plan, {"rows": (2, 16)}))


def test_state_is_public():
    session = session_of(sequence_plan())
    assert type(session.new_state()) is taper_runtime.State


def test_states_join_and_leave_batches_at_random():
    """Whatever is done to them alone or together, they are as states that only run alone."""
    rng = np.random.default_rng(0)
    session = InferenceSession(sequence_plan())
    mixed, alone = ([session.new_state() for _ in range(4)] for _ in range(2))
    rows, kept = [0], alone[0].copy()

    def do(what, state, values):
        if what == "set":
            state.set("means", values)
        elif what == "reset":
            state.reset()
        elif what == "restore":
            state.restore(kept)
        elif what == "run":
            feed = {"x": np.broadcast_to(values[:1, None], (1, 1, WIDTH)), "at": np.array([2])}
            session.run(None, feed, state=state)

    for _ in range(150):
        what = rng.choice(["batch"] * 6 + ["fails", "get", "set", "reset", "restore", "run"])
        if what in ("batch", "fails"):
            if rng.random() < 0.4:  # else the same ones as before
                rows = rng.permutation(4)[: rng.integers(1, 5)].tolist()
            x = rng.standard_normal((len(rows), 1, WIDTH)).astype(np.float32)
            at = np.array([LENGTH - 1 if what == "fails" else rng.integers(LENGTH - 1)])
            runs = [({"x": x, "at": at}, [mixed[row] for row in rows])]
            runs += [({"x": x[i : i + 1], "at": at}, alone[row]) for i, row in enumerate(rows)]
            for feed, state in runs:
                with pytest.raises(InputError) if what == "fails" else nullcontext():
                    session.run(None, feed, state=state)
        else:
            row, values = rng.integers(4), rng.standard_normal((2, 1)).astype(np.float32)
            do(what, mixed[row], values)
            do(what, alone[row], values)
            kept = alone[row].copy()
        for name in mixed[0].names if what != "batch" else ():
            row = rng.integers(4)
            np.testing.assert_allclose(mixed[row].get(name), alone[row].get(name), rtol=1e-5)
    for one, other in zip(mixed, alone, strict=True):
        for name, array in one.copy().items():
            np.testing.assert_allclose(array, other.get(name), rtol=1e-5)
