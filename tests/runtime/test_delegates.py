"""Delegates: subgraphs that something else computes, refused unless the caller allows them."""

import re
import shutil
import subprocess
import threading

import numpy as np
import pytest

import taper_runtime
from graph_checks import Builder, floats
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.partition import Partition, register_backend, unregister_backend
from taper_frontend.compiler.planning import make_plan
from taper_frontend.delegates import elementwise_subgraphs
from taper_frontend.errors import CannotDelegate, ExportError
from taper_runtime.extend.servers import ServedNode
from taper_runtime.plan.plan import Plan
from taper_runtime.plan.replaceable import WeightSpec
from weighted_plans import weight

EXECUTORS = pytest.mark.parametrize("executor", ["compiled", "interpreted"])
X = floats(3, 4, seed=7)


class Recorder(taper_runtime.Delegate):
    """Computes the ops that its blob names, one after the other, and logs what it is asked."""

    log: list = []  # noqa: RUF012

    def __init__(self, node):
        super().__init__(node)
        self.ops = bytes(node.blob).decode().split()
        self.log.append(("init", node.name, self.ops))

    def prepare_weights(self, weights):
        self.log.append(("process", {i: array.shape for i, array in weights.items()}))

    def commit_weights(self):
        self.log.append(("commit",))

    def run(self, inputs, outputs):
        self.log.append(("run", self.node.name, threading.get_ident()))
        values = list(inputs)
        made = []
        for op in self.ops:
            value = values[-1] if made else values[0]
            if op == "MUL":
                value = value * inputs[1]
            elif op == "FAIL":
                raise RuntimeError("broken")
            else:
                value = {"TANH": np.tanh, "EXP": np.exp, "NEG": np.negative}[op](value)
            values.append(value)
            made.append(value)
        for output, value in zip(outputs, made[-len(outputs) :], strict=True):
            output[...] = value


def ops_of(graph):
    """The backend: the ops of a subgraph, as text."""
    return " ".join(node.op for node in graph.order()).encode()


@pytest.fixture
def recorder():
    register_backend("recorder", ops_of, Recorder)
    Recorder.log = []
    yield Recorder.log
    unregister_backend("recorder")


def block_graph():
    """Three subgraphs, with products and a sum between them."""
    b = Builder()
    x = b.input("x", 3, 4)
    w = b.weight(4, name="scale")
    first = b.op("TANH", b.op("MUL", x, w))
    product = b.op("MATMUL", first, b.weight(4, 4, seed=2))
    second = b.op("EXP", b.op("NEG", product))
    third = b.op("NEG", b.op("TANH", b.op("ADD", b.op("MATMUL", second, b.weight(4, 4)), first)))
    return b.done(third, second)


def subgraphs_of(graph):
    found = {node.op: [] for node in graph.order()}
    for node in graph.order():
        found[node.op].append(node.output)
    (mul,), (tanh, tanh_1), (neg, neg_1), (exp,) = (
        found[op] for op in ("MUL", "TANH", "NEG", "EXP")
    )
    return [[mul, tanh], [neg, exp], [tanh_1, neg_1]]


def delegated(subgraphs, backend="recorder", graph=None):
    graph = block_graph() if graph is None else graph
    partition = Partition(subgraphs, backend)
    names = ["y", "z"][: len(graph.outputs)]
    compile_graph(graph, partition=partition, output_names=names, verify=True)
    return make_plan(graph), partition


def options(executor="compiled", allow=False, **delegates):
    chosen = taper_runtime.SessionOptions()
    chosen.executor, chosen.delegates, chosen.allow_native_code = executor, delegates, allow
    return chosen


def reference(x=X):
    graph = block_graph()
    compile_graph(graph, output_names=["y", "z"])
    return taper_runtime.InferenceSession(make_plan(graph)).run(None, {"x": x})


def assert_close(got, expected):
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@EXECUTORS
def test_three_subgraphs_in_their_order(recorder, executor, tmp_path):
    plan, _ = delegated(subgraphs_of)
    plan.save(tmp_path / "m.taper")
    session = taper_runtime.InferenceSession(
        tmp_path / "m.taper", options(executor, recorder=Recorder)
    )
    assert len(session.kernel_kinds()["delegate"]) == 3
    inits = [event for event in recorder if event[0] == "init"]
    assert sorted(event[2] for event in inits) == [["MUL", "TANH"], ["NEG", "EXP"], ["TANH", "NEG"]]
    recorder.clear()
    assert_close(session.run(None, {"x": X}), reference())
    order = [event[1] for event in recorder]
    assert order == [node.output for node in plan.nodes if node.op == "CALL_DELEGATE"]
    for seed in range(5):  # nothing of one run is left for another
        x = floats(3, 4, seed=seed)
        assert_close(session.run(None, {"x": x}), reference(x))


