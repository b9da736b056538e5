"""Test the session: ONNX Runtime's interface, checked inputs, concurrency, no torch."""

import copy
import math
import os
import pickle
import re
import subprocess
import sys
import threading
from collections import UserDict

import numpy as np
import pytest

import taper_runtime
from plan_files import small_plan
from taper_runtime.native import _kernels
from taper_runtime.ops.opdef import contiguous_strides
from taper_runtime.plan.plan import Placement, Plan, PlanNode, TensorSpec
from taper_runtime.plan.validate import validate


def tensor(name, role, shape=(2, 3), dtype="float32"):
    return TensorSpec(name, dtype, shape, role)


def make_plan(nodes, specs, *, constants=None, states=None):
    """A plan whose tensors all have memory of their own."""
    placements = {
        spec.name: Placement(spec.name, 0, contiguous_strides(spec.shape)) for spec in specs
    }
    plan = Plan(
        nodes=tuple(nodes),
        tensors={spec.name: spec for spec in specs},
        placements=placements,
        inputs=tuple(s.name for s in specs if s.role == "input"),
        outputs=tuple(
            s.name for s in specs if s.role == "output" and s.name not in (states or {}).values()
        ),
        constants=constants or {},
        states=states or {},
    )
    validate(plan)
    return plan


@pytest.fixture
def add_mul():
    """y = (a + b) * 2 through the arena, z = a - b."""
    return make_plan(
        [
            PlanNode("ADD", ("a", "b"), ("t",)),
            PlanNode("MUL", ("t",), ("y",), {"scalar": 2.0, "scalar_index": 1}),
            PlanNode("SUB", ("a", "b"), ("z",)),
        ],
        [
            tensor("a", "input"),
            tensor("b", "input"),
            tensor("t", "intermediate"),
            tensor("y", "output"),
            tensor("z", "output"),
        ],
    )


@pytest.fixture(params=["compiled", "interpreted"])
def session(request, add_mul):
    options = taper_runtime.SessionOptions()
    options.executor = request.param
    return taper_runtime.InferenceSession(add_mul, options)


A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.full((2, 3), 10, np.float32)


def test_run_returns_outputs_in_order(session):
    y, z = session.run(None, {"a": A, "b": B})
    np.testing.assert_array_equal(y, (A + B) * 2)
    np.testing.assert_array_equal(z, A - B)


def test_run_returns_named_outputs(session):
    (z,) = session.run(["z"], {"a": A, "b": B})
    np.testing.assert_array_equal(z, A - B)
    with pytest.raises(taper_runtime.InputError, match="unknown output 'w'"):
        session.run(["w"], {"a": A, "b": B})


def test_outputs_are_fresh(session):
    first = session.run(None, {"a": A, "b": B})
    second = session.run(None, {"a": B, "b": B})
    np.testing.assert_array_equal(first[0], (A + B) * 2)
    assert not np.shares_memory(first[0], second[0])


def test_describes_inputs_and_outputs(session):
    assert session.get_inputs()[0] == ("a", [2, 3], "tensor(float)", True)
    assert [output.name for output in session.get_outputs()] == ["y", "z"]


@pytest.mark.parametrize(
    ("feed", "message"),
    [
        ({"a": A}, "missing input 'b'"),
        ({"a": A, "b": B, "c": B}, r"unknown inputs \['c'\]"),
        ({"a": A, "b": B.tolist()}, "input 'b': expected a numpy array, got list"),
        ({"a": A, "b": B.astype(np.float64)}, "input 'b': expected dtype float32, got float64"),
        ({"a": A, "b": B[:1]}, r"input 'b': expected shape \(2, 3\), got \(1, 3\)"),
        ({"a": A, "b": B.astype(">f4")}, "input 'b': expected dtype float32, got >f4"),
    ],
)
def test_unfit_input_is_refused(session, feed, message):
    with pytest.raises(taper_runtime.InputError, match=message):
        session.run(None, feed)
    session.run(None, {"a": A, "b": B})  # and the session lives on


