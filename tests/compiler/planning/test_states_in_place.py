"""States that a plan writes in place, and their values after a failed run."""

import numpy as np
import pytest

import taper_runtime
from taper_frontend.compiler.graph import Graph
from taper_frontend.compiler.planning import make_plan
from taper_runtime import InferenceSession, InputError, PlanFormatError
from taper_runtime.executor.executor import node_work
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import Attr, OpDef
from taper_runtime.plan.validate import validate
from taper_runtime.reports.profile import profile_plan

ROWS, WIDTH = 6, 3
EXECUTORS = ["compiled", "parallel", "interpreted"]


class Trip:
    """An op that gives its input; the node of number ``at`` raises ``error``."""

    def __init__(self):
        self.error = None
        self.at = None

    def evaluate(self, inputs, attrs):
        if attrs["number"] == self.at:
            raise self.error
        return inputs[0].copy()


@pytest.fixture
def trip():
    trip = Trip()
    REGISTRY["TRIP"] = OpDef(
        name="TRIP",
        doc="x.",
        inputs=(1, 1),
        infer=lambda inputs, attrs: inputs[0],
        evaluate=trip.evaluate,
        attrs={"number": Attr("int")},
        native=False,
    )
    yield trip
    del REGISTRY["TRIP"]


def cache_graph(trips=False):
    """Writes rows to two caches, reads them all; with a TRIP before each write and at the end."""
    graph = Graph()
    count = iter(range(9))

    def trip(x):
        return graph.add_node("TRIP", [x], {"number": next(count)}) if trips else x

    first = np.arange(2 * ROWS * WIDTH, dtype=np.float32).reshape(2, ROWS, WIDTH)
    x = graph.add_input("x", "float32", (2, WIDTH))
    places = graph.add_input("places", "int64", (2,))
    looked = graph.add_input("looked", "int64", (2,))
    total = graph.add_state("total", np.zeros((WIDTH,), np.float32))
    x = graph.add_node("COPY", [x])
    results = []
    for number, name in enumerate(("keys", "values")):
        cache = graph.add_state(name, first[number])
        at = graph.add_node("ADD", [places], {"scalar": 0, "scalar_index": 1})
        written = graph.add_node("WRITE", [cache, at, trip(x)], {"axis": 0})
        written = graph.add_node("WRITE", [written, looked, trip(x)], {"axis": 0})
        graph.set_next(name, written)
        x = graph.add_node("INDEX_SELECT", [written, looked], {"axis": 0})
        results.append(graph.add_node("SUM", [written], {"axes": (0,)}))
    x = trip(x)
    graph.set_next("total", graph.add_node("ADD", [total, results[0]]))
    graph.set_outputs([x, *results])
    return graph


def opened(plan, executor="compiled", threads=1):
    """Open a session; executor "parallel": the compiled one, two nodes at the same time."""
    options = taper_runtime.SessionOptions()
    if executor == "parallel":
        options.execution_mode, options.inter_op_num_threads = "parallel", 2
    else:
        options.executor = executor
    options.intra_op_num_threads = threads
    return InferenceSession(plan, options)


def states_of(session):
    return {name: session.get_state(name) for name in session.state_names}


def check_states(session, want):
    for name, array in want.items():
        np.testing.assert_array_equal(session.get_state(name), array, name)


X = np.full((2, WIDTH), 100, np.float32)
FEED = {"x": X, "places": np.array([4, 1]), "looked": np.array([1, -1])}


def test_rows_are_written_in_place():
    plan = make_plan(cache_graph())
    assert {name: plan.is_in_place(name) for name in plan.states} == {
        "keys": True,
        "values": True,
        "total": False,
    }
    session = opened(plan)
    arrays = session._state._arrays["keys"]
    session.run(None, FEED)
    assert session._state._arrays["keys"] is arrays
    rows = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)
    rows[[4, 1, 5]] = 100
    np.testing.assert_array_equal(session.get_state("keys"), rows)
    session.reset_state()
    assert session.get_state("keys")[4, 0] == 12


def test_the_work_of_a_write_is_what_it_writes():
    plan = make_plan(cache_graph())
    write = next(node for node in plan.nodes if node.op == "WRITE")
    rows = 2 * WIDTH * 4
    assert node_work(plan, write).bytes == 2 * rows + FEED["places"].nbytes
    apart = plan.placements[write.output]._replace(root=write.output)
    copying = plan._replace(placements={**plan.placements, write.output: apart})
    whole = ROWS * WIDTH * 4
    assert node_work(copying, write).bytes == 2 * whole + 2 * rows + FEED["places"].nbytes


