"""ONNX Runtime's names around a session: options, providers, values, bindings, logs, profiles.

What onnxruntime itself does was tried with version 1.32.
"""

import copy
import inspect
import json
import logging
import os
import pickle
import re
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

import taper_runtime
from plan_files import small_plan
from sized_plans import sized_arrays, sized_plan
from taper_runtime import InputError, OptionError, OrtValue, RunOptions, SessionOptions
from taper_runtime.reports import node_times

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture
def session():
    return taper_runtime.InferenceSession(small_plan())


@pytest.fixture
def y(session):
    return session.run(None, {"x": X})[0]


# Options ----------------------------------------------------------------------------------------


def test_options_have_onnx_runtimes_fields_and_defaults():
    options = SessionOptions()
    assert options.intra_op_num_threads == options.inter_op_num_threads == 0
    assert options.graph_optimization_level == taper_runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    assert options.execution_mode == taper_runtime.ExecutionMode.ORT_SEQUENTIAL
    assert options.enable_cpu_mem_arena
    assert not options.enable_profiling
    assert options.log_severity_level == RunOptions().log_severity_level == -1
    assert repr(options) == "SessionOptions()"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("intra_op_num_threads", 3),
        ("intra_op_num_threads", np.int64(3)),
        ("inter_op_num_threads", 1),
        ("graph_optimization_level", taper_runtime.GraphOptimizationLevel.ORT_DISABLE_ALL),
        ("execution_mode", taper_runtime.ExecutionMode.ORT_PARALLEL),
        ("execution_order", taper_runtime.ExecutionOrder.PRIORITY_BASED),
        ("enable_cpu_mem_arena", False),
        ("enable_mem_pattern", 0),
        ("log_severity_level", 4),
        ("logid", "mine"),
        ("use_deterministic_compute", True),
    ],
)
def test_options_keep_what_they_are_given(name, value):
    options = SessionOptions()
    setattr(options, name, value)
    assert getattr(options, name) == value
    assert repr(options) == f"SessionOptions({name}={getattr(options, name)!r})"
    session = taper_runtime.InferenceSession(small_plan(), options)
    setattr(options, name, getattr(SessionOptions(), name))
    assert getattr(session.get_session_options(), name) == value


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("intra_op_num_threads", -1, "at least 1 and at most 2147483647, or 0 .*, got -1"),
        ("intra_op_num_threads", 2**31, "at most 2147483647.*, got 2147483648"),
        ("intra_op_num_threads", True, "got True"),
        ("intra_op_num_threads", 2.0, r"got 2\.0"),
        ("intra_op_num_threads", "2", "got '2'"),
        ("inter_op_num_threads", -1, "at least 1"),
        ("graph_optimization_level", 99, "expected a member of GraphOptimizationLevel, got 99"),
        ("execution_mode", "fast", "expected a member of ExecutionMode, .*, got 'fast'"),
        ("enable_profiling", "yes", "expected True or False, got 'yes'"),
        ("log_severity_level", 5, r"4 \(fatal\).*got 5"),
        ("log_verbosity_level", -1, "at least 0"),
        ("logid", 3, "expected a string, got int"),
        ("executor", "magic", "'compiled', 'interpreted', 'checked', 'delegate', got 'magic'"),
    ],
)
def test_options_refuse_values(name, value, words):
    options = SessionOptions()
    with pytest.raises(InputError, match=f"{name}: .*{words}"):
        setattr(options, name, value)
    assert repr(options) == "SessionOptions()"


def test_execution_mode_by_name():
    options = SessionOptions()
    options.execution_mode = "parallel"
    assert options.execution_mode is taper_runtime.ExecutionMode.ORT_PARALLEL
    options.execution_mode = "sequential"
    assert repr(options) == "SessionOptions()"


