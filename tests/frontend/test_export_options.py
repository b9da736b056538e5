"""Test the record of options of an export and its name, and programs that are lowered first."""

import inspect

import numpy as np
import pytest
import torch

import taper_frontend
from taper_frontend import ExportError
from taper_frontend.capture.attempts import CapturedProgram
from taper_frontend.capture.capture import capture
from taper_frontend.compiler.graph.fingerprint import fingerprint
from taper_frontend.compiler.trace import trace_path
from taper_frontend.passes import register_pass, unregister_pass
from taper_frontend.program_to_plan import compile_lowered, compile_program, lower_program
from taper_frontend.request.options import Options
from taper_frontend.request.program_inputs import read_inputs

DIM = torch.export.Dim


class Model(torch.nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x):
        return torch.relu(self.linear(x))


def test_the_record_has_what_export_takes():
    parameters = inspect.signature(taper_frontend.export).parameters.values()
    own = {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}
    assert own == Options()._asdict()


DIFFERENT = [
    {},
    {"input_names": ["a"]},
    {"output_names": ["a"]},
    {"dynamic_shapes": ({0: "n"},)},
    {"dynamic_shapes": ({0: DIM("n")},)},
    {"dynamic_shapes": ({0: DIM("n", max=8)},)},
    {"dynamic_shapes": ({0: DIM.AUTO},)},
    {"dynamic_shapes": ({0: DIM.DYNAMIC},)},
    {"dynamic_axes": {"x": {0: "n"}}},
    {"dynamic_axes": {"x": [0]}},
    {"passes": ()},
    {"passes": ["canonical form"]},
    {"passes": ["canonical form", "weights"]},
    {"keep": ["aten.relu.default"]},
    {"verify": False},
    {"verify": "deep"},
    {"metadata": {"a": "b"}},
    {"metadata": {"a": "c"}},
    {"weights": "replaceable"},
]


def test_different_options_have_different_names():
    names = [Options(**given).fingerprint() for given in DIFFERENT]
    assert len(set(names)) == len(names)
    assert names == [Options(**given).fingerprint() for given in DIFFERENT]
    first = Options(metadata={"a": "1", "b": "2"}, dynamic_shapes=({0: DIM("n", max=8)},))
    second = Options(metadata={"b": "2", "a": "1"}, dynamic_shapes=({0: DIM("n", max=8)},))
    assert first.fingerprint() == second.fingerprint()
    aside = Options(progress=print, checkpoint="weights.safetensors")
    assert aside.fingerprint() == names[0], "neither changes the plan"


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"passes": [lambda graph: False]}, "passes"),
        ({"passes": ["canonical form", print]}, "passes"),
        ({"partition": lambda graph: [], "delegate": "c"}, "partition"),
        ({"trace": trace_path("t.html")}, "trace"),
        ({"dynamic_shapes": {"x": {0: object()}}}, "dynamic_shapes"),
    ],
)
def test_what_is_no_plain_data_has_no_name_and_says_so(given, name):
    with pytest.raises(ExportError, match=rf"^{name}: expected plain data for a fingerprint, got"):
        Options(**given).fingerprint()


def test_passes_of_users_have_no_name():
    plain = Options().fingerprint()
    register_pass("mine", lambda graph: False, before="weights")
    try:
        for passes in (None, ["mine"]):
            with pytest.raises(ExportError, match=r"passes: .*got 'mine'"):
                Options(passes=passes).fingerprint()
        Options(passes=["weights"]).fingerprint()
    finally:
        unregister_pass("mine")
    assert Options().fingerprint() == plain


def captured(model, options=None, example=None):
    program = capture(model, (torch.ones(2, 4) if example is None else example,))
    names = None if options is None else options.input_names
    return CapturedProgram(program, read_inputs(program, names))


def lowered(seed=0, options=None, example=None):
    model = Model(seed).eval()
    options = options or Options()
    return lower_program(captured(model, options, example), options)


def test_a_lowered_program_has_a_name_before_it_is_compiled():
    first = lowered()
    name = fingerprint(first.lowered.graph)
    assert name == fingerprint(lowered().lowered.graph)
    assert name != fingerprint(lowered(seed=1).lowered.graph)
    assert name != fingerprint(lowered(example=torch.ones(3, 4)).lowered.graph)
    assert name != fingerprint(lowered(options=Options(input_names=["a"])).lowered.graph)
    plan = compile_lowered(first).plan
    assert fingerprint(first.lowered.graph) != name
    whole = compile_program(captured(Model().eval())).plan
    assert plan.fingerprint() == whole.fingerprint()
    exported = taper_frontend.export(Model().eval(), (torch.ones(2, 4),))
    assert exported.fingerprint() == plan.fingerprint()
    np.testing.assert_array_equal(exported.samples["x"], np.ones((2, 4)))
