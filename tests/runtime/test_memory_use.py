"""Memory of a run: the executor's layout of the arena on marked memory, and its figures."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control_plans import N, cumulative
from plan_files import small_plan
from plan_oracle import Machine
from plan_strategies import plans
from sized_plans import sized_plan
from taper_runtime import InferenceSession, OptionError, SessionOptions
from taper_runtime.base.errors import InputError
from taper_runtime.base.option_values import MemoryPlanning
from taper_runtime.executor.executor import Settings
from taper_runtime.executor.memory_use import memory_use
from taper_runtime.executor.program import arena_ranges, make_runner
from taper_runtime.executor.sites import executed_nodes
from taper_runtime.plan.specialize import specialize
from taper_runtime.reports.notebook import plan_html
from taper_runtime.reports.report import describe_plan, plan_data

APART = MemoryPlanning(enabled=False)


@settings(max_examples=120, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(plan=plans())
def test_the_executors_layout_keeps_what_is_read_later(plan):
    _, offsets, nbytes = make_runner(plan).arena()
    roots = arena_ranges(plan, executed_nodes(plan))
    Machine(plan, (dict(zip(roots, offsets, strict=False)), nbytes)).run()


def test_figures_of_a_small_plan():
    """h in place, of 64 bytes, until t, of 32, is made of it; beside them kernels' scratch."""
    memory = memory_use(small_plan())
    assert memory.intermediates == 64 + 64 + 32
    assert memory.weights == 128 + 32 + 4
    assert memory.live[1] == memory.live[3] == 64
    assert memory.lower_bound == max(memory.live) <= memory.arena
    assert not memory.sizes


def test_sizes_are_the_samples_unless_given():
    plan = sized_plan()
    assert memory_use(plan).sizes == {"B": 2, "S": 3}
    assert memory_use(plan, {"B": 4, "S": 3}).intermediates == 2 * memory_use(plan).intermediates
    assert memory_use(plan._replace(samples={})).sizes == {"B": 1, "S": 2}


def test_showing_a_plan_prepares_no_kernel_unless_asked(monkeypatch):
    made = []

    def make(*arguments):
        made.append(make_runner(*arguments))
        return made[-1]

    def kinds(show):
        made.clear()
        show(small_plan())
        return {each.kind for runner in made for each in runner.selections()}

    monkeypatch.setattr("taper_runtime.executor.memory_use.make_runner", make)
    for show in (str, repr, plan_html, describe_plan, plan_data):
        assert kinds(show) == {"numpy"}
    assert "native" in kinds(lambda plan: describe_plan(plan, kernels=True))
    assert "native" in kinds(lambda plan: plan_data(plan, kernels=True))


def test_without_kernels_the_arena_has_no_scratch():
    memory, without = memory_use(small_plan()), memory_use(small_plan(), kernels=False)
    assert without.arena <= memory.arena
    assert without[2:] == memory[2:]
    assert " without scratch " in str(small_plan())
    assert "scratch" not in describe_plan(small_plan(), kernels=True)


def planned(enabled):
    options = SessionOptions()
    options.memory_planning = SessionOptions.MemoryPlanning(enabled=enabled)
    return options


@settings(max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(plan=plans(), at_once=st.sampled_from((1, 4)))
def test_without_planning_no_two_roots_share_memory(plan, at_once):
    nodes = executed_nodes(plan)
    runner = make_runner(plan, Settings(nodes_at_once=at_once, planning=APART))
    ranges, offsets, nbytes = runner.arena()
    count = len(arena_ranges(plan, nodes))
    taken = zip(ranges[:count], offsets, strict=False)
    places = sorted((at, at + n) for (_, _, n), at in taken if n)
    for (_, end), (begin, _) in pairwise(places):
        assert end <= begin
    assert nbytes >= make_runner(plan, Settings(nodes_at_once=at_once)).arena()[2]


def test_planning_changes_memory_and_no_bit():
    feed = {"h0": np.ones(N, np.float32), "t0": np.ones(N // 4, np.float32)}
    feed["xs"] = np.random.default_rng(0).random((5, N), np.float32)
    results = []
    for enabled in (True, False):
        session = InferenceSession(cumulative(), planned(enabled))
        results.append(session.run(None, feed))
    for got, want in zip(*results, strict=True):
        np.testing.assert_array_equal(got, want)
    shared, own = (
        make_runner(cumulative(), Settings(planning=planning)).arena()[2]
        for planning in (MemoryPlanning(), APART)
    )
    assert shared < own


def budgeted(nbytes, **others):
    options = SessionOptions()
    options.memory_budget, options.intra_op_num_threads = nbytes, 1
    for name, value in others.items():
        setattr(options, name, value)
    return options


def test_a_session_refuses_a_plan_beyond_its_budget():
    plan = small_plan()
    need = memory_use(plan).arena
    InferenceSession(plan, budgeted(need))
    text = f"expected a run of at most {need - 1} bytes, got one that needs {need} on 1 threads"
    with pytest.raises(OptionError, match=text):
        InferenceSession(plan, budgeted(need - 1))


def test_a_run_refuses_sizes_beyond_the_budget():
    plan = sized_plan()
    few, many = (memory_use(plan, {"B": b, "S": 4}).arena for b in (1, 8))
    assert few < many
    session = InferenceSession(plan, budgeted(few))

    def run(batch):
        tensors = specialize(plan, {"B": batch, "S": 4}).tensors
        specs = [tensors[name] for name in plan.inputs]
        feeds = {spec.name: np.ones(spec.shape, spec.dtype) for spec in specs}
        return session.run(None, feeds)

    first = run(1)
    with pytest.raises(OptionError, match=f"got one that needs {many} on 1 threads, for inputs of"):
        run(8)
    assert np.array_equal(run(1)[0], first[0])


@pytest.mark.parametrize("wrong", [0, -1, 1.0, True, "8", 1 << 63])
def test_budgets_of_sessions_that_are_none(wrong):
    with pytest.raises(InputError, match="memory_budget: expected bytes, an int from 1"):
        SessionOptions().memory_budget = wrong


def test_a_budget_needs_memory_that_is_known():
    with pytest.raises(OptionError, match=r"memory_budget: .* got the interpreted executor"):
        InferenceSession(small_plan(), budgeted(1 << 20, executor="interpreted"))
    assert budgeted(5).memory_budget == 5
