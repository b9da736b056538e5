"""Servers: a user's kernel that is told of weights and sizes lives as a delegate does."""

import threading

import numpy as np
import pytest

import taper_runtime
from control_plans import N, cumulative
from graph_checks import Builder, floats
from taper_frontend.compiler.planning import make_plan
from taper_runtime.base.sizes import variable
from taper_runtime.plan.plan import Entry
from taper_runtime.plan.replaceable import WeightSpec
from weight_swaps import seen_during_swaps
from weighted_plans import weight

EXECUTORS = pytest.mark.parametrize("executor", ["compiled", "interpreted"])
X = floats(3, 4, seed=7)
SETS = [np.full(4, value, np.float32) for value in (2, 3, 5)]


class Scales(taper_runtime.Server):
    """Multiplies by a copy of its weight, which it finds by the address; logs what it is told."""

    log: list = []  # noqa: RUF012
    refused = committing = None

    def __init__(self, node):
        super().__init__(node)
        self.sets = {}
        self.log.append(("init", node))

    def prepare_weights(self, weights):
        self.log.append(("prepare", dict(weights)))
        if self.refused:
            raise self.refused
        ((_, array),) = weights.items()
        self.next = array.ctypes.data, array.copy()

    def commit_weights(self):
        self.log.append(("commit", self.node.name))
        address, array = self.next
        self.sets[address] = array
        if self.committing:
            raise self.committing

    def run(self, inputs, outputs):
        np.multiply(inputs[0], self.sets[inputs[1].ctypes.data], out=outputs[0])


@pytest.fixture
def log(monkeypatch):
    monkeypatch.setattr(Scales, "log", [])
    return Scales.log


@pytest.fixture
def register(log):
    """Register kernels that do not outlive the test."""
    names = []

    def register(kernel, target="MUL"):
        taper_runtime.register_kernel(target, kernel, name="mine", replace=bool(names))
        names.append("mine")

    yield register
    if names:
        taper_runtime.unregister_kernel("mine")


def replaceable(plan, **shapes):
    return plan._replace(
        weights={name: WeightSpec(name, "parameter", "float32", s) for name, s in shapes.items()},
        derived={name: (weight(name),) for name in shapes},
    )


def scaling_plan(sized=False):
    """``tanh(x * w) * v`` of x [3, 4], or [n, 4]."""
    b = Builder()
    rows = 3
    if sized:
        rows = variable("n", 1, 9)
        b.graph.sizes["n"], b.graph.examples["n"] = (1, 9), 3
    x = b.graph.add_input("x", "float32", (rows, 4))
    w, v = (b.graph.add_constant(name, SETS[0]) for name in ("w", "v"))
    first = b.op("TANH", b.op("MUL", x, w))
    return replaceable(make_plan(b.done(b.op("MUL", first, v))), w=(4,), v=(4,))


def opened(plan, executor="compiled", **more):
    options = taper_runtime.SessionOptions()
    options.executor = executor
    for name, value in more.items():
        setattr(options, name, value)
    return taper_runtime.InferenceSession(plan, options)


def run(session, x=X):
    return session.run(None, {"x": x})[0]


def expected(w, v, x=X):
    return np.tanh(x * w) * v


def told(log):
    return [each[0] for each in log]


@EXECUTORS
@pytest.mark.parametrize("sized", [False, True])
def test_a_kernel_is_told_of_weights_in_two_steps(register, log, executor, sized):
    register(Scales)
    session = opened(scaling_plan(sized), executor)
    assert told(log) == ["init", "prepare", "commit"] * 2
    nodes = [each[1] for each in log if each[0] == "init"]
    assert [(r.op, r.weights, r.names[1], r.server) for r in nodes] == [
        ("MUL", (1,), name, "mine") for name in ("w", "v")
    ]
    np.testing.assert_allclose(run(session), expected(SETS[0], SETS[0]), rtol=1e-6)
    log.clear()
    session.weights.update_many({"w": SETS[1], "v": SETS[2]})
    assert told(log) == ["prepare", "prepare", "commit", "commit"]
    ((position, array),) = log[0][1].items()
    assert position == 1
    assert np.array_equal(array, SETS[1])
    assert not array.flags.writeable
    np.testing.assert_allclose(run(session), expected(SETS[1], SETS[2]), rtol=1e-6)
    if sized:
        x = floats(7, 4, seed=1)
        np.testing.assert_allclose(run(session, x), expected(SETS[1], SETS[2], x), rtol=1e-6)
    log.clear()
    session.weights.update("v", SETS[1])
    assert log[1:] == [("commit", session.plan.outputs[0])]  # the other one has kept its weight
    np.testing.assert_allclose(run(session), expected(SETS[1], SETS[1]), rtol=1e-6)
    assert "init" not in told(log)