def test_strided_and_misaligned_inputs_are_read_right(session):
    wide = np.zeros((3, 4), np.float32).T[:3:2, :]
    wide[...] = A
    raw = np.zeros(25, np.uint8)
    misaligned = raw[1:].view(np.float32).reshape(2, 3)
    misaligned[...] = B
    readonly = A.copy()
    readonly.flags.writeable = False
    y, _ = session.run(None, {"a": wide, "b": misaligned})
    np.testing.assert_array_equal(y, (A + B) * 2)
    y, _ = session.run(None, {"a": readonly, "b": B})
    np.testing.assert_array_equal(y, (A + B) * 2)


def test_same_array_for_two_inputs(session):
    y, z = session.run(None, {"a": A, "b": A})
    np.testing.assert_array_equal(y, A * 4)
    np.testing.assert_array_equal(z, A * 0)


def test_many_threads_share_a_session(session):
    failures = []

    def work(value):
        a = np.full((2, 3), value, np.float32)
        for _ in range(200):
            y, z = session.run(None, {"a": a, "b": B})
            if not ((y == (a + B) * 2).all() and (z == a - B).all()):
                failures.append(value)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_numpy_nodes_run_between_native_ones():
    plan = make_plan(
        [
            PlanNode("ADD", ("a",), ("t",), {"scalar": 1.0, "scalar_index": 1}),
            PlanNode("LGAMMA", ("t",), ("u",)),
            PlanNode("ADD", ("u", "a"), ("y",)),
        ],
        [
            tensor("a", "input"),
            tensor("t", "intermediate"),
            tensor("u", "intermediate"),
            tensor("y", "output"),
        ],
    )
    for executor in ("compiled", "interpreted"):
        options = taper_runtime.SessionOptions()
        options.executor = executor
        (y,) = taper_runtime.InferenceSession(plan, options).run(None, {"a": A})
        lgamma = np.vectorize(math.lgamma)(A + 1).astype(np.float32)
        np.testing.assert_array_equal(y, lgamma + A)
        options.strict_native = True
        with pytest.raises(taper_runtime.UnsupportedOpError, match=r"u = LGAMMA\(t\)"):
            taper_runtime.InferenceSession(plan, options)


def test_refused_node_says_which_kernels_there_are():
    plan = make_plan(
        [PlanNode("MATMUL", ("a", "w"), ("u",)), PlanNode("LGAMMA", ("b",), ("y",))],
        [
            tensor("a", "input", (2, 3), "int16"),
            tensor("w", "constant", (3, 4), "int16"),
            tensor("b", "input", (2, 4)),
            tensor("u", "output", (2, 4), "int16"),
            tensor("y", "output", (2, 4)),
        ],
        constants={"w": np.ones((3, 4), np.int16)},
    )
    options = taper_runtime.SessionOptions()
    options.strict_native = True
    for executor in ("compiled", "interpreted"):
        options.executor = executor
        with pytest.raises(taper_runtime.UnsupportedOpError) as caught:
            taper_runtime.InferenceSession(plan, options)
        message = str(caught.value)
        assert "of int16[2, 3], int16[3, 4] -> int16[2, 4]" in message
        weights = r"float32\|float16.* in plain\|panels.0\|panels.1.*, any dtype... -> float32"
        assert re.search(f"f32_matmul: float32, {weights}", message)
        assert "kernels of LGAMMA:\n    none" in message


