"""Subgraphs whose delegates are absent, refuse or fail: what computes them, and the reason told."""

import threading

import numpy as np
import pytest

import taper_runtime
from graph_checks import Builder, floats
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.graph import Graph
from taper_frontend.compiler.partition import Partition, register_backend, unregister_backend
from taper_frontend.compiler.planning import make_plan
from taper_runtime import InferenceSession, InputError, KernelError, SessionOptions
from taper_runtime.base.sizes import variable
from taper_runtime.base.text import MAX_MESSAGE
from taper_runtime.extend.fallbacks import DelegateUse
from taper_runtime.plan.replaceable import WeightSpec
from weighted_plans import weight

EXECUTORS = pytest.mark.parametrize("executor", ["compiled", "interpreted"])
X = floats(3, 4, seed=7)
INDEX = np.array([0, 2], np.int64)


class Doubler(taper_runtime.Delegate):
    """Computes the subgraphs of these tests: rows of x, doubled."""

    def run(self, inputs, outputs):
        x, index = inputs
        outputs[0][...] = x[index] * 2


class RefusesSubgraph(Doubler):
    def __init__(self, node):
        raise InputError("not this one")


class RefusesWeights(Doubler):
    def prepare_weights(self, weights):
        raise ValueError("not these")


class RefusesSizes(Doubler):
    def bind(self, attrs, types):
        raise ValueError("not of this size")


class Fails(Doubler):
    def run(self, inputs, outputs):
        outputs[0][...] = 5  # the graph writes over it
        raise RuntimeError("broken")


class Returns(Doubler):
    def run(self, inputs, outputs):
        return outputs


def make(constant=False):
    """MUL(EMBEDDING(x, i), 2) as one subgraph of the backend "chip"; x may be a weight."""
    register_backend("chip", lambda graph: b"", Doubler)
    try:
        b = Builder()
        x = b.constant(X, name="w") if constant else b.input("x", 3, 4)
        rows = b.op("EMBEDDING", x, b.input("i", 2, dtype="int64"))
        graph = b.done(b.op("MUL", rows, 2.0))
        partition = Partition(lambda graph: [list(graph.nodes)], "chip")
        compile_graph(graph, partition=partition, output_names=["y"], verify=True)
        return make_plan(graph)
    finally:
        unregister_backend("chip")


@pytest.fixture(scope="module")
def plan():
    return make()


def opened(plan, policy, kind=(), executor="compiled", most=3):
    """A session; ``kind`` is the class for the backend, or () for none."""
    options = SessionOptions()
    options.executor, options.on_delegate_failure = executor, policy
    options.max_delegate_failures = most
    options.delegates = {} if kind == () else {"chip": kind}
    return InferenceSession(plan, options)


FEED = {"x": X, "i": INDEX}


@EXECUTORS
@pytest.mark.parametrize(
    ("policy", "kind", "reason", "result"),
    [
        ("error", Doubler, "", "delegate"),
        ("error", None, "disabled_by_option", "graph"),
        ("error", (), "expected delegate 'chip' in SessionOptions.delegates", "refused"),
        ("error", RefusesSubgraph, "not this one", "refused"),
        ("error", Fails, "raised RuntimeError: broken", "raises"),
        ("fallback", Doubler, "", "delegate"),
        ("fallback", (), "chip_runtime_not_built", "graph"),
        ("fallback", None, "disabled_by_option", "graph"),
        ("fallback", RefusesSubgraph, "chip_native_unsupported_fallback", "graph"),
        ("fallback", RefusesSizes, "chip_native_unsupported_fallback", "graph"),
        ("fallback", Fails, "chip_native_failed_fallback", "graph"),
        ("fallback", Returns, "chip_native_failed_fallback", "graph"),
        ("forced_fallback", Doubler, "chip_forced_fallback", "graph"),
        ("forced_fallback", (), "chip_forced_fallback", "graph"),
        ("forced_error", Doubler, "forced_error", "raises"),
        ("forced_error", (), "forced_error", "raises"),
    ],
)
def test_what_computes_a_subgraph(policy, kind, reason, result, executor, plan):
    if result == "refused":
        with pytest.raises(InputError, match=reason):
            opened(plan, policy, kind, executor)
        return
    session = opened(plan, policy, kind, executor)
    if result == "raises":
        with pytest.raises(KernelError, match=reason):
            session.run(None, FEED)
    else:
        (y,) = session.run(None, FEED)
        np.testing.assert_array_equal(y, X[INDEX] * 2)
    (use,) = session.stats().delegates
    assert (use.node, use.backend) == (session.plan.nodes[-1].output, "chip")
    assert use.reason == ("" if kind is Fails and policy == "error" else reason)
    left_out = kind in (None, (), RefusesSubgraph) or policy.startswith("forced")
    assert use.is_used == (not left_out)
    (line,) = [line for line in session.decision_log() if line.startswith("delegate ")]
    assert use.reason in line
    assert line.split(": ")[1].startswith("chip" if use.is_used else ("an error", "its graph"))


@EXECUTORS
def test_a_delegate_is_left_out_after_so_many_failures(plan, executor):
    asked = []

    class Counted(Fails):
        def run(self, inputs, outputs):
            asked.append(1)
            super().run(inputs, outputs)

    session = opened(plan, "fallback", Counted, executor, most=2)
    for run in range(1, 5):
        np.testing.assert_array_equal(session.run(None, FEED)[0], X[INDEX] * 2)
        failures = min(run, 2)
        node = session.plan.nodes[-1].output
        told = DelegateUse(
            node,
            "chip",
            "chip_native_failed_fallback",
            run < 2,
            failures,
            fallbacks=run,
            error="RuntimeError: broken",
        )
        assert session.stats().delegates == (told,)
    assert len(asked) == 2
    text = session.stats().prometheus()
    assert "taper_delegate_failures_total 2\n" in text
    assert "taper_delegate_fallbacks_total 4\n" in text