@EXECUTORS
def test_a_kernel_that_refuses_weights_keeps_the_old_ones(register, log, executor, monkeypatch):
    register(Scales)
    session = opened(scaling_plan(), executor)
    before, version = run(session), session.weights.version
    session.weights.load({"w": SETS[1], "v": SETS[2]})
    monkeypatch.setattr(Scales, "refused", ValueError("too large"))
    log.clear()
    words = r"node \w+ \(MUL\): kernel 'mine': prepare_weights raised ValueError: too large"
    with pytest.raises(taper_runtime.KernelError, match=words):
        session.weights.commit()
    assert told(log) == ["prepare"]
    assert session.weights.version == version
    np.testing.assert_array_equal(run(session), before)
    monkeypatch.setattr(Scales, "refused", None)
    assert session.weights.commit() > version  # what was loaded is still there
    np.testing.assert_allclose(run(session), expected(SETS[1], SETS[2]), rtol=1e-6)


@EXECUTORS
def test_a_commit_that_raises_is_told_when_all_have_committed(register, executor, monkeypatch):
    register(Scales)
    session = opened(scaling_plan(), executor)
    version = session.weights.version
    monkeypatch.setattr(Scales, "committing", ValueError("broken"))
    session.weights.load({"w": SETS[1], "v": SETS[2]})
    words = "commit_weights raised ValueError: broken; expected no error, because"
    with pytest.raises(taper_runtime.KernelError, match=words):
        session.weights.commit()
    monkeypatch.setattr(Scales, "committing", None)
    assert session.weights.version > version
    np.testing.assert_array_equal(session.weights.get("w"), SETS[1])
    np.testing.assert_allclose(run(session), expected(SETS[1], SETS[2]), rtol=1e-6)
    with pytest.raises(taper_runtime.InputError, match="no weights are loaded"):
        session.weights.commit()


