"""Kernels of users, in Python and in C, and the order of providers."""

import shutil
import subprocess
import threading

import numpy as np
import pytest

import taper_runtime
from graph_checks import Builder, floats
from taper_frontend.compiler.analysis.source_calls import function_of
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.graph.node import SourceCall, SourceLine
from taper_frontend.compiler.outline import outline
from taper_frontend.compiler.planning import make_plan
from taper_runtime.executor.compiled import CompiledExecutor
from taper_runtime.executor.executor import Settings
from taper_runtime.executor.interpreted import InterpretedExecutor
from taper_runtime.extend.providers import Dispatch

EXECUTORS = pytest.mark.parametrize("executor", ["compiled", "interpreted"])
RELU = "aten.relu.default"
X = floats(3, 4, seed=7)


@pytest.fixture
def register():
    """Register kernels that do not outlive the test."""
    names = []

    def register(target, function, name="mine", **more):
        taper_runtime.register_kernel(target, function, name=name, **more)
        names.append(name)

    yield register
    for name in names:
        taper_runtime.unregister_kernel(name)


def kept_plan():
    """``softmax(relu(x) @ w)`` whose relu is kept."""
    b = Builder()
    x = b.input("x", 3, 4)
    relu = b.graph.add_node("RELU", [x], name="relu", source=SourceLine("", (RELU,)))
    y = b.op("SOFTMAX", b.op("MATMUL", relu, b.weight(4, 5)), axis=1)
    graph = b.done(y)
    outline(graph, {"relu"}, "CALL", {"arguments": '{"inplace": false}'}, inputs=["x"])
    compile_graph(graph, output_names=["y"])
    return make_plan(graph)


def opened(plan, executor="compiled", providers=None, **options):
    chosen = taper_runtime.SessionOptions()
    chosen.executor = executor
    for name, value in options.items():
        setattr(chosen, name, value)
    return taper_runtime.InferenceSession(plan, chosen, providers)


def run(session, x=X):
    (y,) = session.run(None, {"x": x})
    return y


def ours(plan, x=X):
    return run(opened(plan, providers=["CPUExecutionProvider"]), x)


def relu(inputs, outputs, attrs):
    np.maximum(inputs[0], 0, out=outputs[0])


@EXECUTORS
def test_a_function_computes_the_calls_of_its_target(register, executor):
    seen = []

    def function(inputs, outputs, attrs):
        seen.append((len(inputs), attrs, outputs[0].ctypes.data, inputs[0].flags.writeable))
        relu(inputs, outputs, attrs)

    plan = kept_plan()
    expected = ours(plan)
    register(f"torch.ops.{RELU}", function)
    session = opened(plan, executor)
    assert session.get_providers() == ["User", "CPUExecutionProvider"]
    assert session.kernel_kinds()["user"] == ("relu",)
    for _ in range(2):
        assert np.array_equal(run(session), expected)
    assert [each[:2] + each[3:] for each in seen] == [(1, {"inplace": False}, False)] * 2
    if executor == "compiled":
        assert seen[0][2] == seen[1][2]  # the place in the arena
    off = opened(plan, executor, ["CPUExecutionProvider"])
    assert off.kernel_kinds()["user"] == ()
    assert np.array_equal(run(off), expected)
    assert len(seen) == 2


@EXECUTORS
def test_a_function_computes_all_nodes_of_its_op(register, executor):
    plan = kept_plan()
    expected = ours(plan)
    register("SOFTMAX", lambda inputs, outputs, attrs: outputs[0].fill(attrs["axis"]))
    session = opened(plan, executor)
    assert np.array_equal(run(session), np.full_like(expected, 1))
    assert len(session.kernel_kinds()["user"]) == 1


def test_the_last_that_takes_the_dtypes_is_taken(register):
    plan = kept_plan()
    register("SOFTMAX", lambda i, o, a: o[0].fill(1), name="one")
    register("SOFTMAX", lambda i, o, a: o[0].fill(2), name="two")
    register("SOFTMAX", lambda i, o, a: o[0].fill(3), name="halves", dtypes=["float16"])
    assert set(run(opened(plan)).flat) == {2.0}
    taper_runtime.register_kernel("SOFTMAX", lambda i, o, a: o[0].fill(4), name="one", replace=True)
    assert set(run(opened(plan)).flat) == {4.0}


