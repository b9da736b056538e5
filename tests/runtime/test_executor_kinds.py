"""Executors of a kind that a test makes: sessions run, record and profile it by its name."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

import taper_runtime
from control_plans import counting
from measured_plans import measured_arrays, measured_plan
from plan_files import small_plan
from stateful_plans import accumulating_plan
from taper_runtime.executor.executor import (
    DEFAULT_SETTINGS,
    PlanExecutor,
    definition,
    input_types,
    output_types,
)
from taper_runtime.executor.executor_kinds import EXECUTORS
from taper_runtime.executor.sites import sites
from taper_runtime.native.variants import KernelName
from taper_runtime.plan.binding import bind_sizes
from taper_runtime.plan.specialize import specialize
from taper_runtime.reports.profile import profile_plan
from weighted_plans import Q, weighted_plan

X = np.arange(8, dtype=np.float32).reshape(2, 4) / 8


class Evaluating(PlanExecutor):
    """Evaluates every node by its op's definition, in fresh arrays."""

    def __init__(self, plan, version=0):
        self._plan, self._version = plan, version
        self._static = plan

    @classmethod
    def compile(cls, plan, settings=DEFAULT_SETTINGS):
        return cls(plan)

    @property
    def served(self):
        return [(site.node, "numpy") for site in sites(self._static)]

    @property
    def steps(self):
        return [(site, KernelName("evaluated")) for site in sites(self._static)]

    @property
    def weights_version(self):
        return self._version

    def with_constants(self, constants, generation):
        return Evaluating(self._plan._replace(constants=dict(constants)), generation)

    def run(self, inputs, out=None, sizes=None, stop=None):
        return self.profile(inputs, out, sizes, stop)[0]

    def profile(self, inputs, out=None, sizes=None, stop=None):
        plan, spans = self._plan, []
        given = dict(zip(plan.reads, inputs, strict=True))
        values = (
            bind_sizes(plan, {name: array.shape for name, array in given.items()})
            if sizes is None
            else dict(zip(plan.sizes, sizes, strict=True))
        )
        plan = self._static = specialize(plan, values)
        arrays = {**plan.constants, **given}
        for node in plan.nodes:
            op, attrs = definition(node)
            types = output_types(plan, node)
            outputs = [np.empty(each.storage.shape, each.storage.dtype) for each in types]
            begin = time.monotonic_ns()
            op.compute(
                [None if name is None else arrays[name] for name in node.inputs],
                attrs,
                outputs,
                [*input_types(plan, node), *types],
            )
            if plan.is_executed(node):
                spans.append([(begin, time.monotonic_ns(), 1)])
            arrays.update(zip(node.outputs, outputs, strict=True))
        for name in filter(plan.is_in_place, plan.states):
            inputs[plan.reads.index(name)][...] = arrays[plan.states[name]]
        results = [arrays[name] for name in plan.writes]
        for i, array in enumerate(out or ()):
            if array is not None:
                array[...], results[i] = results[i], array
        return results, spans


@pytest.fixture(params=["evaluating", *(name for name in EXECUTORS if name != "delegate")])
def kind(request, monkeypatch):
    monkeypatch.setitem(EXECUTORS, "evaluating", lambda: Evaluating)
    return request.param


def options_of(kind, **more):
    options = taper_runtime.SessionOptions()
    options.executor = kind or options.executor
    for name, value in more.items():
        setattr(options, name, value)
    return options


def plain(plan, feed):
    return taper_runtime.InferenceSession(plan).run(None, feed)


def recorded(plan, kind, prefix, feeds):
    """Run a session that records; return its outputs and its trace's events."""
    options = options_of(kind, enable_profiling=True, profile_file_prefix=str(prefix))
    session = taper_runtime.InferenceSession(plan, options)
    outputs = [session.run(None, feed) for feed in feeds]
    return outputs, json.loads(Path(session.end_profiling()).read_text())["traceEvents"]


def test_a_session_runs_a_kind_by_its_name(kind):
    session = taper_runtime.InferenceSession(small_plan(), options_of(kind))
    for got, want in zip(session.run(None, {"x": X}), plain(small_plan(), {"x": X}), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_kind_keeps_states(kind):
    """One state of the plan is written in place."""
    plan = accumulating_plan(5, 3)
    sessions = [taper_runtime.InferenceSession(plan, options_of(each)) for each in (kind, None)]
    for i in range(3):
        feed = {"x": np.full((2, 3), i, np.float32), "at": np.array([i, i + 1])}
        got, want = (session.run(None, feed)[0] for session in sessions)
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_a_kind_is_profiled_by_its_name(kind):
    profile = profile_plan(small_plan(), {"x": X}, runs=2, threads=1, executor=kind)
    executed = [node.op for node in small_plan().nodes if small_plan().is_executed(node)]
    assert [site.node.op for site in profile.sites] == executed
    assert all(ns > 0 for ns in profile.ns)
    assert set(profile.times) == {1}
    if kind == "evaluating":
        assert {kernel.name for _, kernel in profile.steps} == {"evaluated"}


def test_a_kind_is_recorded(kind, tmp_path):
    (outputs,), events = recorded(small_plan(), kind, tmp_path / "p", [{"x": X}])
    for got, want in zip(outputs, plain(small_plan(), {"x": X}), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    executed = {
        f"{node.output} = {node.op}"
        for node in small_plan().nodes
        if small_plan().is_executed(node)
    }
    assert {event["name"] for event in events} == {"run", *executed}


def test_stages_are_of_the_kind(kind, tmp_path):
    feeds = [measured_arrays(np.random.default_rng(0), n) for n in (40, 7)]
    outputs, events = recorded(measured_plan(), kind, tmp_path / "p", feeds)
    for feed, got in zip(feeds, outputs, strict=True):
        for a, b in zip(got, plain(measured_plan(), feed), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)
    assert sum(event["cat"] == "MUL" for event in events) == 2
    assert sum(event["cat"] == "session" for event in events) == 2


def test_what_records_tells_what_the_executor_tells(kind):
    """Statistics of a session that records are those of one that does not."""
    stats = []
    for records in (False, True):
        options = options_of(kind, enable_profiling=records)
        session = taper_runtime.InferenceSession(weighted_plan(), options)
        session.weights.update("q", Q + 1)
        session.run(None, {"x": X})
        assert session.stats().weights_version == session.weights.version
        stats.append(session.stats().fallback_nodes)
    assert stats[0] == stats[1]
    planning = [
        taper_runtime.InferenceSession(measured_plan(), options_of(kind, enable_profiling=records))
        .stats()
        .memory_planning
        for records in (False, True)
    ]
    assert [each is None for each in planning] == [False, False]


def test_interpreted_blocks_count_with_their_node():
    """The interpreter times a loop as one node."""
    feed = {"i0": np.array(0), "x0": np.ones(2, np.float32), "top": np.array(4)}
    profile = profile_plan(counting(), feed, runs=2, threads=1, executor="interpreted")
    assert [site.node.op for site in profile.sites] == ["WHILE"]
    assert profile.total > 0


def test_an_unknown_kind_lists_those_there_are(kind):
    with pytest.raises(taper_runtime.InputError, match=", ".join(map(repr, EXECUTORS))):
        taper_runtime.SessionOptions().executor = "none"