def test_the_interpreted_executor_runs_no_nodes_at_the_same_time():
    options = SessionOptions()
    options.executor, options.execution_mode = "interpreted", "parallel"
    options.inter_op_num_threads = 2
    with pytest.raises(InputError, match=r"execution_mode: expected sequential, .* got parallel"):
        taper_runtime.InferenceSession(small_plan(), options)


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        (SessionOptions, "intra_op_num_thread", "did you mean 'intra_op_num_threads'"),
        (SessionOptions, "graph_optimisation_level", "did you mean 'graph_optimization_level'"),
        (SessionOptions, "add_session_config", "did you mean 'add_session_config_entry'"),
        (SessionOptions, "qqq", r"expected one of \[.*'add_session_config_entry', "),
        (SessionOptions, "optimized_model_filepath", "nothing is optimized at load"),
        (SessionOptions, "register_custom_ops_library", "taper_runtime.load_kernels loads"),
        (RunOptions, "log_severity", "did you mean 'log_severity_level'"),
        (RunOptions, "add_active_adapter", "no adapters"),
    ],
)
def test_options_refuse_other_names(kind, name, words):
    options = kind()
    with pytest.raises(OptionError, match=words):
        setattr(options, name, 1)
    with pytest.raises(AttributeError, match=words):  # which clients catch
        getattr(options, name)
    assert not hasattr(options, name)


@pytest.mark.parametrize(
    ("kind", "what"), [(SessionOptions, "session"), (RunOptions, "run")], ids=["session", "run"]
)
def test_config_entries_are_kept(kind, what):
    options = kind()
    add, get = (getattr(options, f"{verb}_{what}_config_entry") for verb in ("add", "get"))
    add("session.intra_op.allow_spinning", "0")
    add("session.intra_op.allow_spinning", "1")
    assert get("session.intra_op.allow_spinning") == "1"
    copied = options.copy()
    add("later", "1")
    with pytest.raises(InputError, match="no entry 'later'"):
        getattr(copied, f"get_{what}_config_entry")("later")
    with pytest.raises(InputError, match="expected a string, got int"):
        add("a", 1)