def test_index_out_of_range_names_the_node():
    plan = make_plan(
        [PlanNode("EMBEDDING", ("w", "i"), ("y",))],
        [
            tensor("i", "input", (2,), "int64"),
            tensor("w", "constant", (5, 4)),
            tensor("y", "output", (2, 4)),
        ],
        constants={"w": np.ones((5, 4), np.float32)},
    )
    session = taper_runtime.InferenceSession(plan)
    with pytest.raises(
        taper_runtime.InputError,
        match=r"node y \(EMBEDDING\): expected indices in \[0, 5\), got 0 to 5",
    ):
        session.run(None, {"i": np.array([0, 5])})
    (y,) = session.run(None, {"i": np.array([0, 4])})
    np.testing.assert_array_equal(y, np.ones((2, 4)))


def test_empty_tensors_run(tmp_path):
    plan = make_plan(
        [PlanNode("ADD", ("a",), ("y",), {"scalar": 1.0, "scalar_index": 1})],
        [tensor("a", "input", (0, 3)), tensor("y", "output", (0, 3))],
    )
    plan.save(tmp_path / "empty.taper")
    session = taper_runtime.InferenceSession(tmp_path / "empty.taper")
    (y,) = session.run(None, {"a": np.empty((0, 3), np.float32)})
    assert y.shape == (0, 3)


def run_python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_few_plans_need_is_not_imported_for_others(tmp_path):
    small_plan().save(tmp_path / "m.taper")
    code = f"""
import sys, numpy
before = set(sys.modules)
import taper_runtime
session = taper_runtime.InferenceSession({str(tmp_path / "m.taper")!r})
seldom = ("ops.conv", "ops.fft", "ops.linalg", "ops.control", "ops.random", "formats.blocks")
seldom += ("plan.weights", "plan.order", "plan.recipes", "format.expression", "format.foreign")
seldom += ("executor.interpreted", "executor.rollback", "executor.interval")
found = {{"threading", *(f"taper_runtime.{{name}}" for name in seldom)}} - before
found &= set(sys.modules)
assert not found, found
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr


def test_import_needs_neither_torch_nor_much_else():
    code = """
import sys, numpy
before = set(sys.modules)
import taper_runtime
new = {name.partition(".")[0] for name in set(sys.modules) - before}
assert "torch" not in new, new
heavy = new & {"argparse", "asyncio", "email", "http", "unittest", "xml", "logging"}
assert not heavy, heavy
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr


def test_isa_level_is_chosen_by_name():
    code = f"""
import sys
sys.path[:0] = {sys.path!r}
from taper_runtime.native import _kernels
print(_kernels.active_isa())
"""
    for isa in _kernels.available_isas():
        assert run_python(code, TAPER_ISA=isa).stdout.strip() == isa


def test_unknown_isa_is_refused():
    code = """
from taper_runtime.native import _kernels
try:
    _kernels.active_isa()
except Exception as error:
    print(type(error).__name__, error)
"""
    result = run_python(code, TAPER_ISA="abacus")
    assert result.stdout.startswith("TaperError TAPER_ISA='abacus': expected one of")


def large_plan():
    """Products and rows large enough to be worth several threads."""
    specs = [
        tensor("x", "input", (96, 256)),
        tensor("w", "constant", (256, 320)),
        tensor("t", "intermediate", (96, 320)),
        tensor("y", "output", (96, 320)),
    ]
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((256, 320)).astype(np.float32)
    nodes = [
        PlanNode("MATMUL", ("x", "w"), ("t",)),
        PlanNode("SOFTMAX", ("t",), ("y",), {"axis": 1}),
    ]
    return make_plan(nodes, specs, constants={"w": weights})


def test_any_thread_count_gives_the_same_bits():
    x = np.random.default_rng(1).standard_normal((96, 256)).astype(np.float32)
    results = []
    for threads in (1, 2, 3, 8):
        options = taper_runtime.SessionOptions()
        options.intra_op_num_threads = threads
        session = taper_runtime.InferenceSession(large_plan(), options)
        results += [session.run(None, {"x": x})[0] for _ in range(3)]
    for result in results:
        np.testing.assert_array_equal(result, results[0])