def test_weights_are_processed_then_committed(recorder):
    plan, _ = delegated(subgraphs_of)
    taper_runtime.InferenceSession(plan, options(recorder=Recorder))
    first = next(i for i, event in enumerate(recorder) if event[:1] == ("init",))
    assert [event[0] for event in recorder[first : first + 3]] == ["init", "process", "commit"]
    assert ("process", {1: (4,)}) in recorder


def scaling_plan():
    """Two subgraphs, each a product with a weight that can be replaced."""
    b = Builder()
    x = b.input("x", 3, 4)
    first = b.op("TANH", b.op("MUL", x, b.weight(4, name="scale")))
    between = b.op("SIN", first)
    graph = b.done(b.op("EXP", b.op("MUL", between, b.weight(4, seed=3, name="gain"))))

    def subgraphs(graph):
        found = [node.output for node in graph.order() if node.op in ("MUL", "TANH", "EXP")]
        return [found[:2], found[2:]]

    plan, _ = delegated(subgraphs, graph=graph)
    return plan._replace(
        weights={name: WeightSpec(name, "parameter", "float32", (4,)) for name in SCALES},
        derived={name: (weight(name),) for name in SCALES},
    )


SCALES = {"scale": floats(4, seed=8), "gain": floats(4, seed=9)}


class Keeping(Recorder):
    """Has its own copy of each set of weights, which a run finds by the address of the weights."""

    refused: dict = {}  # noqa: RUF012 - by the op that a subgraph ends with: what it raises

    def __init__(self, node):
        super().__init__(node)
        self.sets = {}

    def prepare_weights(self, weights):
        super().prepare_weights(weights)
        if self.ops[-1] in self.refused:
            raise self.refused[self.ops[-1]]
        ((_, array),) = weights.items()
        self.next = array.ctypes.data, array.copy()

    def commit_weights(self):
        super().commit_weights()
        address, array = self.next
        self.sets[address] = array

    def run(self, inputs, outputs):
        super().run((inputs[0], self.sets[inputs[1].ctypes.data]), outputs)


@EXECUTORS
def test_delegates_prepare_new_weights_before_any_is_swapped(recorder, executor):
    session = taper_runtime.InferenceSession(scaling_plan(), options(executor, recorder=Keeping))
    recorder.clear()
    session.weights.update_many(SCALES)
    told = [event[0] for event in recorder if event[0] in ("process", "commit")]
    if executor == "compiled":
        assert told == ["process", "process", "commit", "commit"]
    got = session.run(None, {"x": X})
    plan = scaling_plan()
    fresh = plan._replace(constants={**plan.constants, **SCALES})
    wanted = taper_runtime.InferenceSession(fresh, options(recorder=None)).run(None, {"x": X})
    assert_close(got, wanted)


def test_delegates_are_told_of_weights_of_theirs_alone(recorder):
    session = taper_runtime.InferenceSession(scaling_plan(), options(recorder=Keeping))
    recorder.clear()
    session.weights.update("gain", SCALES["gain"])
    assert [event[0] for event in recorder] == ["process", "commit"]
    assert session.run(None, {"x": X})


@EXECUTORS
def test_a_delegate_that_refuses_weights_keeps_the_old_ones(recorder, executor, monkeypatch):
    session = taper_runtime.InferenceSession(scaling_plan(), options(executor, recorder=Keeping))
    before, version = session.run(None, {"x": X}), session.weights.version
    session.weights.load(SCALES)
    monkeypatch.setattr(Keeping, "refused", {"EXP": ValueError("too large")})
    recorder.clear()
    with pytest.raises((taper_runtime.KernelError, ValueError), match="too large") as caught:
        session.weights.commit()
    if executor == "compiled":
        assert isinstance(caught.value, taper_runtime.KernelError)
        words = (
            r"node \w+ \(CALL_DELEGATE\): delegate 'recorder': prepare_weights raised ValueError"
        )
        assert re.match(words, str(caught.value))
        assert ("commit",) not in recorder
    assert session.weights.version == version
    np.testing.assert_array_equal(session.run(None, {"x": X}), before)
    monkeypatch.setattr(Keeping, "refused", {})
    assert session.weights.commit() > version  # the set that was loaded is still there
    assert not np.array_equal(session.run(None, {"x": X}), before)


