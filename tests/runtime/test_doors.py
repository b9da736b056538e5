"""Every public function with arguments of wrong types and values: documented errors alone."""

import io

import numpy as np
import pytest

import taper_runtime as t
from plan_files import small_plan
from pt2_files import members, pack
from taper_runtime import InferenceSession, IOBinding, OrtValue, RunOptions, SessionOptions
from taper_runtime.base.errors import TaperError
from taper_runtime.base.option_values import MemoryPlanning
from taper_runtime.extend.kernels import _KERNELS
from weighted_plans import weighted_plan

#: What no parameter, or few, can be.
HOSTILE = [
    None, True, -1, 0, 3, 2**70, -(2**70), 1.5, float("nan"), 1j, "", "x", "a\0b", "\ud800", b"x",
    bytearray(b"x"), [], [None], ["x", 3], (2**62, 4), (5, -12), (1.5, 12), {}, {1: 2}, {"x": None},
    {"x": "y"}, {"x": np.zeros(3)}, [{}], [("x", {})], object(), int, len, set(),
    io.BytesIO(b"x"), np.zeros(()), np.zeros((2, 4)), np.zeros((2, 4), np.float32)[::-1],
    np.array(["x"]),
    np.array([None]), np.zeros(3, [("a", "f4")]), np.zeros((2, 4), ">f4"), np.float32(1),
    np.int64(2), np.dtype("float32"), t.Limits(), t.Limits(nodes=None), RunOptions(),
    SessionOptions(),
    MemoryPlanning(), slice(None), range(3), Ellipsis, NotImplemented, "float32", "cpu", "cuda:9",
]  # fmt: skip

#: Of files: what the operating system says of them.
DOCUMENTED = (TaperError, OSError, MemoryError)


def feed():
    return dict(small_plan().samples)


def options_of(kind):
    """Return doors that assign to each field."""
    return {
        f"{kind.__name__}.{name}": (
            lambda value, name=name: setattr(kind(), name, value),
            {"value": getattr(kind(), name)},
        )
        for name in kind._fields
    }


