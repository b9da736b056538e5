"""The machine's limits, the profile held against them, the trace."""

import json

import numpy as np
import pytest

from plan_files import small_plan
from taper_runtime.errors import InputError
from taper_runtime.executor import _native
from taper_runtime.machine import (
    Limits,
    Memory,
    describe_limits,
    load_limits,
    measure_limits,
    save_limits,
)
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
    monkeypatch.setattr(_native, "cache_bytes", sizes.get)
    limits = measure_limits(_native.available_isas(), [1, 2])
    assert [(x.isa, x.threads) for x in limits] == [
        (isa, threads) for isa in _native.available_isas() for threads in (1, 2)
    ]
    for item in limits:
        assert item.flops > 0
        assert [m.name for m in item.memory] == ["L1", "L2", "L3", "DRAM"]
        assert [m.size for m in item.memory[2:]] == [1 << 18, 0]
        assert item.memory[0].size == item.threads << 14, "every core has a cache of its own"
        assert all(m.read > 0 and m.copy > 0 for m in item.memory)
    assert all(item.isa in describe_limits(limits) for item in limits)


def test_a_cache_of_unknown_size_is_left_out(monkeypatch):
    monkeypatch.setattr(_native, "cache_bytes", {1: 1 << 14, 2: 0, 3: 0}.get)
    (limits,) = measure_limits(_native.available_isas()[:1], [1])
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
    ("work", "ns"),
    [
        ((5000, 0, 100, 100, 500), 50.0),  # arithmetic: 5000 / 100
        ((0, 0, 400, 400, 5000), 800 / 40),  # a copy inside L1
        ((0, 0, 400, 0, 5000), 400 / 50),  # read only
        ((0, 0, 4000, 1000, 5000), 3000 / 10 + 2000 / 8),  # beyond L1
        ((0, 400, 0, 0, 900), 400 / 50),  # weights of a run that fits L1
        ((0, 400, 0, 0, 5000), 400 / 10),  # weights that every run evicts
    ],
)
def test_roofline(work, ns):
    assert LIMITS.least_ns(*work) == pytest.approx(ns)


def test_least_time_of_a_node_counts_weights_apart():
    plan = small_plan()
    # x 32 bytes and h 64 near, w 128 where the whole run fits: all in L1 here.
    flops = 2 * 2 * 4 * 8
    times = least_ns(plan, LIMITS)
    assert len(times) == len([node for node in plan.nodes if plan.is_executed(node)])
    assert times[0] == max(flops / 100, 128 / 50 + 96 / 40)


@pytest.mark.parametrize("threads", [1, 2])
def test_profile_lists_every_executed_node(threads, tmp_path, monkeypatch):
    plan = small_plan()
    prepare = _native.prepare
    monkeypatch.setattr(
        _native, "prepare", lambda op, *a: None if op.name == "WHERE" else prepare(op, *a)
    )
    monkeypatch.setattr("taper_runtime.executor.compiled._workers_worth", lambda *a: threads)
    feed = {"x": np.ones((2, 4), np.float32)}
    profile = profile_plan(plan, feed, runs=3, threads=threads)
    assert [node.op for node, _ in profile.steps] == ["MATMUL", "RELU", "WHERE", "ADD"]
    assert [kernel for _, kernel in profile.steps][2] == "numpy"
    assert all(ns > 0 for ns in profile.ns)
    text = describe_profile(profile, LIMITS)
    assert len(text.splitlines()) == 1 + 4 + 1
    assert "f32_matmul" in text
    assert "model.py:7" in text

    save_trace(profile, tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    events = trace["traceEvents"]
    assert {e["name"] for e in events} == {"h = MATMUL", "r = RELU", "t = WHERE", "y = ADD"}
    assert min(e["ts"] for e in events) == 0
    assert all(e["dur"] > 0 and e["ph"] == "X" and e["tid"] < threads for e in events)
    by_node = [
        max(e["ts"] + e["dur"] for e in events if e["cat"] == op)
        for op in ("MATMUL", "RELU", "WHERE", "ADD")
    ]
    assert by_node == sorted(by_node), "one after the other"


def test_spans_name_the_workers():
    """A node with several tasks, worth two threads, is seen at both."""
    from taper_runtime.ops import REGISTRY
    from taper_runtime.plan.plan import TensorSpec

    op = REGISTRY["MATMUL"]
    attrs = op.complete({})
    shapes = [(64, 512), (512, 1024), (64, 1024)]
    operands = [("float32", s, (s[1], 1)) for s in shapes]
    node = _native.prepare(op, attrs, operands[:2], operands[2])
    assert node.tasks > 1
    specs = [TensorSpec(n, "float32", s, "input") for n, s in zip("abc", shapes, strict=True)]
    program = _native.Program(specs[:2], specs[2:], 0, [], 2)
    places = [(_native.BOUND, i, 0) for i in range(3)]
    program.add_native(node, places, (0, 0), "c", 2)
    outputs, spans = program.profile([np.ones(s, np.float32) for s in shapes[:2]])
    np.testing.assert_array_equal(outputs[0], 512)
    ((first, second),) = spans
    for begin, end in (first, second):
        assert 0 < begin < end
