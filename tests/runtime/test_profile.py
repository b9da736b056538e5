"""Test the machine's limits, the profile beside them, and the trace."""

import json
from pathlib import Path

import numpy as np
import pytest

from control_plans import N, branching, counting, cumulative
from measured_plans import measured_arrays, measured_plan
from plan_files import small_plan
from taper_runtime import InferenceSession, SessionOptions
from taper_runtime.base.errors import InputError
from taper_runtime.executor.compiled import CompiledExecutor
from taper_runtime.executor.executor import Settings
from taper_runtime.executor.sites import sites
from taper_runtime.machine.cost import traffic_ns
from taper_runtime.machine.limits import TYPICAL, MachineLimits, Memory
from taper_runtime.machine.measure import (
    describe_limits,
    limits_data,
    load_limits,
    measure_limits,
    save_limits,
)
from taper_runtime.native import _kernels
from taper_runtime.plan.plan import Placement, Plan, PlanNode, TensorSpec
from taper_runtime.plan.specialize import specialize
from taper_runtime.reports.profile import (
    describe_profile,
    least_ns,
    profile_data,
    profile_plan,
    save_trace,
)

LIMITS = MachineLimits(
    "avx2", 1, 100.0, 0.0, (Memory("L1", 1000, 50.0, 40.0), Memory("DRAM", 0, 10.0, 8.0))
)


def test_limits_of_this_machine(monkeypatch):
    sizes = {1: 1 << 14, 2: 1 << 16, 3: 1 << 18}
    monkeypatch.setattr(_kernels, "cache_bytes", sizes.get)
    limits = measure_limits(_kernels.available_isas(), [1, 2])
    assert [(x.isa, x.threads) for x in limits] == [
        (isa, threads) for isa in _kernels.available_isas() for threads in (1, 2)
    ]
    for item in limits:
        assert item.flops > 0
        assert [m.name for m in item.memory] == ["L1", "L2", "L3", "DRAM"]
        assert [m.size for m in item.memory[2:]] == [1 << 18, 0]
        assert item.memory[0].size == item.threads << 14, "every core has a cache of its own"
        assert all(m.read > 0 and m.copy > 0 for m in item.memory)
    assert all(item.isa in describe_limits(limits) for item in limits)


def test_a_cache_of_unknown_size_is_left_out(monkeypatch):
    monkeypatch.setattr(_kernels, "cache_bytes", {1: 1 << 14, 2: 0, 3: 0}.get)
    (limits,) = measure_limits(_kernels.available_isas()[:1], [1])
    assert [m.name for m in limits.memory] == ["L1", "DRAM"]


def test_limits_keep_their_file(tmp_path):
    save_limits([LIMITS._replace(threads=2), LIMITS], tmp_path / "machine.json")
    assert load_limits(tmp_path / "machine.json", "avx2", 1) == LIMITS
    with pytest.raises(InputError, match="avx512 x 1 threads, got avx2 x 2, avx2 x 1"):
        load_limits(tmp_path / "machine.json", "avx512", 1)
    for text in ("no json", '{"a": 1}', '[{"isa": "avx2"}]', "[1]"):
        (tmp_path / "machine.json").write_text(text)
        with pytest.raises(InputError, match="bench --machine"):
            load_limits(tmp_path / "machine.json", "avx2", 1)


@pytest.mark.parametrize(
    ("moved", "ns"),
    [
        ((0, 400, 400, 5000), 800 / 40),  # a copy inside L1
        ((0, 400, 0, 5000), 400 / 50),  # read only
        ((0, 4000, 1000, 5000), 3000 / 10 + 2000 / 8),  # beyond L1
        ((400, 0, 0, 900), 400 / 50),  # weights of a run that fits L1
        ((400, 0, 0, 5000), 400 / 10),  # weights that every run evicts
    ],
)
def test_least_traffic(moved, ns):
    assert traffic_ns(LIMITS, *moved) == pytest.approx(ns)


def test_only_what_is_measured_is_written():
    data = limits_data(TYPICAL)
    assert MachineLimits(**{**data, "memory": TYPICAL.memory}) == TYPICAL._replace(
        sum_steps=0,
        scratch_ns=0.0,
        spill=1.0,
        node_ns=0.0,
        worker_ns=0,
        reached=1.0,
        function_ns=0.0,
        row_ns=0.0,
        load_steps=0.0,
    )