def doors(path, plan_path, archive_path):
    """Return functions by name, each with arguments that are right."""
    session = InferenceSession(plan_path)
    stored = InferenceSession(weighted_plan())
    weight = next(name for name in stored.weights.names("parameter"))
    value = stored.weights.get(weight).copy()
    array = np.zeros((2, 4), np.float32)
    binding = IOBinding(session)
    archive = t.pt2.open(archive_path)
    ort, plan = OrtValue(array), small_plan()
    name_in, name_out = session.plan.inputs[0], session.plan.outputs[0]
    at = {"device_type": "cpu", "device_id": 0, "element_type": np.float32, "shape": (2, 4)}
    kernel = {"target": "RELU", "function": print, "name": "k", "dtypes": None, "provider": "P"}
    return {
        "load": (
            t.load, {"path": plan_path, "model": None, "load_mode": "map", "limits": t.Limits()},
        ),
        "list_models": (t.list_models, {"path": plan_path}),
        "InferenceSession": (
            InferenceSession,
            {"path_or_bytes": plan_path, "sess_options": None, "providers": None,
             "provider_options": None, "model": None},
        ),
        "run": (
            session.run,
            {"output_names": None, "input_feed": feed(), "run_options": None, "out": None,
             "entry": None},
        ),
        "run_with_ort_values": (
            session.run_with_ort_values,
            {"output_names": None, "run_options": None,
             "input_dict_ort_values": {n: OrtValue(a) for n, a in feed().items()}},
        ),
        "run_with_iobinding": (
            session.run_with_iobinding, {"iobinding": binding, "run_options": None},
        ),
        "run_async": (
            session.run_async,
            {"output_names": None, "input_feed": feed(), "callback": lambda *a: None,
             "user_data": None, "run_options": None},
        ),
        "get_inputs": (session.get_inputs, {"entry": None}),
        "get_outputs": (session.get_outputs, {"entry": None}),
        "get_state": (session.get_state, {"name": "s"}),
        "set_state": (session.set_state, {"name": "s", "array": array}),
        "reset_state": (session.reset_state, {"name": None}),
        "call": (session.call, {"args": (), "kwargs": None, "run_options": None, "entry": None}),
        "load_sample_inputs": (session.load_sample_inputs, {"entry": None}),
        "set_providers": (session.set_providers, {"providers": None, "provider_options": None}),
        "weights.get": (stored.weights.get, {"name": weight}),
        "weights.names": (stored.weights.names, {"kind": None}),
        "weights.update": (stored.weights.update, {"name": weight, "array": value}),
        "weights.update_many": (stored.weights.update_many, {"weights": {weight: value}}),
        "weights.validate": (stored.weights.validate, {"weights": {}, "strict": False}),
        "weights.load": (stored.weights.load, {"source": {}, "strict": False}),
        "OrtValue": (OrtValue, {"array": array}),
        "ortvalue_from_numpy": (
            OrtValue.ortvalue_from_numpy,
            {"numpy_obj": array, "device_type": "cpu", "device_id": 0},
        ),
        "ortvalue_from_shape_and_type": (
            OrtValue.ortvalue_from_shape_and_type,
            {"shape": (2, 4), "element_type": 1, "device_type": "cpu", "device_id": 0},
        ),
        "update_inplace": (ort.update_inplace, {"data": array}),
        "IOBinding": (IOBinding, {"session": session}),
        "bind_cpu_input": (binding.bind_cpu_input, {"name": name_in, "arr_on_cpu": array}),
        "bind_ortvalue_input": (binding.bind_ortvalue_input, {"name": name_in, "ortvalue": ort}),
        "bind_input": (
            binding.bind_input, {"name": name_in, **at, "buffer_ptr": array.ctypes.data},
        ),
        "bind_output": (
            binding.bind_output, {"name": name_out, **at, "buffer_ptr": array.ctypes.data},
        ),
        "bind_ortvalue_output": (binding.bind_ortvalue_output, {"name": name_out, "ortvalue": ort}),
        "add_session_config_entry": (
            SessionOptions().add_session_config_entry, {"key": "k", "value": "v"},
        ),
        "get_session_config_entry": (SessionOptions().get_session_config_entry, {"key": "k"}),
        "set_load_cancellation_flag": (
            SessionOptions().set_load_cancellation_flag, {"is_cancelled": False},
        ),
        "add_run_config_entry": (RunOptions().add_run_config_entry, {"key": "k", "value": "v"}),
        "register_kernel": (t.register_kernel, {**kernel, "replace": True}),
        "unregister_kernel": (t.unregister_kernel, {"name": "k"}),
        "load_kernels": (t.load_kernels, {"path": plan_path, "provider": "P"}),
        "set_default_logger_severity": (t.set_default_logger_severity, {"severity": 2}),
        "set_default_logger_verbosity": (t.set_default_logger_verbosity, {"verbosity": 0}),
        "Delegate": (t.CDelegate, {"region": None}),
        "pt2.open": (t.pt2.open, {"path": archive_path, "limits": t.Limits()}),
        "pt2.Archive": (t.pt2.Archive, {"buffer": pack(members()), "limits": t.Limits()}),
        "archive.extra": (archive.extra, {"name": "notes/a.txt"}),
        "archive.weights": (archive.weights, {"model": None}),
        "archive.constants": (archive.constants, {"model": None}),
        "archive.dtypes": (archive.dtypes, {"model": None}),
        "archive.weight_names": (archive.weight_names, {"model": None}),
        "plan.entry": (plan.entry, {"name": None}),
        "plan.made_from": (plan.made_from, {"parameter": "w"}),
        "plan.save": (
            plan.save, {"path": path / "s.taper", "name": "model", "append": False, "folded": None},
        ),
        "openinfer.parse": (openinfer_parse, {"text": "entry { x = 1; }", "name": "n"}),
        **options_of(SessionOptions),
        **options_of(RunOptions),
    }  # fmt: skip


def openinfer_parse(**arguments):
    from taper_runtime import openinfer

    return openinfer.parse(**arguments)


@pytest.fixture(scope="module")
def all_doors(tmp_path_factory):
    path = tmp_path_factory.mktemp("doors")
    small_plan().save(path / "m.taper")
    (path / "m.pt2").write_bytes(pack(members()))
    return doors(path, path / "m.taper", path / "m.pt2")


def test_wrong_arguments_are_refused_by_documented_errors(all_doors, monkeypatch, tmp_path):
    """Each argument in turn is everything in turn that it can hardly be."""
    monkeypatch.chdir(tmp_path)  # some texts are names of files
    wrong = []
    for name, (function, arguments) in all_doors.items():
        for argument in arguments:
            for value in HOSTILE:
                if argument in ("source", "callback") and callable(value):
                    continue  # what a function raises is its own
                before = dict(_KERNELS)
                try:
                    function(**{**arguments, argument: value})
                except DOCUMENTED:
                    pass
                except BaseException as error:
                    wrong.append(
                        f"{name}({argument}={value!r:.60}): {type(error).__name__}: {error!s:.90}"
                    )
                finally:
                    _KERNELS.clear()
                    _KERNELS.update(before)
    t.set_default_logger_severity(2)
    assert not wrong, "\n".join([f"{len(wrong)}:", *wrong])