@pytest.mark.parametrize("kind", [SessionOptions, RunOptions])
def test_options_without_effect_are_documented_from_their_table(kind):
    """In ``help()``, in the page for users of ONNX Runtime, and for type checkers."""
    text = inspect.cleandoc(kind.__doc__)
    page = (Path(__file__).parents[2] / "docs" / "moving-from-onnxruntime.md").read_text()
    section = page.partition(f"### {kind.__name__}\n")[2].partition("\n### ")[0]
    rows = [line for line in section.splitlines() if "| no effect: " in line]
    named = {name: row for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named.keys() == kind._without_effect.keys()
    for name, option in kind._without_effect.items():
        assert f"\n{name} : {option.type}\n    No effect: {option.why}.\n" in text
        assert named[name].endswith(f"| no effect: {option.why} |")
        assert kind.__annotations__[name] == option.type
    public = {name for name in kind.__annotations__ if not name.startswith("_")}
    assert kind._fields.keys() == public - {"MemoryPlanning"}


def test_options_are_pickled_and_copied():
    options = SessionOptions()
    options.intra_op_num_threads = 2
    options.add_session_config_entry("a", "b")
    for again in (pickle.loads(pickle.dumps(options)), copy.deepcopy(options)):  # noqa: S301
        assert again.intra_op_num_threads == 2
        assert again.get_session_config_entry("a") == "b"


def test_sess_options_of_another_type_are_refused():
    with pytest.raises(InputError, match="sess_options: expected SessionOptions, got 3"):
        taper_runtime.InferenceSession(small_plan(), 3)


def test_a_terminated_run_does_not_begin(session):
    options = RunOptions()
    session.run(None, {"x": X}, options)
    options.terminate = True
    with pytest.raises(taper_runtime.TaperError, match="terminate"):
        session.run(None, {"x": X}, options)


# Providers --------------------------------------------------------------------------------------


def test_there_is_the_cpu(session):
    available = ["CPUExecutionProvider", "NativeCPU", "Numpy"]
    assert taper_runtime.get_available_providers() == available
    assert taper_runtime.get_all_providers()[-3:] == available
    assert "CUDAExecutionProvider" in taper_runtime.get_all_providers()
    assert taper_runtime.get_device() == "CPU"
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert session.get_provider_options() == {"CPUExecutionProvider": {}}
    assert session.get_overridable_initializers() == []
    session.disable_fallback()
    session.enable_fallback()


@pytest.mark.parametrize(
    ("providers", "options"),
    [
        (None, None),
        ([], None),
        (["CPUExecutionProvider"], None),
        (("CPUExecutionProvider",), [{"a": 1}]),
        ([("CPUExecutionProvider", {"arena_extend_strategy": "kSameAsRequested"})], None),
    ],
)
def test_the_cpu_may_be_asked_for(providers, options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = taper_runtime.InferenceSession(small_plan(), None, providers, options)
        session.set_providers(providers, options)


@pytest.mark.parametrize(
    "providers",
    [
        ["CUDAExecutionProvider", "CPUExecutionProvider"],
        [("CUDAExecutionProvider", {"device_id": 0}), "CPUExecutionProvider"],
        ["CPUExecutionProvider", "CUDAExecutionProvider"],
        ["CUDAExecutionProvider"],
    ],
)
def test_another_provider_is_a_warning(providers):
    with pytest.warns(UserWarning, match=r"CUDAExecutionProvider: not available here") as caught:
        session = taper_runtime.InferenceSession(small_plan(), providers=providers)
    assert [warning.filename for warning in caught] == [__file__]
    assert session.get_providers() == ["CPUExecutionProvider"]


@pytest.mark.parametrize(
    ("providers", "options", "words"),
    [
        (["CPUExecutionProvidr"], None, "did you mean 'CPUExecutionProvider'"),
        (["cuda"], None, "unknown provider 'cuda'"),
        ("CPUExecutionProvider", None, "providers: expected a list, got 'CPU"),
        ([3], None, "got 3"),
        ([("CPUExecutionProvider", 3)], None, "expected a mapping, got 3"),
        (["CPUExecutionProvider"], [{}, {}], "one per provider, 1, got 2"),
        (["CPUExecutionProvider"], [3], "expected a mapping, got 3"),
    ],
)
def test_unknown_providers_are_refused(providers, options, words):
    with pytest.raises(InputError, match=words):
        taper_runtime.InferenceSession(small_plan(), None, providers, options)


# Values and bindings ----------------------------------------------------------------------------


def test_a_value_shares_its_arrays_memory():
    value = OrtValue.ortvalue_from_numpy(X)
    assert np.shares_memory(value.numpy(), X)
    assert value.data_ptr() == X.ctypes.data
    assert value.shape() == [2, 4]
    assert value.data_type() == "tensor(float)"
    assert value.element_type() == 1
    assert value.device_name() == "cpu"
    assert value.tensor_size_in_bytes() == 32
    assert value.has_value()
    assert value.is_tensor()
    assert not value.is_sparse_tensor()
    assert not value.is_tensor_sequence()
    assert repr(value) == "OrtValue(tensor(float), [2, 4])"
    np.testing.assert_array_equal(np.asarray(value), X)
    np.testing.assert_array_equal(np.from_dlpack(value), X)


def test_a_value_of_strided_memory_is_a_copy():
    value = OrtValue.ortvalue_from_numpy(X.T, "cpu", 0)
    assert value.numpy().flags.c_contiguous
    np.testing.assert_array_equal(value.numpy(), X.T)
    scalar = OrtValue.ortvalue_from_numpy(np.array(16000))
    assert scalar.shape() == []
    assert scalar.data_type() == "tensor(int64)"


def test_a_value_may_have_memory_of_its_own():
    for element_type in (np.float32, "float32", np.dtype("float32"), 1):
        value = OrtValue.ortvalue_from_shape_and_type([2, 4], element_type)
        value.update_inplace(X)
        np.testing.assert_array_equal(value.numpy(), X)
    value.update_inplace(OrtValue.ortvalue_from_numpy(2 * X))
    np.testing.assert_array_equal(value.numpy(), 2 * X)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: OrtValue.ortvalue_from_numpy([1, 2]), "got list"),
        (lambda: OrtValue.ortvalue_from_numpy(np.array(["a"])), "got <U1"),
        (lambda: OrtValue.ortvalue_from_numpy(X, "cuda", 0), "expected 'cpu', got 'cuda'"),
        (lambda: OrtValue.ortvalue_from_shape_and_type([2], 99), "got 99"),
        (lambda: OrtValue.ortvalue_from_shape_and_type([2], "object"), "got 'object'"),
        (lambda: OrtValue.ortvalue_from_numpy(X).update_inplace(X[:1]), r"shape \(1, 4\)"),
        (lambda: OrtValue.ortvalue_from_numpy(X).update_inplace(X.astype("f8")), "float64 of"),
        (lambda: OrtValue.ortvalue_from_numpy(X).update_inplace(3), "got int"),
    ],
)
def test_unfit_values_are_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()


