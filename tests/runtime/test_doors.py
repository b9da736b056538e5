"""Every public function with arguments of wrong types and values: documented errors alone."""

import numpy as np
import pytest

import taper_runtime as t
from plan_files import small_plan
from pt2_files import members, pack
from stateful_plans import accumulating_plan
from taper_runtime import InferenceSession, IOBinding, OrtValue, RunOptions, SessionOptions
from weighted_plans import weighted_plan
from wrong_arguments import undocumented_errors


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
    state = InferenceSession(accumulating_plan(4, 3)).new_state()
    binding = IOBinding(session)
    archive = t.pt2.open(archive_path)
    ort, plan = OrtValue(array), small_plan()
    name_in, name_out = session.plan.inputs[0], session.plan.outputs[0]
    at = {"device_type": "cpu", "device_id": 0, "element_type": np.float32, "shape": (2, 4)}
    kernel = {"target": "RELU", "kernel": print, "name": "k", "dtypes": None, "provider": "P"}
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
             "entry": None, "state": None},
        ),
        "run_with_ort_values": (
            session.run_with_ort_values,
            {"output_names": None, "run_options": None, "state": None,
             "input_dict_ort_values": {n: OrtValue(a) for n, a in feed().items()}},
        ),
        "run_with_iobinding": (
            session.run_with_iobinding,
            {"iobinding": binding, "run_options": None, "state": None},
        ),
        "run_async": (
            session.run_async,
            {"output_names": None, "input_feed": feed(), "callback": lambda *a: None,
             "user_data": None, "run_options": None, "state": None},
        ),
        "get_inputs": (session.get_inputs, {"entry": None}),
        "get_outputs": (session.get_outputs, {"entry": None}),
        "get_state": (session.get_state, {"name": "s"}),
        "set_state": (session.set_state, {"name": "s", "array": array}),
        "reset_state": (session.reset_state, {"name": None}),
        "call": (
            session.call,
            {"args": (), "kwargs": None, "run_options": None, "entry": None, "state": None},
        ),
        "State.get": (state.get, {"name": "total"}),
        "State.set": (state.set, {"name": "total", "array": state.get("total")}),
        "State.reset": (state.reset, {"name": None}),
        "State.restore": (state.restore, {"arrays": state.copy()}),
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
        "Delegate": (t.CDelegate, {"node": None}),
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
        **options_of(SessionOptions),
        **options_of(RunOptions),
    }  # fmt: skip


@pytest.fixture(scope="module")
def all_doors(tmp_path_factory):
    path = tmp_path_factory.mktemp("doors")
    small_plan().save(path / "m.taper")
    (path / "m.pt2").write_bytes(pack(members()))
    return doors(path, path / "m.taper", path / "m.pt2")


def test_wrong_arguments_are_refused_by_documented_errors(all_doors, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # some texts are names of files
    wrong = undocumented_errors(all_doors)
    assert not wrong, "\n".join([f"{len(wrong)}:", *wrong])
