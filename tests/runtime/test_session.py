"""The session: ONNX Runtime's interface, checked inputs, concurrency, no torch."""

import math
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import taper_runtime
from taper_runtime.executor import _native
from taper_runtime.ops.opdef import contiguous_strides
from taper_runtime.plan.plan import Placement, Plan, PlanNode, TensorSpec
from taper_runtime.plan.validate import validate


def tensor(name, role, shape=(2, 3), dtype="float32"):
    return TensorSpec(name, dtype, shape, role)


def make_plan(nodes, specs, *, constants=None, arena=None):
    """A plan whose intermediates lie one after the other in the arena."""
    placements = {}
    end = 0
    for spec in specs:
        offset = 0
        if spec.role == "intermediate":
            offset, end = end, end + -(-spec.nbytes // 64) * 64
        placements[spec.name] = Placement(spec.name, offset, contiguous_strides(spec.shape))
    plan = Plan(
        nodes=tuple(nodes),
        tensors={spec.name: spec for spec in specs},
        placements=placements,
        inputs=tuple(s.name for s in specs if s.role == "input"),
        outputs=tuple(s.name for s in specs if s.role == "output"),
        constants=constants or {},
        arena_bytes=end,
    )
    validate(plan)
    return plan


@pytest.fixture
def add_mul():
    """y = (a + b) * 2 through the arena, z = a - b."""
    return make_plan(
        [
            PlanNode("ADD", ("a", "b"), "t"),
            PlanNode("MUL", ("t",), "y", {"scalar": 2.0, "scalar_index": 1}),
            PlanNode("SUB", ("a", "b"), "z"),
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
    assert session.get_inputs()[0] == ("a", [2, 3], "tensor(float)")
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
            PlanNode("ADD", ("a",), "t", {"scalar": 1.0, "scalar_index": 1}),
            PlanNode("ERFC", ("t",), "u"),
            PlanNode("ADD", ("u", "a"), "y"),
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
        erfc = np.vectorize(math.erfc)(A + 1).astype(np.float32)
        np.testing.assert_array_equal(y, erfc + A)
        options.strict_native = True
        with pytest.raises(taper_runtime.UnsupportedOpError, match=r"u = ERFC\(t\)"):
            taper_runtime.InferenceSession(plan, options)


def test_index_out_of_range_names_the_node():
    plan = make_plan(
        [PlanNode("EMBEDDING", ("w", "i"), "y")],
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
        [PlanNode("ADD", ("a",), "y", {"scalar": 1.0, "scalar_index": 1})],
        [tensor("a", "input", (0, 3)), tensor("y", "output", (0, 3))],
    )
    plan.save(tmp_path / "empty.taper")
    session = taper_runtime.InferenceSession(tmp_path / "empty.taper")
    (y,) = session.run(None, {"a": np.empty((0, 3), np.float32)})
    assert y.shape == (0, 3)


def test_unknown_executor_is_refused(add_mul):
    options = taper_runtime.SessionOptions()
    options.executor = "magic"
    with pytest.raises(taper_runtime.InputError, match="expected one of"):
        taper_runtime.InferenceSession(add_mul, options)


def run_python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


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
from taper_runtime.executor import _native
print(_native.active_isa())
"""
    for isa in _native.available_isas():
        assert run_python(code, TAPER_ISA=isa).stdout.strip() == isa


def test_unknown_isa_is_refused():
    code = """
from taper_runtime.executor import _native
try:
    _native.active_isa()
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
    nodes = [PlanNode("MATMUL", ("x", "w"), "t"), PlanNode("SOFTMAX", ("t",), "y", {"axis": 1})]
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


@pytest.mark.parametrize("threads", [-1, 0])
def test_bad_thread_count_is_refused(threads, monkeypatch):
    monkeypatch.setenv("TAPER_NUM_THREADS", "many")
    options = taper_runtime.SessionOptions()
    options.intra_op_num_threads = threads
    with pytest.raises(taper_runtime.InputError, match="at least 1"):
        taper_runtime.InferenceSession(large_plan(), options)


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
        (A, "memory of its own"),
    ],
)
def test_unfit_out_is_refused_unwritten(session, array, words):
    before = np.array(array)
    with pytest.raises(taper_runtime.InputError, match=r"out\['y'\].*" + words):
        session.run(None, {"a": A, "b": B}, out={"y": array})
    np.testing.assert_array_equal(before, array)


def test_two_outs_must_not_share_memory(session):
    mine = np.empty((3, 3), np.float32)
    with pytest.raises(taper_runtime.InputError, match=r"out\['z'\].*memory of its own"):
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


def test_run_options_are_refused(session):
    with pytest.raises(taper_runtime.InputError, match="run_options"):
        session.run(None, {"a": A, "b": B}, {"log": 1})


def test_modelmeta_is_text(add_mul):
    plan = add_mul._replace(metadata={"producer": "frontend 1", "passes": [{"name": "fold"}]})
    meta = taper_runtime.InferenceSession(plan).get_modelmeta()
    assert meta.producer_name == "frontend 1"
    assert meta.custom_metadata_map["passes"] == '[{"name": "fold"}]'


def test_show_config_names_isa_threads_and_kernels(capsys, monkeypatch):
    monkeypatch.setenv("TAPER_NUM_THREADS", "3")
    taper_runtime.show_config()
    isa, threads, kernels = capsys.readouterr().out.splitlines()
    assert _native.active_isa() in isa
    assert "3 of" in threads
    assert "MATMUL" in kernels