def test_everything_can_be_left_to_delegates(recorder):
    b = Builder()
    graph = b.done(b.op("EXP", b.op("NEG", b.input("x", 3, 4))))
    plan, _ = delegated(lambda graph: [list(graph.nodes)], graph=graph)
    session = taper_runtime.InferenceSession(plan, options("delegate", recorder=Recorder))
    np.testing.assert_allclose(session.run(None, {"x": X})[0], np.exp(-X), rtol=1e-6)
    words = r'executor="delegate": .* all computed by delegates, got 1 other node: .*CALL_DELEGATE'
    with pytest.raises(taper_runtime.InputError, match=words):
        taper_runtime.InferenceSession(plan, options("delegate", recorder=None))
    partial, _ = delegated(subgraphs_of)
    with pytest.raises(taper_runtime.InputError, match=r"2 other nodes: .*MATMUL"):
        taper_runtime.InferenceSession(partial, options("delegate", recorder=Recorder))


@EXECUTORS
def test_a_whole_graph_is_one_node(recorder, executor):
    b = Builder()
    x = b.input("x", 3, 4)
    graph = b.done(b.op("EXP", b.op("NEG", x)))
    plan, _ = delegated(lambda graph: [list(graph.nodes)], graph=graph)
    assert [node.op for node in plan.nodes] == ["CALL_DELEGATE"]
    session = taper_runtime.InferenceSession(plan, options(executor, recorder=Recorder))
    (y,) = session.run(None, {"x": X})
    np.testing.assert_allclose(y, np.exp(-X), rtol=1e-6)


@EXECUTORS
def test_a_subgraph_may_give_several_tensors(recorder, executor):
    b = Builder()
    x = b.input("x", 3, 4)
    neg = b.op("NEG", x)
    graph = b.done(neg, b.op("EXP", neg))
    plan, _ = delegated(lambda graph: [list(graph.nodes)], graph=graph)
    session = taper_runtime.InferenceSession(plan, options(executor, recorder=Recorder))
    y, z = session.run(None, {"x": X})
    np.testing.assert_array_equal(y, -X)
    np.testing.assert_allclose(z, np.exp(-X), rtol=1e-6)


def test_a_file_with_a_delegate_is_refused_by_default(recorder, tmp_path):
    plan, _ = delegated(subgraphs_of)
    plan.save(tmp_path / "m.taper")
    path = tmp_path / "m.taper"
    assert isinstance(taper_runtime.load(path), Plan)  # data, which may be looked at
    for refused in (None, options(), options(other=Recorder), options(allow=True)):
        with pytest.raises(taper_runtime.InputError, match=r"in SessionOptions\.delegates, got"):
            taper_runtime.InferenceSession(path, refused)
    assert not recorder


def test_machine_code_needs_to_be_allowed_too(recorder):
    class Native(Recorder):
        runs_machine_code = True

    plan, _ = delegated(subgraphs_of)
    with pytest.raises(taper_runtime.InputError, match="allow_native_code"):
        taper_runtime.InferenceSession(plan, options(recorder=Native))
    assert not recorder
    session = taper_runtime.InferenceSession(plan, options(allow=True, recorder=Native))
    assert_close(session.run(None, {"x": X}), reference())


@EXECUTORS
def test_without_their_delegate_subgraphs_are_run_as_graphs(recorder, executor):
    plan, _ = delegated(subgraphs_of)
    session = taper_runtime.InferenceSession(plan, options(executor, recorder=None))
    assert session.kernel_kinds()["delegate"] == ()
    assert_close(session.run(None, {"x": X}), reference())
    assert not recorder


def test_options_refuse_what_is_no_delegate():
    for wrong in ([Recorder], {"a": int}, {3: Recorder}, {"a": Recorder.run}):
        with pytest.raises(taper_runtime.InputError, match="delegates: expected"):
            taper_runtime.SessionOptions().delegates = wrong
    with pytest.raises(TypeError):
        taper_runtime.SessionOptions().delegates["a"] = Recorder
    assert dict(taper_runtime.SessionOptions().delegates) == {}


@EXECUTORS
def test_a_delegate_that_raises_names_its_node(recorder, executor):
    class Fails(Recorder):
        failing = True

        def run(self, inputs, outputs):
            if Fails.failing:
                raise RuntimeError("broken")
            super().run(inputs, outputs)

    plan, _ = delegated(subgraphs_of)
    session = taper_runtime.InferenceSession(plan, options(executor, recorder=Fails))
    name = next(node.output for node in plan.nodes if node.op == "CALL_DELEGATE")
    words = rf"node {name} \(CALL_DELEGATE\): delegate 'recorder' raised RuntimeError: broken"
    with pytest.raises(taper_runtime.KernelError, match=words):
        session.run(None, {"x": X})
    Fails.failing = False
    assert_close(session.run(None, {"x": X}), reference())