@EXECUTORS
def test_where_the_graph_fails_too_both_errors_are_told(plan, executor):
    session = opened(plan, "fallback", Fails, executor)
    with pytest.raises(KernelError, match=r"cpu_fallback_failed: .*3.* after .*broken"):
        session.run(None, {"x": X, "i": np.array([0, 3], np.int64)})
    (use,) = session.stats().delegates
    assert (use.reason, use.failures, use.fallbacks) == ("cpu_fallback_failed", 0, 0)
    assert session.stats().errors == 1


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (RefusesSubgraph, "InputError: not this one"),
        (RefusesSizes, "ValueError: not of this size"),
        (Fails, "RuntimeError: broken"),
    ],
)
def test_what_a_delegate_raised_is_told(plan, kind, told):
    session = opened(plan, "fallback", kind)
    session.run(None, FEED)
    (use,) = session.stats().delegates
    assert use.error == told
    (line,) = [line for line in session.decision_log() if line.startswith("delegate ")]
    assert line.endswith(f"; {use.reason} ({told})")
    with pytest.raises(KernelError, match=rf"cpu_fallback_failed: .* after {told}"):
        session.run(None, {"x": X, "i": np.array([0, 3], np.int64)})


def test_what_a_delegate_raised_is_told_in_one_line_of_bounded_length(plan):
    class Wordy(Doubler):
        def run(self, inputs, outputs):
            raise RuntimeError("\x1b[2J\n" + "x" * 10_000)

    class Silent(Doubler):
        def run(self, inputs, outputs):
            class MuteError(Exception):
                def __str__(self):
                    raise ValueError

            raise MuteError

    for kind, begin in ((Wordy, r"RuntimeError: \x1b[2J\nxxx"), (Silent, "MuteError: its message")):
        session = opened(plan, "fallback", kind)
        session.run(None, FEED)
        (use,) = session.stats().delegates
        assert use.error.startswith(begin)
        assert len(use.error) <= MAX_MESSAGE + 3
        with pytest.raises(KernelError) as raised:
            opened(plan, "error", kind).run(None, FEED)
        assert begin in str(raised.value)
        assert len(str(raised.value)) < 2 * MAX_MESSAGE


def test_weights_that_are_refused_when_opened_are_a_fallback():
    session = opened(make(constant=True), "fallback", RefusesWeights)
    np.testing.assert_array_equal(session.run(None, {"i": INDEX})[0], X[INDEX] * 2)
    (use,) = session.stats().delegates
    assert use.reason == "chip_native_unsupported_fallback"
    assert use.error == "ValueError: not these"
    assert (use.is_used, use.failures, use.fallbacks) == (False, 0, 1)


def test_new_weights_reach_the_graph_and_may_be_refused():
    plan = make(constant=True)
    (name,) = [each for each in plan.constants if plan.tensors[each].shape == (3, 4)]
    plan = plan._replace(
        weights={"w": WeightSpec("w", "parameter", "float32", (3, 4))},
        derived={name: (weight("w"),)},
    )

    class RefusesLater(Fails):
        def prepare_weights(self, weights):
            if not weights[0].any():
                raise ValueError("zeros")

    session = opened(plan, "fallback", RefusesLater)
    with pytest.raises(KernelError, match="zeros"):
        session.weights.update("w", np.zeros_like(X))
    session.weights.update("w", X + 1)
    np.testing.assert_array_equal(session.run(None, {"i": INDEX})[0], (X + 1)[INDEX] * 2)


def test_sizes_that_vary_reach_the_graph():
    register_backend("chip", lambda graph: b"", Doubler)
    b = Builder()
    b.graph = Graph({"n": (1, 9)}, {"n": 3})
    x = b.input("x", variable("n", 1, 9), 4)
    graph = b.done(b.op("MUL", b.op("ADD", x, 1.0), 2.0))
    partition = Partition(lambda graph: [list(graph.nodes)], "chip")
    compile_graph(graph, partition=partition, output_names=["y"])
    unregister_backend("chip")
    session = opened(make_plan(graph), "fallback", Fails)
    for rows in (3, 1, 9):
        x = floats(rows, 4)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], (x + 1) * 2)


def test_many_threads_count_each_failure(plan):
    session = opened(plan, "fallback", Fails, most=1000)

    def run():
        for _ in range(20):
            session.run(None, FEED)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (use,) = session.stats().delegates
    assert (use.failures, use.fallbacks) == (80, 80)


@pytest.mark.parametrize(
    ("field", "value"),
    [("on_delegate_failure", "ignore"), ("on_delegate_failure", None)]
    + [("max_delegate_failures", value) for value in (0, -1, True, 1.5, "3")],
)
def test_invalid_options_are_refused(field, value):
    with pytest.raises(InputError, match=field):
        setattr(SessionOptions(), field, value)


def test_machine_code_still_needs_to_be_allowed(plan):
    class Native(Doubler):
        runs_machine_code = True

    with pytest.raises(InputError, match="allow_native_code"):
        opened(plan, "fallback", Native)