def test_run_with_ort_values(session, y):
    feed = {"x": OrtValue.ortvalue_from_numpy(X)}
    for names in (None, [], ["y"]):
        (value,) = session.run_with_ort_values(names, feed)
        np.testing.assert_array_equal(value.numpy(), y)
    with pytest.raises(InputError, match="'x': expected an OrtValue, got ndarray"):
        session.run_with_ort_values(None, {"x": X})
    with pytest.raises(InputError, match="expected a dict of OrtValues by name, got list"):
        session.run_with_ort_values(None, [X])


def test_bound_inputs_and_a_fresh_output(session, y):
    binding = session.io_binding()
    assert isinstance(binding, taper_runtime.IOBinding)
    x = X.copy()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    (first,) = binding.copy_outputs_to_cpu()
    np.testing.assert_array_equal(first, y)
    np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), y)
    x += 1  # which the next run reads
    binding.synchronize_inputs()
    session.run_with_iobinding(binding, RunOptions())
    binding.synchronize_outputs()
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], session.run(None, {"x": x})[0])
    np.testing.assert_array_equal(first, y)


@pytest.mark.parametrize("how", ["value", "address"])
def test_bound_memory_is_written_without_a_copy(session, y, how):
    binding = session.io_binding()
    mine = np.zeros(8, np.float32)
    if how == "value":
        binding.bind_ortvalue_input("x", OrtValue.ortvalue_from_numpy(X))
        binding.bind_ortvalue_output("y", OrtValue.ortvalue_from_numpy(mine))
    else:
        binding.bind_input("x", "cpu", 0, np.float32, X.shape, X.ctypes.data)
        binding.bind_output("y", "cpu", 0, np.float32, [8], mine.ctypes.data)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(mine, y)
    assert binding.get_outputs()[0].data_ptr() == mine.ctypes.data
    (copied,) = binding.copy_outputs_to_cpu()
    mine[:] = 0
    np.testing.assert_array_equal(copied, y)


def test_outputs_come_in_the_order_of_binding():
    session = taper_runtime.InferenceSession(sized_plan())
    arrays = sized_arrays(2, 3)
    y, z = session.run(["y", "z"], arrays)
    binding = session.io_binding()
    for name, array in arrays.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("z")
    mine = np.empty_like(y)
    binding.bind_ortvalue_output("y", OrtValue.ortvalue_from_numpy(mine))
    session.run_with_iobinding(binding)
    for got, want in zip(binding.copy_outputs_to_cpu(), (z, y), strict=True):
        np.testing.assert_array_equal(got, want)
    binding.clear_binding_outputs()
    assert binding.copy_outputs_to_cpu() == binding.get_outputs() == []
    binding.bind_output("y", "cpu")
    session.run_with_iobinding(binding)
    assert [array.shape for array in binding.copy_outputs_to_cpu()] == [y.shape]


def test_an_unfit_binding_is_refused(session):
    binding = session.io_binding()
    value = OrtValue.ortvalue_from_numpy(X)
    for bind, words in [
        (lambda: binding.bind_cpu_input("q", X), r"unknown input 'q'; expected one of \['x'\]"),
        (lambda: binding.bind_output("q"), r"unknown output 'q'; expected one of \['y'\]"),
        (lambda: binding.bind_ortvalue_output("q", value), "unknown output 'q'"),
        (lambda: binding.bind_cpu_input("x", [1]), "got list"),
        (lambda: binding.bind_ortvalue_input("x", X), "expected an OrtValue, got ndarray"),
        (lambda: binding.bind_output("y", "cuda"), "expected 'cpu', got 'cuda'"),
        (lambda: binding.bind_output("y", buffer_ptr=64), "expected element_type and shape"),
        (lambda: binding.bind_input("x", "cpu", 0, 1, [2, 4], 0), "expected an address, got 0"),
        (lambda: session.run_with_iobinding(binding), "expected a bound output, got none"),
    ]:
        with pytest.raises(InputError, match=words):
            bind()
    binding.bind_output("y")
    with pytest.raises(InputError, match="missing input 'x'"):
        session.run_with_iobinding(binding)
    binding.bind_cpu_input("x", X)
    binding.bind_ortvalue_output("y", value)
    with pytest.raises(InputError, match=r"out\['y'\]: expected shape"):
        session.run_with_iobinding(binding)
    binding.clear_binding_inputs()
    other = taper_runtime.InferenceSession(small_plan())
    with pytest.raises(InputError, match="a binding that this session has made"):
        other.run_with_iobinding(binding)


# Asynchronous runs ------------------------------------------------------------------------------