def test_least_time_of_a_node_counts_weights_apart():
    plan = small_plan()
    # x 32 bytes and h 64 near, w 128 where the whole run fits: all in L1, whatever the scratch.
    flops = 2 * 2 * 4 * 8
    large = LIMITS.memory[0]._replace(size=1 << 20)
    times = least_ns(plan, LIMITS._replace(memory=(large, *LIMITS.memory[1:])))
    assert len(times) == len([node for node in plan.nodes if plan.is_executed(node)])
    assert times[0] == max(flops / 100, 128 / 50 + 96 / 40)


@pytest.mark.parametrize("threads", [1, 2])
def test_profile_lists_every_executed_node(threads, tmp_path, monkeypatch):
    plan = small_plan()
    gamma = PlanNode("LGAMMA", ("s",), ("t",))  # has no native kernel
    first = plan.nodes[0]._replace(source="model.py:7 in encoder.0.forward: h = x @ w")
    plan = plan._replace(nodes=(first, *plan.nodes[1:3], gamma, *plan.nodes[4:]))
    monkeypatch.setattr("taper_runtime.machine.cost.threads_worth", lambda *a: threads)
    feed = {"x": np.ones((2, 4), np.float32)}
    profile = profile_plan(plan, feed, runs=3, threads=threads)
    assert [site.node.op for site in profile.sites] == ["MATMUL", "RELU", "LGAMMA", "ADD"]
    assert [kernel.name for _, kernel in profile.steps][2] == "numpy"
    assert all(ns > 0 for ns in profile.ns)
    calm = profile._replace(ns=[1e3] * 4, medians=[1e3] * 4)  # no word on a busy machine
    text = describe_profile(calm, LIMITS)
    totals = ["ops", "MATMUL", "RELU", "LGAMMA", "ADD", "modules", "encoder", "encoder.0"]
    assert len(text.splitlines()) == 1 + 4 + len(totals) + 1
    assert [line.split()[-1] for line in text.splitlines()[5:-1]] == totals
    assert text.count("      1.0  25.0%     1  ") == 4 + 2
    assert "f32_matmul in_place  h = MATMUL" in text
    data = profile_data(profile, LIMITS)
    assert [(node["kernel"], node["variant"]) for node in data["nodes"]] == [
        ("f32_matmul", "in_place"), ("f32_relu", None), ("numpy", None), ("f32_add", None),
    ]  # fmt: skip
    assert "model.py:7" in text

    save_trace(profile, tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    events = trace["traceEvents"]
    assert {e["name"] for e in events} == {"h = MATMUL", "r = RELU", "t = LGAMMA", "y = ADD"}
    assert min(e["ts"] for e in events) == 0
    assert all(e["dur"] > 0 and e["ph"] == "X" and e["tid"] < threads for e in events)
    by_node = [
        max(e["ts"] + e["dur"] for e in events if e["cat"] == op)
        for op in ("MATMUL", "RELU", "LGAMMA", "ADD")
    ]
    assert by_node == sorted(by_node), "one after the other"


def test_spans_name_the_workers(monkeypatch):
    """A node with several tasks, worth two threads, is seen at both, unless one comes too late."""
    shapes = {"a": (64, 512), "b": (512, 1024), "c": (64, 1024)}
    roles = {"a": "input", "b": "input", "c": "output"}
    plan = Plan(
        nodes=(PlanNode("MATMUL", ("a", "b"), ("c",)),),
        tensors={n: TensorSpec(n, "float32", shapes[n], roles[n]) for n in shapes},
        placements={n: Placement(n, 0, (shape[1], 1)) for n, shape in shapes.items()},
        inputs=("a", "b"),
        outputs=("c",),
        constants={},
    )
    monkeypatch.setattr("taper_runtime.machine.cost.threads_worth", lambda *a: 2)
    executor = CompiledExecutor.compile(plan, Settings(threads=2))
    feed = [np.ones(shapes[n], np.float32) for n in "ab"]
    for _ in range(2000):
        outputs, spans = executor.profile(feed)
        np.testing.assert_array_equal(outputs[0], 512)
        ((first, second),) = spans
        assert 0 < first[0] < first[1]
        if second[2]:
            break
    assert 0 < second[0] < second[1]


def by_name(profile):
    rows = profile_data(profile, LIMITS)["nodes"]
    return {row["node"]: row for row in rows}


def cumulative_feed(rows):
    rng = np.random.default_rng(0)
    shapes = {"h0": (N,), "t0": (N // 4,), "xs": (rows, N)}
    return {name: rng.random(shape, np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("threads", [1, 2])
def test_what_is_in_loops_counts_as_often_as_it_ran(threads):
    profile = profile_plan(cumulative(), cumulative_feed(5), runs=2, threads=threads)
    rows = by_name(profile)
    assert {name: (row["depth"], row["times"]) for name, row in rows.items()} == {
        "ho": (0, 1),
        "a": (1, 5),
        "h1": (1, 5),
        "z": (1, 5),
        "t1": (1, 5),
        "s1": (2, 20),
    }
    assert rows["h1"]["flops"] == 5 * N
    assert rows["s1"]["flops"] == 20 * N // 4
    assert rows["t1"]["flops"] == rows["s1"]["flops"]
    assert rows["ho"]["flops"] == sum(rows[name]["flops"] for name in ("a", "h1", "z", "t1"))
    inside = sum(rows[name]["us"] for name in ("a", "h1", "z", "t1"))
    assert 0 < inside < rows["ho"]["us"] * 1.001
    assert rows["ho"]["share"] == 1, "the run's time is that of the outermost nodes"
    text = describe_profile(profile, LIMITS)
    assert "    any_add  s1 = ADD (20 times)" in text or "    f32_add  s1 = ADD (20 times)" in text


def test_work_of_a_loop_follows_from_sizes():
    plan = specialize(cumulative(), {"rows": 7})
    names = [site.node.output for site in sites(plan)]
    least = dict(zip(names, least_ns(plan, LIMITS), strict=True))
    assert least["ho"] == pytest.approx(sum(least[name] for name in ("a", "h1", "z", "t1")))
    half = specialize(cumulative(), {"rows": 14})
    assert least_ns(half, LIMITS._replace(memory=LIMITS.memory[1:]))[0] == pytest.approx(
        2 * least_ns(plan, LIMITS._replace(memory=LIMITS.memory[1:]))[0]
    )


def test_a_branch_that_is_not_taken_takes_no_time():
    feed = {"p": np.array(False), "x": np.ones(3, np.float32)}
    rows = by_name(profile_plan(branching(), feed, runs=2, threads=1))
    assert [rows[name]["times"] for name in ("b", "d", "e")] == [0, 1, 1]
    assert rows["b"]["us"] == rows["b"]["flops"] == 0
    assert rows["y"]["flops"] == 6


def test_a_loop_on_data_and_the_events_of_its_trace(tmp_path):
    feed = {"i0": np.array(0), "x0": np.ones(2, np.float32), "top": np.array(4)}
    profile = profile_plan(counting(), feed, runs=2, threads=1)
    rows = by_name(profile)
    assert [rows[name]["times"] for name in ("more", "i1", "g", "x1")] == [5, 4, 4, 4]
    assert rows["g"]["kernel"] == "numpy"
    save_trace(profile, tmp_path / "trace.json")
    (event,) = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert event["name"] == "io = WHILE"
    assert event["args"]["inside"].keys() == {
        "more = LT",
        "i1 = ADD",
        "row = INDEX_SELECT",
        "g = LGAMMA",
        "x1 = ADD",
    }
    assert event["args"]["flops"] == rows["io"]["flops"] > 0


def test_sizes_that_nodes_compute_are_those_of_the_run():
    feed = measured_arrays(np.random.default_rng(0), 40)
    profile = profile_plan(measured_plan(), feed, runs=2, threads=1)
    assert profile.sizes == {
        "n": 40,
        "positive": feed["first"].sum(),
        "large": (feed["first"] & feed["second"]).sum(),
    }
    assert by_name(profile)["double"]["flops"] == 3 * feed["first"].sum()


def test_a_session_records_plans_of_segments(tmp_path):
    options = SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "p")
    session = InferenceSession(measured_plan(), options)
    rng = np.random.default_rng(0)
    for n in (40, 7):
        session.run(None, measured_arrays(rng, n))
    events = json.loads(Path(session.end_profiling()).read_text())["traceEvents"]
    executed = [node for node in measured_plan().nodes if measured_plan().is_executed(node)]
    assert sum(event["cat"] == "session" for event in events) == 2
    assert sum(event["cat"] == "MUL" for event in events) == 2
    assert len(events) <= 2 * (1 + len(executed))