@EXECUTORS
def test_providers_are_asked_in_order(register, executor):
    plan = kept_plan()
    expected = ours(plan)
    register("SOFTMAX", lambda i, o, a: o[0].fill(1), name="a", provider="First")
    register("MATMUL", lambda i, o, a: o[0].fill(1), name="b", provider="Second")
    available = ["Second", "First", "CPUExecutionProvider", "NativeCPU", "Numpy"]
    assert taper_runtime.get_available_providers() == available
    names = ["NativeCPU", "First", "Numpy"]
    session = opened(plan, executor, names)
    assert session.get_providers() == names
    assert session.get_provider_options() == {name: {} for name in names}
    assert session.kernel_kinds()["user"] == ()
    assert np.array_equal(run(session), expected)
    assert set(run(opened(plan, executor, ["First", "CPUExecutionProvider"])).flat) == {1.0}
    slow = opened(plan, executor, ["Numpy"])
    assert slow.kernel_kinds()["numpy"]
    np.testing.assert_allclose(run(slow), expected, rtol=1e-5)


@EXECUTORS
def test_what_no_provider_computes_is_refused(register, executor):
    register("SOFTMAX", relu)
    with pytest.raises(
        taper_runtime.UnsupportedOpError,
        match="expected User to compute every node, got no kernel for",
    ) as e:
        opened(kept_plan(), executor, ["User"])
    assert "MATMUL" in str(e.value)
    assert "SOFTMAX" not in str(e.value)


def test_unknown_providers_list_what_there_is(register):
    register("SOFTMAX", relu, provider="Mine")
    with pytest.raises(taper_runtime.InputError, match=r"'Nin'; did you mean.*Mine, CPUExec"):
        opened(kept_plan(), providers=["Nin"])
    session = opened(kept_plan())
    session.set_providers(["Mine", "NativeCPU", "Numpy"])
    with pytest.raises(taper_runtime.InputError, match="open another session"):
        session.set_providers(["Numpy"])


def test_sessions_of_other_processes_have_their_providers(register, tmp_path):
    import pickle

    kept_plan().save(tmp_path / "m.taper")
    register("SOFTMAX", relu, provider="Mine")
    session = taper_runtime.InferenceSession(
        tmp_path / "m.taper", providers=["Mine", "CPUExecutionProvider"]
    )
    again = pickle.loads(pickle.dumps(session))  # noqa: S301 - our own
    assert again.get_providers() == ["Mine", "CPUExecutionProvider"]


@EXECUTORS
@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda i, o, a: i[0], r"return nothing, got ndarray"),
        (lambda i, o, a: o[0].fill("x"), "raised ValueError"),
        (lambda i, o, a: o[0].__setitem__(..., np.zeros((7, 7))), "raised ValueError"),
        (lambda i, o, a: setattr(o[0], "shape", (12,)), r"of shape \(3, 4\), got \(12,\)"),
        (lambda i, o, a: i[0].fill(1), "raised ValueError.*read-only"),
    ],
)
@pytest.mark.filterwarnings("ignore:Setting the shape")
def test_a_broken_contract_names_kernel_and_node(register, executor, function, words):
    plan = kept_plan()
    fail = [True]

    def sometimes(inputs, outputs, attrs):
        if fail[0]:
            return function(inputs, outputs, attrs)
        return relu(inputs, outputs, attrs)

    register(RELU, sometimes)
    session = opened(plan, executor)
    with pytest.raises(taper_runtime.KernelError, match=words) as caught:
        run(session)
    assert "node relu (CALL): kernel 'mine'" in str(caught.value)
    fail[0] = False
    assert np.array_equal(run(session), ours(plan))


def test_many_threads_call_it(register):
    plan = kept_plan()
    register(RELU, relu)
    session = opened(plan, intra_op_num_threads=2)
    wrong = []

    def work(seed):
        x = floats(3, 4, seed=seed)
        expected = ours(plan, x)
        wrong.extend(seed for _ in range(20) if not np.array_equal(run(session, x), expected))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ("target", "more", "words"),
    [
        ("RELUU", {}, "unknown op 'RELUU'; did you mean 'RELU'.*aten.relu.default"),
        ("aten.relu", {}, r"with its overload, such as 'aten.relu.default', got 'aten.relu'"),
        ("torch.ops.aten.relu.default.x", {}, "with its overload"),
        ("IF", {}, "without blocks"),
        ("RELU", {"dtypes": ["float23"]}, "unknown dtype 'float23'; expected some of.*'float32'"),
        ("RELU", {"provider": "NativeCPU"}, "a name that Taper and"),
        ("RELU", {"provider": "CUDAExecutionProvider"}, "a name that Taper and"),
    ],
)
def test_wrong_registrations_are_refused(target, more, words):
    with pytest.raises(taper_runtime.InputError, match=words):
        taper_runtime.register_kernel(target, relu, name="wrong", **more)
    with pytest.raises(taper_runtime.InputError, match="unknown kernel 'wrong'"):
        taper_runtime.unregister_kernel("wrong")