def call_back(session, *args):
    """Return what the callback of ``run_async`` gets, and whether another thread called it."""
    done = threading.Event()
    got = []

    def callback(outputs, user_data, error):
        got.extend((outputs, user_data, error, threading.current_thread() is not main))
        done.set()

    main = threading.current_thread()
    session.run_async(*args[:2], callback, *args[2:])
    assert done.wait(60)
    return got


@pytest.mark.parametrize("names", [None, [], ["y"]])
def test_run_async_calls_back_on_another_thread(session, y, names):
    outputs, user_data, error, elsewhere = call_back(session, names, {"x": X}, "mine", RunOptions())
    np.testing.assert_array_equal(outputs[0], y)
    assert (user_data, error, elsewhere) == ("mine", "", True)


def test_run_async_tells_the_callback_of_errors(session):
    outputs, user_data, error, _ = call_back(session, None, {"x": X.astype("f8")}, 3)
    assert (outputs, user_data) == ([], 3)
    assert error == "input 'x': expected dtype float32, got float64"
    assert "unknown output 'w'" in call_back(session, ["w"], {"x": X}, None)[2]
    assert "input_feed: expected a dict" in call_back(session, None, [X], None)[2]


def test_run_async_refuses_at_once_what_onnx_runtime_does(session):
    with pytest.raises(InputError, match=r"missing inputs \['x'\]"):
        session.run_async(None, {}, print, None)
    with pytest.raises(InputError, match="callback: expected a function, got int"):
        session.run_async(None, {"x": X}, 3, None)


def test_run_async_runs_in_a_forked_child(session, y):
    call_back(session, None, {"x": X}, None)
    child = os.fork()
    if child == 0:
        same = np.array_equal(call_back(session, None, {"x": X}, None)[0][0], y)
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_error_in_the_callback_is_shown(session, y, monkeypatch):
    shown = []
    done = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda args: (shown.append(args), done.set()))

    def callback(outputs, user_data, error):
        raise RuntimeError("in the callback")

    session.run_async(None, {"x": X}, callback, None)
    assert done.wait(60)
    assert shown[0].exc_type is RuntimeError
    np.testing.assert_array_equal(call_back(session, None, {"x": X}, None)[0][0], y)


# Logs -------------------------------------------------------------------------------------------


@pytest.fixture
def logger():
    logger = logging.getLogger("taper_runtime")
    yield logger
    logger.setLevel(logging.NOTSET)


def test_severities_are_loggings_levels(logger):
    for severity, level in enumerate(("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")):
        taper_runtime.set_default_logger_severity(severity)
        assert logging.getLevelName(logger.level) == level
    for severity in (5, -1, "x", True, 2.0):
        with pytest.raises(InputError, match="from 0 to 4"):
            taper_runtime.set_default_logger_severity(severity)
    taper_runtime.set_default_logger_verbosity(1)


def test_a_session_logs_what_its_severity_lets_through(logger, caplog):
    options = SessionOptions()
    options.log_severity_level = 0
    options.logid = "mine"
    session = taper_runtime.InferenceSession(small_plan(), options)
    run_options = RunOptions()
    run_options.logid = "run 7"
    session.run(None, {"x": X})
    session.run(None, {"x": X}, run_options)
    run_options.log_severity_level = 2
    session.run(None, {"x": X}, run_options)
    opened, *begun = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert opened == ("INFO", f"mine: opened {session!r}")
    assert begun == [("DEBUG", "mine: a run begins"), ("DEBUG", "run 7: a run begins")]


def test_the_default_severity_is_that_of_new_sessions(logger, caplog):
    taper_runtime.set_default_logger_severity(1)
    taper_runtime.InferenceSession(small_plan()).run(None, {"x": X})
    assert len(caplog.records) == 1
    taper_runtime.set_default_logger_severity(2)
    taper_runtime.InferenceSession(small_plan()).run(None, {"x": X})
    assert len(caplog.records) == 1


# Profiles ---------------------------------------------------------------------------------------


def profiled(plan, tmp_path):
    options = SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "trace")
    return taper_runtime.InferenceSession(plan, options)


def read_trace(path):
    with open(path) as file:
        return json.load(file)