def test_forked_child_runs_on_threads_of_its_own():
    options = taper_runtime.SessionOptions()
    options.intra_op_num_threads = 2
    session = taper_runtime.InferenceSession(large_plan(), options)
    x = np.ones((96, 256), np.float32)
    want = session.run(None, {"x": x})[0]
    child = os.fork()
    if child == 0:
        same = np.array_equal(session.run(None, {"x": x})[0], want)
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("threads", ["many", "-1", "0", "2147483648", "1.0", "9" * 5000])
def test_bad_thread_count_of_the_environment_is_refused(threads, monkeypatch):
    monkeypatch.setenv("TAPER_NUM_THREADS", threads)
    with pytest.raises(taper_runtime.InputError, match="at least 1 and at most 2147483647, got"):
        taper_runtime.InferenceSession(large_plan())


def test_out_is_written_in_place(session):
    mine = np.empty((2, 3), np.float32)
    y, z = session.run(None, {"a": A, "b": B}, out={"y": mine})
    assert y is mine
    np.testing.assert_array_equal(mine, (A + B) * 2)
    np.testing.assert_array_equal(z, A - B)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.empty((3, 2), np.float32), "expected shape"),
        (np.empty((2, 3), np.float64), "expected dtype"),
        (np.empty((3, 2), np.float32).T, "C-contiguous"),
        (np.frombuffer(bytes(24), np.float32).reshape(2, 3), "writable"),
        ([[0.0] * 3] * 2, "numpy array"),
        (A, "its own memory"),
    ],
)
def test_unfit_out_is_refused_unwritten(session, array, words):
    before = np.array(array)
    with pytest.raises(taper_runtime.InputError, match=r"out\['y'\].*" + words):
        session.run(None, {"a": A, "b": B}, out={"y": array})
    np.testing.assert_array_equal(before, array)


def test_two_outs_must_not_share_memory(session):
    mine = np.empty((3, 3), np.float32)
    with pytest.raises(taper_runtime.InputError, match=r"out\['z'\].*its own memory"):
        session.run(None, {"a": A, "b": B}, out={"y": mine[:2], "z": mine[1:]})


def test_unknown_out_is_refused(session):
    with pytest.raises(taper_runtime.InputError, match=r"unknown outputs.*'w'"):
        session.run(None, {"a": A, "b": B}, out={"w": np.empty((2, 3), np.float32)})


@pytest.mark.parametrize("executor", ["compiled", "interpreted"])
def test_out_serves_an_output_that_stands_twice(add_mul, executor):
    options = taper_runtime.SessionOptions()
    options.executor = executor
    twice = taper_runtime.InferenceSession(add_mul._replace(outputs=("z", "y", "y")), options)
    mine = np.empty((2, 3), np.float32)
    z, first, second = twice.run(None, {"a": A, "b": B}, out={"y": mine})
    assert first is mine
    np.testing.assert_array_equal(second, (A + B) * 2)
    np.testing.assert_array_equal(z, A - B)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((A, B), "input_feed: expected a dict of arrays by name of .*'a', 'b'.*, got ndarray"),
        ((None, [A, B]), "input_feed: expected a dict .*, got list"),
        ((None, None), "input_feed: expected a dict .*, got NoneType"),
        (
            (A,),
            r"input_feed: .*; write run\(None, {'a': ..., 'b': ...}\), or session\(...\) with",
        ),
        (
            ("y", {"a": A, "b": B}),
            "output_names: expected a list .*'y', 'z'.*, got 'y'",
        ),
        ((A, {"a": A, "b": B}), "output_names: expected a list .*, got ndarray"),
        (([["y"]], {"a": A, "b": B}), r"unknown output \['y'\]"),
        ((None, {"a": A, 3: B}), r"missing input 'b'.*got \['3', 'a'\]"),
        ((None, {"a": A, "b": B, 3: B}), r"unknown inputs \['3'\]"),
        ((None, {"a": A, "b": B}, {"log": 1}), "run_options: expected RunOptions or None"),
    ],
)
def test_arguments_of_another_type_are_refused(session, args, words):
    with pytest.raises(taper_runtime.InputError, match=words):
        session.run(*args)