def test_names_are_unique(register):
    register("RELU", relu)
    with pytest.raises(taper_runtime.InputError, match="registered already"):
        taper_runtime.register_kernel("EXP", relu, name="mine")


@pytest.mark.parametrize("make", [CompiledExecutor, InterpretedExecutor])
def test_sizes_that_vary_reach_the_kernel(register, make):
    from taper_runtime.base.sizes import variable

    b = Builder()
    n = variable("n", 1, 9)
    b.graph.sizes["n"] = (1, 9)
    b.graph.examples["n"] = 3
    x = b.graph.add_input("x", "float32", (n, 2))
    graph = b.done(b.graph.add_node("RELU", [x], name="relu", source=SourceLine("", (RELU,))))
    outline(graph, {"relu"}, "CALL", {}, inputs=["x"])
    compile_graph(graph, output_names=["y"])
    plan = make_plan(graph)
    shapes = []

    def function(inputs, outputs, attrs):
        shapes.append(outputs[0].shape)
        relu(inputs, outputs, attrs)

    register(RELU, function)
    executor = make.compile(plan, Settings(dispatch=Dispatch(("User", "NativeCPU", "Numpy"))))
    for size in (1, 5):
        x = floats(size, 2, seed=size)
        (y,) = executor.run([x])
        assert np.array_equal(y, np.maximum(x, 0))
    assert shapes[-2:] == [(1, 2), (5, 2)]


# -- libraries of kernels --------------------------------------------------------------------------

SOURCE = r"""
#include <math.h>
#include "taper/kernels.h"

struct softmax_attrs { int64_t axis; bool log; };
static const taper_attr attrs[] = {%(attrs)s};

static taper_status prepare(const taper_call *call, taper_work *work) {
    const struct softmax_attrs *a = call->attrs;
    const taper_tensor *x = call->inputs;
    if (x->rank != 2 || a->axis != 1 || x->strides[0] != x->shape[1])
        return TAPER_UNSUPPORTED;
    *work = (taper_work){.tasks = x->shape[0]};
    return TAPER_OK;
}

static taper_status run(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    const int64_t n = call->inputs->shape[1];
    (void)scratch;
    for (int64_t r = begin; r < end; r++)
        for (int64_t k = 0; k < n; k++)
            ((float *)call->output->data)[r * n + k] = 0.25f;
    return TAPER_OK;
}

static taper_status always(const taper_call *call, taper_work *work) {
    work->tasks = call->output->shape[0];
    return TAPER_OK;
}

static taper_status relu(const taper_call *call, int64_t begin, int64_t end, void *scratch) {
    const int64_t n = call->output->shape[1];
    (void)scratch;
    for (int64_t e = begin * n; e < end * n; e++)
        ((float *)call->output->data)[e] = fmaxf(((float *)call->inputs->data)[e], 0);
    return TAPER_OK;
}

enum { F32 = 1 };
static const taper_attr call_attrs[] = {{"arguments", TAPER_ATTR_STRING, 0}};
static const taper_kernel kernels[] = {
    {.name = "quarter", .op = "%(op)s", .output = F32 | 1ull << 32, .inputs = {F32 | 1ull << 32},
     .n_operands = 1, .attrs = attrs, .n_attrs = sizeof attrs / sizeof *attrs,
     .attrs_bytes = sizeof(struct softmax_attrs), .state_bytes = 100000,
     .prepare = prepare, .run = %(run)s},
    {.name = "c_relu", .op = "aten.relu.default", .output = F32 | 1ull << 32,
     .inputs = {F32 | 1ull << 32}, .n_operands = 1, .attrs = call_attrs, .n_attrs = 1,
     .attrs_bytes = sizeof(char *), .prepare = always, .run = relu},
};
static const taper_library library = TAPER_LIBRARY(kernels);
const taper_library *taper_kernels(void);
const taper_library *taper_kernels(void) {
    static taper_library other;
    other = library;
    other.abi_version = %(version)s;
    return %(table)s;
}
"""