def test_executors_agree():
    plan = make_plan(cache_graph())
    sessions = [opened(plan, executor) for executor in EXECUTORS]
    for places in ([0, 3], [3, 3], [5, -6]):
        feed = {**FEED, "places": np.array(places)}
        for results in zip(*(session.run(None, feed) for session in sessions), strict=True):
            for got in results[:-1]:
                np.testing.assert_array_equal(got, results[-1])
    for session in sessions[:2]:
        check_states(session, states_of(sessions[2]))


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("feed", [{"places": [9, 0]}, {"places": [0, -7]}, {"looked": [0, 6]}])
def test_a_run_with_a_bad_place_leaves_the_states(executor, feed):
    session = opened(make_plan(cache_graph()), executor)
    session.run(None, FEED)
    before = states_of(session)
    with pytest.raises(InputError, match="expected indices in"):
        session.run(None, {**FEED, **{name: np.array(at) for name, at in feed.items()}})
    check_states(session, before)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_a_run_that_fails_at_any_node_leaves_the_states(trip, executor, threads, error):
    graph = cache_graph(trips=True)
    plan = make_plan(graph)
    reference = opened(make_plan(cache_graph()))
    session = opened(plan, executor, threads)
    steps = [node.op for node in plan.nodes if node.op in ("TRIP", "WRITE")]
    assert steps[0] == steps[-1] == "TRIP"
    assert steps.count("TRIP") == 5
    for step in range(3):
        x = np.full((2, WIDTH), step, np.float32)
        feed = {**FEED, "x": x, "places": np.array([step, 0])}
        before = states_of(session)
        trip.error = error
        for trip.at in range(5):
            with pytest.raises(type(error)):
                session.run(None, feed)
            check_states(session, before)
        trip.at = None
        for got, want in zip(session.run(None, feed), reference.run(None, feed), strict=True):
            np.testing.assert_array_equal(got, want)
        check_states(session, states_of(reference))


def test_a_state_that_is_read_later_is_not_overwritten():
    graph = Graph()
    cache = graph.add_state("cache", np.zeros((4, 2), np.float32))
    x = graph.add_input("x", "float32", (1, 2))
    places = graph.add_input("places", "int64", (1,))
    written = graph.add_node("WRITE", [cache, places, x], {"axis": 0})
    graph.set_next("cache", written)
    graph.set_outputs([graph.add_node("SUB", [written, cache])])
    plan = make_plan(graph)
    assert not plan.is_in_place("cache")
    over = plan.placements[written]._replace(root="cache")
    with pytest.raises(PlanFormatError, match="WRITE overwrites 'cache', but node 1 reads it"):
        validate(plan._replace(placements={**plan.placements, written: over}))
    session = opened(plan)
    (change,) = session.run(None, {"x": np.ones((1, 2), np.float32), "places": np.array([2])})
    np.testing.assert_array_equal(change.sum(1), [0, 0, 2, 0])


def test_a_state_through_a_reshape():
    graph = Graph()
    cache = graph.add_state("cache", np.zeros((4, 2), np.float32))
    x = graph.add_input("x", "float32", (1,))
    places = graph.add_input("places", "int64", (1,))
    flat = graph.add_node("RESHAPE", [cache], {"shape": (8,)})
    written = graph.add_node("WRITE", [flat, places, x], {"axis": 0})
    graph.set_next("cache", graph.add_node("RESHAPE", [written], {"shape": (4, 2)}))
    graph.set_outputs([graph.add_node("SUM", [written], {"axes": (0,)})])
    plan = make_plan(graph)
    assert plan.is_in_place("cache")
    session = opened(plan)
    for place in range(3):
        session.run(None, {"x": np.ones(1, np.float32), "places": np.array([place])})
    np.testing.assert_array_equal(session.get_state("cache").ravel(), [1, 1, 1, 0, 0, 0, 0, 0])


def test_a_plan_that_overwrites_a_state_otherwise_is_refused():
    plan = make_plan(cache_graph())
    after = plan.states["total"]

    def at(name, **place):
        placements = {**plan.placements, name: plan.placements[name]._replace(**place)}
        return plan._replace(placements=placements)

    with pytest.raises(PlanFormatError, match="memory that a node may write, got 'state total'"):
        validate(at(after, root="total"))  # ADD cannot put back what it overwrites
    keys, values = plan.states["keys"], plan.states["values"]
    with pytest.raises(
        PlanFormatError, match="expected the tensor itself, because its role is output"
    ):
        validate(at(keys, root="values"))
    with pytest.raises(PlanFormatError, match="row-major"):
        validate(at(keys, strides=(1, ROWS)))
    with pytest.raises(PlanFormatError, match="expected a tensor within the"):
        validate(at(keys, offset=4))
    swapped = {**plan.states, "keys": values, "values": keys}
    with pytest.raises(
        PlanFormatError, match="expected the tensor itself, because its role is output"
    ):
        validate(plan._replace(states=swapped))


def test_an_array_of_a_state_that_cannot_be_written_is_refused():
    plan = make_plan(cache_graph())
    session = opened(plan)
    arrays = [FEED[name] for name in plan.inputs] + [
        np.array(plan.first_value(n)) for n in plan.states
    ]
    arrays[-1].flags.writeable = False
    with pytest.raises(InputError, match="expected writable memory"):
        session._default.executor.run(arrays)


def test_a_profile_begins_each_run_with_the_first_state():
    plan = make_plan(cache_graph())
    profile = profile_plan(plan, FEED, runs=3, threads=1)
    assert [site.node.op for site in profile.sites].count("WRITE") == 4
    profile_plan(plan, FEED, runs=1, threads=1)
    np.testing.assert_array_equal(plan.constants["keys"].ravel(), np.arange(ROWS * WIDTH))