def test_out_must_stand_by_name(session):
    with pytest.raises(taper_runtime.InputError, match=r"out: expected a dict .*'z'.*, got list"):
        session.run(None, {"a": A, "b": B}, out=[A])


def test_a_feed_may_be_any_mapping(session):
    y, _ = session.run([], UserDict(a=A, b=B))
    np.testing.assert_array_equal(y, (A + B) * 2)


@pytest.mark.parametrize(
    ("metadata", "user"),
    [
        ({"user": {"labels": "cat dog"}, "passes": [{"name": "fold"}]}, {"labels": "cat dog"}),
        ({"passes": []}, {}),
        ({"user": {"n": 3, "inf": float("inf")}}, {"n": "3", "inf": "Infinity"}),
        ({"user": [1, 2]}, {}),
    ],
)
def test_modelmeta_is_the_makers_text(add_mul, metadata, user):
    plan = add_mul._replace(metadata={"producer": "frontend 1", **metadata})
    meta = taper_runtime.InferenceSession(plan).get_modelmeta()
    assert meta.producer_name == "frontend 1"
    assert meta.custom_metadata_map == user
    assert (meta.graph_name, meta.domain, meta.description, meta.version) == ("", "", "", 0)


def test_repr_is_one_line(add_mul, tmp_path):
    options = taper_runtime.SessionOptions()
    options.intra_op_num_threads = 1
    path = tmp_path / "m.taper"
    add_mul.save(path)
    assert repr(taper_runtime.InferenceSession(path, options)) == (
        f"<InferenceSession {str(path)!r}: a float32[2, 3], b float32[2, 3] -> "
        "y float32[2, 3], z float32[2, 3]; 1 thread>"
    )
    assert repr(taper_runtime.InferenceSession(add_mul)).startswith("<InferenceSession plan: a ")


def test_repr_escapes_names_and_cuts_lists(add_mul):
    names = {"y": "\x1b]0;pwned\x07\n", "z": "z" * 1000}
    specs = [tensor(f"i{i}", "input") for i in range(5)]
    specs += [tensor(name, "output") for name in names.values()]
    nodes = [
        PlanNode("ADD", ("i0", "i1"), (names["y"],)),
        PlanNode("ADD", ("i2", "i3"), (names["z"],)),
    ]
    text = repr(taper_runtime.InferenceSession(make_plan(nodes, specs)))
    assert text.isprintable()
    assert len(text) < 400
    assert "2 more" in text


def test_a_pickled_session_opens_its_path_again(add_mul, tmp_path, monkeypatch):
    add_mul.save(tmp_path / "m.taper")
    monkeypatch.chdir(tmp_path)
    options = taper_runtime.SessionOptions()
    options.intra_op_num_threads = 3
    session = taper_runtime.InferenceSession("m.taper", options, ["CPUExecutionProvider"])
    monkeypatch.chdir("/")
    pickled = pickle.dumps(session)
    for again in (pickle.loads(pickled), copy.deepcopy(session)):  # noqa: S301
        assert again.get_session_options().intra_op_num_threads == 3
        y, _ = again.run(None, {"a": A, "b": B})
        np.testing.assert_array_equal(y, (A + B) * 2)


@pytest.mark.parametrize("kind", ["plan", "bytes"])
def test_a_session_without_a_path_is_not_pickled(add_mul, tmp_path, kind):
    add_mul.save(tmp_path / "m.taper")
    model = add_mul if kind == "plan" else (tmp_path / "m.taper").read_bytes()
    with pytest.raises(taper_runtime.InputError, match="open it in each process"):
        pickle.dumps(taper_runtime.InferenceSession(model))


