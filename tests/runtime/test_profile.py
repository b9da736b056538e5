"""The machine's limits, the profile held against them, the trace."""

import json

import numpy as np
import pytest

from plan_files import small_plan
from taper_runtime.errors import InputError
from taper_runtime.executor import _kernels
from taper_runtime.executor.compiled import CompiledExecutor
from taper_runtime.machine.cost import traffic_ns
from taper_runtime.machine.limits import TYPICAL, Limits, Memory
from taper_runtime.machine.measure import (
    describe_limits,
    limits_data,
    load_limits,
    measure_limits,
    save_limits,
)
from taper_runtime.plan.plan import Placement, Plan, PlanNode, TensorSpec
from taper_runtime.profile import (
    describe_profile,
    least_ns,
    profile_plan,
    save_trace,
)

LIMITS = Limits(
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
    assert Limits(**{**data, "memory": TYPICAL.memory}) == TYPICAL._replace(
        sum_steps=0, scratch_ns=0.0, node_ns=0.0, worker_ns=0
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
    plan = plan._replace(nodes=(*plan.nodes[:3], gamma, *plan.nodes[4:]))
    monkeypatch.setattr("taper_runtime.machine.cost.threads_worth", lambda *a: threads)
    feed = {"x": np.ones((2, 4), np.float32)}
    profile = profile_plan(plan, feed, runs=3, threads=threads)
    assert [node.op for node, _ in profile.steps] == ["MATMUL", "RELU", "LGAMMA", "ADD"]
    assert [kernel for _, kernel in profile.steps][2] == "numpy"
    assert all(ns > 0 for ns in profile.ns)
    text = describe_profile(profile, LIMITS)
    assert len(text.splitlines()) == 1 + 4 + 1
    assert "f32_matmul" in text
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
    """A node with several tasks, worth two threads, is seen at both."""
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
    executor = CompiledExecutor.compile(plan, threads=2)
    outputs, spans = executor.profile([np.ones(shapes[n], np.float32) for n in "ab"])
    np.testing.assert_array_equal(outputs[0], 512)
    ((first, second),) = spans
    for begin, end in (first, second):
        assert 0 < begin < end
