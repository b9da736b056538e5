"""Plans joined to one with several entries: what they share, and what is refused."""

import json

import numpy as np
import pytest

from taper_frontend.compiler.graph import Graph
from taper_frontend.compiler.planning import join_plans, make_plan
from taper_frontend.errors import ExportError
from taper_runtime import InferenceSession, SessionOptions
from taper_runtime.base.errors import InputError, PlanFormatError
from taper_runtime.file.reader import load

W = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
X = np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3)


def counter(scale, *, weight="w", state="count", first=None):
    """A plan that adds ``scale`` to a state, and gives x @ w plus what the state was."""
    graph = Graph()
    graph.add_input("x", "float32", (2, 3))
    graph.add_constant(weight, W)
    graph.add_state(state, np.zeros(4, np.float32) if first is None else first)
    product = graph.add_node("MATMUL", ["x", weight])
    graph.set_outputs([graph.add_node("ADD", [product, state], name="y")])
    graph.set_next(state, graph.add_node("ADD", [state], {"scalar": scale, "scalar_index": 1}))
    return make_plan(graph, samples={"x": X})


@pytest.fixture
def joined(tmp_path):
    join_plans({"prefill": counter(1.0), "decode": counter(10.0, weight="v")}).save(
        tmp_path / "m.taper"
    )
    return tmp_path / "m.taper"


def test_entries_share_weights(joined):
    plan = load(joined)
    assert plan.entry_names == ("prefill", "decode")
    assert [*plan.constants] == ["w"], "a state of zeros has no bytes"
    assert plan.entry("decode").constants["w"] is plan.constants["w"]
    assert plan.entries["decode"].samples["x"].tolist() == X.tolist()


@pytest.mark.parametrize("executor", ["compiled", "interpreted"])
def test_entries_go_on_from_each_others_states(joined, executor):
    options = SessionOptions()
    options.executor = executor
    session = InferenceSession(joined, options)
    feed, count = {"x": X}, 0.0
    for entry, adds in [("decode", 10), (None, 1), ("prefill", 1), ("decode", 10)]:
        (y,) = session.run(None, feed, entry=entry)
        np.testing.assert_allclose(y, X @ W + count, rtol=1e-5, atol=1e-6)
        count += adds
        np.testing.assert_array_equal(session.get_state("count"), np.full(4, count, np.float32))
    session.reset_state()
    np.testing.assert_allclose(session.run(None, feed, entry="decode")[0], X @ W, atol=1e-6)


def test_sessions_tell_of_their_entries(joined):
    session = InferenceSession(joined)
    assert session.entry_names == ["prefill", "decode"]
    assert [item.name for item in session.get_inputs(entry="decode")] == ["x"]
    assert [item.name for item in session.get_outputs()] == ["y"]
    for call in (
        lambda: session.run(None, {"x": X}, entry="train"),
        lambda: session.get_inputs(entry="train"),
        lambda: session.get_outputs(entry="train"),
    ):
        with pytest.raises(InputError, match=r"unknown entry 'train'; expected one of \['prefill'"):
            call()
    session.run(None, {"x": X}, entry="decode")


def test_a_constant_with_the_name_of_another_tensor_gets_one_of_its_own():
    graph = Graph()
    graph.add_input("w", "float32", (3, 4))
    graph.set_outputs([graph.add_node("NEG", ["w"], name="y")])
    plan = join_plans({"a": counter(1.0), "b": make_plan(graph)})
    assert [*plan.constants] == ["w_1"]
    session = InferenceSession(plan)
    np.testing.assert_allclose(session.run(None, {"x": X})[0], X @ W, atol=1e-6)
    np.testing.assert_array_equal(session.run(None, {"w": W}, entry="b")[0], -W)


def test_a_plan_of_one_entry_is_that_one(joined):
    plan = load(joined).entry("decode")
    assert plan.default == "decode"
    assert plan.entry() is plan
    (y,) = InferenceSession(plan).run(None, {"x": X})
    np.testing.assert_allclose(y, X @ W, atol=1e-6)


def frozen():
    """A plan that has a constant of the state's name."""
    graph = Graph()
    graph.add_input("x", "float32", (4,))
    graph.add_constant("count", np.ones(4, np.float32))
    graph.set_outputs([graph.add_node("ADD", ["x", "count"], name="y")])
    return make_plan(graph)


@pytest.mark.parametrize(
    ("plans", "message"),
    [
        ({}, "at least one"),
        (
            {"a": counter(1.0), "b": counter(1.0, first=np.ones(4, np.float32))},
            "the same type and first",
        ),
        ({"a": counter(1.0), "b": frozen()}, "state 'count' of 'a': expected a state of 'b' too"),
        ({"a": join_plans({"c": counter(1.0), "d": counter(1.0)})}, "a plan of one entry, got 2"),
    ],
)
def test_what_does_not_join(plans, message):
    with pytest.raises(ExportError, match=message):
        join_plans(plans)


def test_names_of_entries_are_identifiers():
    with pytest.raises(PlanFormatError, match="letters"):
        join_plans({"a b": counter(1.0)})


def test_a_state_of_zeros_has_no_bytes(tmp_path):
    counter(1.0).save(tmp_path / "zeros.taper")
    counter(1.0, first=np.full(4, -0.0, np.float32)).save(tmp_path / "negative.taper")
    assert "count" not in load(tmp_path / "zeros.taper").constants
    plan = load(tmp_path / "negative.taper")
    assert np.signbit(plan.first_value("count")).all(), "-0 is no byte of 0"
    header = (tmp_path / "zeros.taper").read_bytes()
    document = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])
    assert json.loads(document["__metadata__"]["plan"])["features"] == ["zero_states"]