@EXECUTORS
def test_a_kernel_inside_of_a_loop_is_told_too(register, log, executor):
    register(Scales)
    plan = replaceable(cumulative(), w=(N,))
    rng = np.random.default_rng(0)
    feed = {
        name: rng.random(shape, np.float32)
        for name, shape in {"h0": (N,), "t0": (N // 4,), "xs": (3, N)}.items()
    }
    session = opened(plan, executor)
    session.run(None, feed)
    log.clear()
    new = np.full(N, 3, np.float32)
    session.weights.update("w", new)
    assert told(log) == ["prepare", "commit"]
    taper_runtime.unregister_kernel("mine")
    try:
        plain = opened(plan._replace(constants={**plan.constants, "w": new}))
    finally:
        register(Scales)
    for got, want in zip(session.run(None, feed), plain.run(None, feed), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_runs_that_go_on_keep_their_weights(register):
    """A run that waits inside a node after the kernel's ends with the old set."""
    reached, go_on = threading.Event(), threading.Event()

    class Waits(Scales):
        def run(self, inputs, outputs):
            if self.node.names[1] == "w" and not reached.is_set():
                reached.set()
                assert go_on.wait(30)
            super().run(inputs, outputs)

    register(Waits)
    session = opened(scaling_plan())
    got = []
    thread = threading.Thread(target=lambda: got.append(run(session)))
    thread.start()
    assert reached.wait(30)
    session.weights.update_many({"w": SETS[1], "v": SETS[2]})
    go_on.set()
    thread.join()
    np.testing.assert_allclose(got[0], expected(SETS[0], SETS[0]), rtol=1e-6)
    np.testing.assert_allclose(run(session), expected(SETS[1], SETS[2]), rtol=1e-6)


def test_runs_of_many_threads_see_one_set(register):
    register(Scales)
    session = opened(scaling_plan())
    sets = [{"w": each, "v": each} for each in SETS]
    seen = seen_during_swaps(session, sets, lambda: run(session).tobytes(), threads=3, swaps=30)
    session.weights.update_many(sets[0])
    wanted = set()
    for each in sets:
        session.weights.update_many(each)
        wanted.add(run(session).tobytes())
    assert seen <= wanted


def test_a_session_of_another_entry_has_servers_of_its_own(register, log):
    register(Scales)
    plan = scaling_plan()
    own = {name: each for name, each in plan.tensors.items() if name not in plan.constants}
    places = {name: plan.placements[name] for name in own}
    again = Entry(plan.nodes, own, places, plan.inputs, plan.outputs)
    session = opened(plan._replace(entries={"again": again}))
    session.run(None, {"x": X}, entry="again")
    log.clear()
    session.weights.update("w", SETS[1])
    assert told(log) == ["prepare", "prepare", "commit", "commit"]
    for entry in (None, "again"):
        (y,) = session.run(None, {"x": X}, entry=entry)
        np.testing.assert_allclose(y, expected(SETS[1], SETS[0]), rtol=1e-6)


@EXECUTORS
def test_bind_is_given_the_sizes(register, executor):
    seen = []

    class Bound(taper_runtime.Server):
        def __init__(self, node):  # and calls no other
            seen.append(node.inputs[0].shape)

        def bind(self, attrs, types):
            seen.append(tuple(type_.shape for type_ in types))
            return self.add

        def add(self, inputs, outputs):
            np.add(*inputs, out=outputs[0])

    register(Bound, "ADD")
    b = Builder()
    rows = variable("n", 1, 9)
    b.graph.sizes["n"], b.graph.examples["n"] = (1, 9), 3
    x = b.graph.add_input("x", "float32", (rows, 4))
    session = opened(make_plan(b.done(b.op("ADD", x, x))), executor)
    for n in (5, 2):
        x = floats(n, 4, seed=n)
        np.testing.assert_array_equal(run(session, x), x + x)
        assert seen[-1] == ((n, 4), (n, 4), (n, 4))
    assert seen.count((rows, 4)) == 1  # made once


@EXECUTORS
def test_a_kernel_has_its_attrs_and_a_name(register, executor):
    class Soft(taper_runtime.Server):
        def run(self, inputs, outputs):
            outputs[0][...] = self.node.attrs["axis"]

    register(Soft, "SOFTMAX")
    b = Builder()
    session = opened(make_plan(b.done(b.op("SOFTMAX", b.input("x", 3, 4), axis=1))), executor)
    assert session.kernel_kinds()["user"] == tuple(session.plan.outputs)
    assert set(run(session).flat) == {1.0}


class Raises(taper_runtime.Server):
    def __init__(self, node):
        raise ValueError("no room")


class Unbound(taper_runtime.Server):
    def bind(self, attrs, types):
        return 3


@EXECUTORS
@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (Raises, r"node \w+ \(MUL\): kernel 'mine': __init__ raised ValueError: no room"),
        (Unbound, r"kernel 'mine': expected bind to return a function, got int"),
    ],
)
def test_a_session_with_a_broken_server_does_not_open(register, executor, kernel, words):
    register(kernel)
    with pytest.raises(taper_runtime.KernelError, match=words):
        opened(scaling_plan(), executor)


def test_a_server_that_computes_nothing_says_so(register):
    register(type("Empty", (taper_runtime.Server,), {}))
    with pytest.raises(
        taper_runtime.KernelError, match="Empty: expected a method run or bind, got neither"
    ):
        run(opened(scaling_plan()))


@pytest.mark.parametrize("wrong", [int, taper_runtime.CDelegate, taper_runtime.ServedNode, 3])
def test_what_is_no_kernel_is_refused(wrong):
    with pytest.raises(taper_runtime.InputError, match="kernel 'wrong': expected a function"):
        taper_runtime.register_kernel("MUL", wrong, name="wrong")


def test_an_entry_whose_server_refuses_weights_that_came_meanwhile_is_not_kept(register):
    """They are replaced while the entry's session is opened: with those before it must not run."""
    plan = scaling_plan()
    own = {name: each for name, each in plan.tensors.items() if name not in plan.constants}
    places = {name: plan.placements[name] for name in own}
    again = Entry(plan.nodes, own, places, plan.inputs, plan.outputs)
    meanwhile, refuses = [], [False]

    class Late(Scales):
        def __init__(self, node):
            super().__init__(node)
            if meanwhile:
                meanwhile.pop()()
                refuses[0] = True

        def prepare_weights(self, weights):
            if refuses[0] and self.sets:
                raise ValueError("not now")
            super().prepare_weights(weights)

    register(Late)
    session = opened(plan._replace(entries={"again": again}))
    session.weights.version  # noqa: B018 - makes the session's weights
    meanwhile.append(lambda: session.weights.update("w", SETS[1]))
    with pytest.raises(taper_runtime.KernelError, match="not now"):
        session.run(None, {"x": X}, entry="again")
    refuses[0] = False
    (y,) = session.run(None, {"x": X}, entry="again")
    np.testing.assert_allclose(y, expected(SETS[1], SETS[0]), rtol=1e-6)