GOOD = {
    "attrs": '{"axis", TAPER_ATTR_INT, 0}, {"log", TAPER_ATTR_BOOL, 8}',
    "op": "SOFTMAX",
    "run": "run",
    "version": "TAPER_ABI_VERSION",
    "table": "&other",
}


def built(folder, **changes):
    """A library of the source with some parts changed."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    path, library = folder / "kernels.c", folder / "kernels.so"
    path.write_text(SOURCE % (GOOD | changes))
    command = ["cc", "-std=gnu11", "-O1", "-shared", "-fPIC", "-Wall", "-Werror", "-Wno-unused"]
    command += [f"-I{taper_runtime.get_include()}", str(path), "-o", str(library), "-lm"]
    subprocess.run(command, check=True)
    return library


@pytest.fixture
def library(tmp_path):
    names = taper_runtime.load_kernels(built(tmp_path), provider="Library")
    yield names
    for name in names:
        taper_runtime.unregister_kernel(name)


@EXECUTORS
def test_kernels_of_a_library_come_first(library, executor):
    assert library == ["quarter", "c_relu"]
    plan = kept_plan()
    session = opened(plan, executor, intra_op_num_threads=2)
    kinds = session.kernel_kinds()
    assert kinds["user"][0] == "relu"
    assert len(kinds["user"]) == 2
    assert np.array_equal(run(session), np.full((3, 5), 0.25, np.float32))
    later = opened(plan, executor, ["NativeCPU", "Library", "Numpy"])
    assert later.kernel_kinds()["user"] == ("relu",)  # ours have no kernel of a call
    assert np.array_equal(run(later), ours(plan))


@EXECUTORS
def test_a_kernel_in_c_serves_the_whole_calls_of_its_target(library, executor):
    b = Builder()
    relu = b.graph.add_node("RELU", [b.input("x", 3, 4)], name="relu")
    graph = b.done(b.op("SOFTMAX", relu, axis=0))
    node = graph.producers[relu]
    call = SourceCall('{"inplace": false}', function_of(graph, node))
    node.source = SourceLine("", (RELU,), call)
    compile_graph(graph, ())
    plan = make_plan(graph)
    session = opened(plan, executor)
    assert "relu" in session.kernel_kinds()["user"]
    assert np.array_equal(run(session), ours(plan))


def test_what_a_kernel_refuses_goes_to_the_next(library):
    b = Builder()
    graph = b.done(b.op("SOFTMAX", b.input("x", 2, 3, 4), axis=2))
    compile_graph(graph, output_names=["y"])
    plan = make_plan(graph)
    session = opened(plan)
    assert session.kernel_kinds()["native"] == ("y",)
    x = floats(2, 3, 4, seed=1)
    assert np.array_equal(run(session, x), ours(plan, x))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": "99"}, "expected version 3 of the interface.*got 99"),
        ({"table": "0"}, "expected taper_kernels to return a table"),
        ({"run": "0"}, "the functions prepare and run"),
        ({"op": "SOFTMAXX"}, "unknown op 'SOFTMAXX'; did you mean 'SOFTMAX'"),
        (
            {"attrs": '{"axis", TAPER_ATTR_FLOAT, 0}, {"log", TAPER_ATTR_BOOL, 8}'},
            r"attrs of SOFTMAX.*'int'.*got.*'float'",
        ),
        ({"attrs": '{"axes", TAPER_ATTR_INT, 0}'}, "attrs of SOFTMAX"),
        ({"attrs": '{"axis", TAPER_ATTR_INT, 12}'}, "inside the struct"),
        ({"attrs": '{"axis", 99, 0}'}, "attr 'axis': expected a type, got 99"),
    ],
)
def test_a_library_that_does_not_fit_is_refused_whole(tmp_path, changes, words):
    with pytest.raises(taper_runtime.InputError, match=words):
        taper_runtime.load_kernels(built(tmp_path, **changes))
    assert taper_runtime.get_available_providers()[0] == "CPUExecutionProvider"


def test_other_files_are_no_libraries_of_kernels(tmp_path):
    with pytest.raises(OSError, match="nothing"):
        taper_runtime.load_kernels(tmp_path / "nothing.so")
