"""Compare the interface with that of ONNX Runtime as it is installed."""

import onnxruntime
import pytest

import taper_runtime

#: What is left out on purpose: other devices, sparse tensors, tuning, captured graphs.
LEFT_OUT = {
    "SessionOptions": {"set_ep_context_data_read_func", "clear_ep_context_data_read_func"},
    "RunOptions": set(),
    "IOBinding": {"get_outputs_as_ortvaluevector"},
    "OrtValue": {
        "as_sparse_tensor",
        "from_dlpack",
        "ort_value_from_sparse_tensor",
        "ortvalue_from_numpy_with_onnx_type",
    },
    "InferenceSession": {
        "create_ortvalue_from_shape_and_type",
        "get_input_epdevices",
        "get_input_memory_infos",
        "get_output_memory_infos",
        "get_provider_graph_assignment_info",
        "get_tuning_results",
        "release_captured_graph",
        "run_with_ortvaluevector",
        "set_ep_dynamic_options",
        "set_tuning_results",
    },
}


def public(value):
    return {name for name in dir(value) if not name.startswith("_")}


@pytest.mark.parametrize("kind", LEFT_OUT)
def test_every_name_is_here_or_left_out_on_purpose(kind):
    ours = getattr(taper_runtime, kind)
    here = public(ours) | {*getattr(ours, "_fields", ()), *getattr(ours, "_refused", ())}
    assert public(getattr(onnxruntime, kind)) - here <= LEFT_OUT[kind]


@pytest.mark.parametrize("kind", ["SessionOptions", "RunOptions"])
def test_defaults_are_the_same(kind):
    theirs, ours = getattr(onnxruntime, kind)(), getattr(taper_runtime, kind)()
    shared = [name for name in ours._fields if hasattr(theirs, name)]
    assert shared
    for name in shared:
        if name != "profile_file_prefix":  # the trace's name says whose it is
            value, own = getattr(theirs, name), getattr(ours, name)
            assert own == (int(value) if isinstance(own, int) else value), name


@pytest.mark.parametrize("kind", ["GraphOptimizationLevel", "ExecutionMode", "ExecutionOrder"])
def test_members_are_the_same(kind):
    theirs, ours = getattr(onnxruntime, kind).__members__, getattr(taper_runtime, kind).__members__
    assert {name: int(value) for name, value in theirs.items()} == dict(ours)


def test_every_provider_is_known():
    assert set(onnxruntime.get_all_providers()) <= set(taper_runtime.get_all_providers())