def test_a_subgraph_that_the_backend_cannot_take_stays(recorder):
    def picky(graph):
        if any(node.op == "EXP" for node in graph.order()):
            raise CannotDelegate("no exponentials")
        return ops_of(graph)

    unregister_backend("recorder")
    register_backend("recorder", picky, Recorder)
    plan, partition = delegated(subgraphs_of)
    assert sum(node.op == "CALL_DELEGATE" for node in plan.nodes) == 2
    (reason,) = partition.left
    assert reason.endswith(": no exponentials")
    session = taper_runtime.InferenceSession(plan, options(recorder=Recorder))
    assert_close(session.run(None, {"x": X}), reference())


@pytest.mark.parametrize(
    ("subgraphs", "words"),
    [
        (lambda graph: [["nothing"]], "expected nodes .* got 'nothing'"),
        (lambda graph: [[]], "expected nodes .* got none"),
        (lambda graph: None, "expected a list of subgraphs, got None"),
        (lambda graph: list(graph.nodes), "expected a list of nodes .* in a subgraph, got 'mul'"),
        (lambda graph: list(graph.nodes.values()), "expected a list of nodes .* got Node"),
        (lambda graph: [list(graph.nodes.values())] * 2, "expected each node in one subgraph"),
        (lambda graph: [list(graph.nodes)] * 2, "expected each node in one subgraph"),
        (
            lambda graph: [[name for subgraph in subgraphs_of(graph) for name in subgraph]],
            "no path that leaves the subgraph",
        ),
    ],
)
def test_subgraphs_are_checked(recorder, subgraphs, words):
    with pytest.raises(ExportError, match=words):
        delegated(subgraphs)


def test_a_subgraph_makes_no_size(recorder):
    """A size has to be known outside of the block that a delegate runs."""
    b = Builder()
    count = b.op("ABS", b.input("x", 1, dtype="int64"))
    b.graph.add_computed_size("n", (1, 8), (count, 0), 4)
    graph = b.done(b.op("NEG", count))
    with pytest.raises(ExportError, match=f"got 'n', an element of '{count}'"):
        Partition(lambda graph: [list(graph.nodes)], "recorder")(graph)


def test_unknown_backends_list_what_there_is(recorder):
    with pytest.raises(
        ExportError, match=r"did you mean 'recorder'\? expected one of 'c', 'recorder'"
    ):
        Partition(subgraphs_of, "recoder")
    with pytest.raises(ValueError, match="registered already"):
        register_backend("c", ops_of)


def test_a_blob_that_the_run_computes_is_refused(recorder):
    plan, _ = delegated(subgraphs_of)
    index = next(i for i, node in enumerate(plan.nodes) if node.op == "CALL_DELEGATE")
    node = plan.nodes[index]
    blob = node.inputs[0]
    spec = plan.tensors[blob]._replace(role="input")
    changed = plan._replace(
        tensors={**plan.tensors, blob: spec},
        inputs=(*plan.inputs, blob),
        constants={name: a for name, a in plan.constants.items() if name != blob},
        input_tree=None,
        metadata={},
    )
    with pytest.raises(taper_runtime.InputError, match="a constant with the delegate's bytes"):
        taper_runtime.InferenceSession(changed, options(recorder=Recorder))


class Closing(Recorder):
    """Logs that it is closed, and then raises if the test says so."""

    broken = False

    def close(self):
        self.log.append(("close", self.node.name))
        if self.broken:
            raise OSError("the device is gone")


@EXECUTORS
@pytest.mark.parametrize("policy", ["error", "fallback"])
def test_delegates_are_closed_with_the_session(recorder, executor, policy, monkeypatch):
    plan, _ = delegated(subgraphs_of)
    chosen = options(executor, recorder=Closing)
    chosen.on_delegate_failure = policy
    with taper_runtime.InferenceSession(plan, chosen) as session:
        session.run(None, {"x": X})
        assert "close" not in [event[0] for event in recorder]
    names = [node.output for node in plan.nodes if node.op == "CALL_DELEGATE"]
    assert sorted(event[1] for event in recorder if event[0] == "close") == sorted(names)
    session = taper_runtime.InferenceSession(plan, chosen)
    session.run(None, {"x": X})
    monkeypatch.setattr(Closing, "broken", True)
    recorder.clear()
    with pytest.raises(taper_runtime.KernelError, match="close raised OSError: the device is gone"):
        session.close()
    assert len(recorder) == 3  # one that fails keeps no other from being closed
    with pytest.raises(taper_runtime.TaperError, match="closed"):
        session.run(None, {"x": X})