def test_a_pickled_session_keeps_its_state(tmp_path):
    plan = make_plan(
        [PlanNode("ADD", ("s", "a"), ("n",)), PlanNode("ADD", ("s", "a"), ("y",))],
        [
            tensor("a", "input"),
            tensor("s", "state"),
            tensor("n", "output"),
            tensor("y", "output"),
        ],
        constants={"s": np.zeros((2, 3), np.float32)},
        states={"s": "n"},
    )
    plan.save(tmp_path / "m.taper")
    session = taper_runtime.InferenceSession(tmp_path / "m.taper")
    session.run(None, {"a": A})
    again = pickle.loads(pickle.dumps(session))  # noqa: S301
    np.testing.assert_array_equal(again.run(None, {"a": A})[0], 2 * A)
    np.testing.assert_array_equal(session.run(None, {"a": A})[0], 2 * A)


class PathSession(taper_runtime.InferenceSession):
    """Pickled by its own means, as insightface does it."""

    def __init__(self, path, **kwargs):
        super().__init__(path, **kwargs)
        self.path = path

    def __getstate__(self):
        return {"path": self.path}

    def __setstate__(self, values):
        self.__init__(values["path"])


def test_a_subclass_may_pickle_itself(add_mul, tmp_path):
    add_mul.save(tmp_path / "m.taper")
    session = PathSession(str(tmp_path / "m.taper"), providers=["CPUExecutionProvider"])
    method = PathSession.__reduce_ex__(session, 2)
    assert method[2] == {"path": session.path}
    again = PathSession.__new__(PathSession)
    again.__setstate__(method[2])
    np.testing.assert_array_equal(again.run(["z"], {"a": A, "b": B})[0], A - B)


def test_sessions_are_sent_to_spawned_processes(add_mul, tmp_path):
    add_mul.save(tmp_path / "m.taper")
    code = f"""
import sys
sys.path[:0] = {sys.path!r}
import multiprocessing
import numpy as np
import taper_runtime
if __name__ == "__main__":
    a, b = np.ones((2, 3), np.float32), np.full((2, 3), 2, np.float32)
    session = taper_runtime.InferenceSession("m.taper")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        (y,) = pool.apply(session.run, (["y"], {{"a": a, "b": b}}))
    print(y.tolist())
"""
    (tmp_path / "main.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "[[6.0, 6.0, 6.0], [6.0, 6.0, 6.0]]", done.stderr


@pytest.mark.parametrize("model", [3, None, bytearray(b"x"), ["m.taper"]])
def test_a_model_of_another_type_is_refused(model):
    with pytest.raises(taper_runtime.InputError, match="expected a path, bytes or a Plan, got"):
        taper_runtime.InferenceSession(model)


def test_a_model_may_be_bytes(add_mul, tmp_path):
    add_mul.save(tmp_path / "m.taper")
    session = taper_runtime.InferenceSession((tmp_path / "m.taper").read_bytes())
    np.testing.assert_array_equal(session.run(["z"], {"a": A, "b": B})[0], A - B)
    with pytest.raises(taper_runtime.PlanFormatError):
        taper_runtime.InferenceSession(b"garbage of more than eight bytes")


@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
def test_what_is_no_file_is_refused_at_once(tmp_path, kind):
    path = {"fifo": tmp_path / "fifo", "device": "/dev/zero", "folder": tmp_path}[kind]
    if kind == "fifo":
        os.mkfifo(path)
    with pytest.raises(OSError, match=str(path)):
        taper_runtime.InferenceSession(path)


def test_show_config_names_isa_threads_and_kernels(capsys, monkeypatch):
    monkeypatch.setenv("TAPER_NUM_THREADS", "3")
    taper_runtime.show_config()
    isa, threads, kernels = capsys.readouterr().out.splitlines()
    assert _kernels.active_isa() in isa
    assert "3 by TAPER_NUM_THREADS of" in threads
    assert "MATMUL" in kernels