def test_profiling_writes_every_run_and_its_nodes(tmp_path, session, y):
    assert session.end_profiling() == ""
    assert session.get_profiling_start_time_ns() == 0
    session = profiled(small_plan(), tmp_path)
    assert session.get_profiling_start_time_ns() > 10**18
    mine = np.empty(8, np.float32)
    for _ in range(3):
        assert session.run(None, {"x": X}, out={"y": mine})[0] is mine
        np.testing.assert_array_equal(mine, y)
    path = session.end_profiling()
    assert path.startswith(str(tmp_path / "trace_20"))
    trace = read_trace(path)
    runs = [event for event in trace["traceEvents"] if event["name"] == "run"]
    nodes = [event for event in trace["traceEvents"] if event["name"] != "run"]
    assert len(runs) == 3
    executed = ["h = MATMUL", "r = RELU", "t = WHERE", "y = ADD"]
    assert [event["name"] for event in nodes if event["tid"] == 0] == 3 * executed
    assert nodes[0]["args"]["flops"] > 0
    for i, event in enumerate(nodes):
        run = runs[i // len(executed)]
        assert run["ts"] <= event["ts"]
        assert event["ts"] + event["dur"] <= run["ts"] + run["dur"]
    assert trace["otherData"]["runs_missed"] == 0
    assert session.end_profiling() == ""
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], y)


def test_profiling_runs_of_any_size(tmp_path):
    session = profiled(sized_plan(), tmp_path)
    other = taper_runtime.InferenceSession(sized_plan())
    for sizes in ((1, 2), (3, 5), (1, 2)):
        arrays = sized_arrays(*sizes)
        for got, want in zip(session.run([], arrays), other.run([], arrays), strict=True):
            np.testing.assert_array_equal(got, want)
    events = read_trace(session.end_profiling())["traceEvents"]
    assert [event["name"] for event in events].count("h = MATMUL") == 3


def test_profiling_stops_at_its_limit(tmp_path, monkeypatch, y):
    monkeypatch.setattr(node_times, "MAX_EVENTS", 5)
    session = profiled(small_plan(), tmp_path)
    for _ in range(4):
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], y)
    trace = read_trace(session.end_profiling())
    assert [event["name"] for event in trace["traceEvents"]].count("run") == 2
    assert trace["otherData"]["runs_missed"] == 2


def test_profiling_serves_an_output_that_stands_twice(tmp_path, y):
    plan = small_plan()._replace(outputs=("y", "y"), output_tree=None)
    first, second = profiled(plan, tmp_path).run(None, {"x": X})
    np.testing.assert_array_equal(first, y)
    np.testing.assert_array_equal(second, y)


# Under ONNX Runtime's name ----------------------------------------------------------------------


def test_taper_stands_for_onnxruntime(tmp_path):
    small_plan().save(tmp_path / "m.taper")
    code = f"""
import os
import sys
sys.path[:0] = {sys.path!r}
import taper_runtime
seldom = {{"logging", "concurrent.futures", "taper_runtime.session.ortvalue", "taper_runtime.capi"}}
assert not seldom & set(sys.modules), seldom & set(sys.modules)
# the path of an installed package, which an editable one has not
taper_runtime.__path__.append(os.path.dirname(taper_runtime.__file__))
sys.modules["onnxruntime"] = taper_runtime
import numpy as np
import onnxruntime as ort
from onnxruntime import InferenceSession, OrtValue, set_default_logger_severity
from onnxruntime.capi.onnxruntime_pybind11_state import (
    Fail, InvalidArgument, InvalidGraph, InvalidProtobuf, NoSuchFile, NotImplemented
)
assert ort.capi.onnxruntime_pybind11_state.Fail is Fail
set_default_logger_severity(3)
try:
    InferenceSession("none.taper")
except NoSuchFile as error:
    print("no such file", error.filename)
try:
    InferenceSession(b"garbage of more than eight bytes")
except InvalidProtobuf:
    print("no plan")
session = InferenceSession("m.taper")
for feed in ({{}}, {{"x": np.zeros(3, np.float32)}}, {{"x": np.zeros((2, 4))}}):
    for kind in (InvalidArgument, ValueError, Fail):
        try:
            session.run(None, feed)
        except kind:
            print("bad argument")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    words = ["no such file none.taper", "no plan", *["bad argument"] * 9]
    assert done.stdout.splitlines() == words, done.stderr


def test_unknown_names_of_the_module_are_none():
    with pytest.raises(AttributeError, match="no attribute 'InferenceSesion'"):
        taper_runtime.InferenceSesion  # noqa: B018
    assert all(hasattr(taper_runtime, name) for name in taper_runtime.__all__)