# -- the backend "c" -------------------------------------------------------------------------------


@pytest.fixture
def compiler():
    if not shutil.which("cc"):
        pytest.skip("no C compiler")


@pytest.mark.usefixtures("compiler")
@EXECUTORS
def test_c_computes_elementwise_subgraphs(executor, tmp_path):
    plan, partition = delegated(elementwise_subgraphs, "c")
    assert not partition.left
    plan.save(tmp_path / "m.taper")
    chosen = options(executor, allow=True, c=taper_runtime.CDelegate)
    session = taper_runtime.InferenceSession(tmp_path / "m.taper", chosen)
    assert session.kernel_kinds()["delegate"]
    assert_close(session.run(None, {"x": X}), reference())


@pytest.mark.usefixtures("compiler")
def test_c_broadcasts_and_writes_any_number():
    b = Builder()
    x, y = b.input("x", 2, 1, 5), b.input("y", 3, 1)
    ends = [b.op("MUL", b.op("ADD", x, y), number) for number in (0.1, np.inf, -np.inf, np.nan)]
    ends.append(b.op("SUB", 2.5, b.op("SIGMOID", b.op("ADD", x, y))))
    graph = b.done(*ends)
    partition = Partition(lambda graph: [list(graph.nodes)], "c")
    compile_graph(graph, (), partition=partition, output_names=list("abcde"))
    assert not partition.left
    chosen = options(allow=True, c=taper_runtime.CDelegate)
    session = taper_runtime.InferenceSession(make_plan(graph), chosen)
    arrays = {"x": floats(2, 1, 5, seed=1), "y": floats(3, 1, seed=2)}
    total = arrays["x"] + arrays["y"]
    expected = [total * np.float32(n) for n in (0.1, np.inf, -np.inf, np.nan)]
    expected.append(2.5 - 1 / (1 + np.exp(-total)))
    assert_close(session.run(None, arrays), expected)


def test_without_a_compiler_subgraphs_stay(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    plan, partition = delegated(elementwise_subgraphs, "c")
    assert partition.left
    assert all("expected the compiler cc, got No such file" in reason for reason in partition.left)
    session = taper_runtime.InferenceSession(plan)
    assert session.kernel_kinds()["delegate"] == ()
    assert_close(session.run(None, {"x": X}), reference())


def test_c_says_what_it_cannot_take():
    graph = block_graph()
    partition = Partition(lambda graph: [list(graph.nodes)], "c")
    compile_graph(graph, partition=partition)
    (reason,) = partition.left
    assert "got MATMUL" in reason


def test_a_blob_that_is_no_library_is_refused(recorder):
    plan, _ = delegated(subgraphs_of)
    chosen = options(allow=True, recorder=taper_runtime.CDelegate)
    with pytest.raises(taper_runtime.InputError, match="its library does not load"):
        taper_runtime.InferenceSession(plan, chosen)


def library_bytes(folder):
    """A shared library without taper_subgraph."""
    source, library = folder / "other.c", folder / "other.so"
    source.write_text("static int a[5000] = {1}, b[9000]; int other(int i) { return a[i] + b[i]; }")
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    return library.read_bytes()


@pytest.mark.usefixtures("compiler")
def test_blobs_that_are_no_whole_library_are_refused(tmp_path):
    """Cut off anywhere, the loader of the system would end the process by SIGBUS."""
    whole = library_bytes(tmp_path)
    rng = np.random.default_rng(0)
    blobs = [whole[:end] for end in (*range(0, len(whole), 97), len(whole) - 1)]
    blobs += [rng.bytes(n) for n in (1, 63, 64, 5000)]
    blobs += [b"int taper_subgraph;", b"\x7fELF" + rng.bytes(60), b"\0" * (1 << 22)]
    for blob in blobs:
        node = ServedNode("y", np.frombuffer(blob, np.uint8), (), (), (), None)
        with pytest.raises(taper_runtime.InputError, match="'y': its library does not load"):
            taper_runtime.CDelegate(node)
    node = ServedNode("y", np.frombuffer(whole, np.uint8), (), (), (), None)
    with pytest.raises(taper_runtime.InputError, match="'y': its library has no taper_subgraph"):
        taper_runtime.CDelegate(node)
