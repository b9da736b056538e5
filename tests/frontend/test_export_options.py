"""Test the record of options of an export and its name, and programs that are lowered first."""

import inspect

import numpy as np
import pytest
import torch

import taper_frontend
import taper_runtime
from taper_frontend import ExportError
from taper_frontend.capture.attempts import CapturedProgram
from taper_frontend.capture.capture import capture
from taper_frontend.compiler.graph.fingerprint import fingerprint
from taper_frontend.compiler.trace import trace_path
from taper_frontend.passes import register_pass, unregister_pass
from taper_frontend.program_to_plan import compile_lowered, compile_program, lower_program
from taper_frontend.request.options import Options
from taper_frontend.request.program_inputs import read_inputs
from taper_runtime.executor.memory_use import memory_use
from taper_runtime.reports.report import describe_plan

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


class Skip(torch.nn.Module):
    """A cheap tensor that is made first and read last, over a chain that is small in between."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            *(torch.nn.Linear(a, b) for a, b in [(8192, 8), (8, 8192), (8192, 8), (8, 8192)])
        )

    def forward(self, x):
        y = torch.exp(x).softmax(-1)
        return self.layers(y) * y.flip(-1)


@pytest.fixture(scope="module")
def natural():
    return taper_frontend.export(Skip().eval(), (torch.randn(1, 8192),), verify=False)


@pytest.mark.parametrize("budget", [0, -1, 1.5, "1 MB", True, 1 << 63])
def test_budgets_that_are_none(budget):
    with pytest.raises(ExportError, match="memory_budget: expected bytes, an int from 1 to"):
        Options(memory_budget=budget).check()


@pytest.mark.filterwarnings("ignore::taper_frontend.ExportWarning")
def test_a_budget_beside_rounded_weights(natural):
    args = tuple(torch.from_numpy(sample.copy()) for sample in natural.samples.values())
    whole = taper_frontend.export(Skip().eval(), args, verify=False, quantize="int8")
    arena = memory_use(whole).arena
    plan = taper_frontend.export(
        Skip().eval(), args, verify=False, quantize="int8", memory_budget=arena - 8192
    )
    told = plan.metadata["memory"]
    assert told["natural"] == arena
    assert told["achieved"] == memory_use(plan).arena <= arena - 8192
    assert plan.metadata["quantized"]["layers"] == whole.metadata["quantized"]["layers"]
    (result,), (expected,) = (
        taper_runtime.InferenceSession(each).run(None, dict(plan.samples)) for each in (plan, whole)
    )
    assert result.tobytes() == expected.tobytes()
    least = taper_frontend.export(
        Skip().eval(), args, verify=False, quantize="int8", memory_budget=64
    )
    assert [note["kind"] for note in least.metadata["warnings"]].count("memory") == 1


def test_a_budget_that_is_met(natural):
    arena = memory_use(natural).arena
    args = tuple(torch.from_numpy(sample.copy()) for sample in natural.samples.values())
    plan = taper_frontend.export(Skip().eval(), args, verify="outputs", memory_budget=arena - 8192)
    told = plan.metadata["memory"]
    assert told["natural"] == arena
    assert told["achieved"] == memory_use(plan).arena <= told["budget"] == arena - 8192
    session = taper_runtime.InferenceSession(plan)
    (result,) = session.run(None, dict(plan.samples))
    (expected,) = taper_runtime.InferenceSession(natural).run(None, dict(plan.samples))
    assert result.tobytes() == expected.tobytes()
    assert session.stats().layout.arena_bytes == told["achieved"]
    assert told["ns"] - told["natural_ns"] == pytest.approx(
        sum(m["ns"] for m in told["moves"]), abs=9
    )
    text = describe_plan(plan)
    assert f"memory budget {(arena - 8192) / 1000:.1f} kB on " in text
    assert ": fits, arena " in text


def test_a_budget_that_no_plan_fits(natural):
    with pytest.warns(taper_frontend.ExportWarning, match="at most 64 bytes, got") as warned:
        plan = taper_frontend.export(
            Skip().eval(), (torch.randn(1, 8192),), verify=False, memory_budget=64
        )
    assert [each.message.kind for each in warned] == ["memory"]
    told = plan.metadata["memory"]
    assert 64 < told["achieved"] == memory_use(plan).arena <= memory_use(natural).arena
    text = str(warned[0].message)
    assert f"node {told['at']} needs them" in text
    assert told["held"]
    assert sum(each["bytes"] for each in told["held"]) <= told["achieved"]
    largest = told["held"][0]
    assert f"in memory there: {largest['tensor']!r} ({largest['bytes']:,} bytes)" in text
    described = f"  in memory at {told['at']}: {largest['tensor']!r} {largest['bytes']} bytes"
    assert described in describe_plan(plan)
    assert "does not fit: " in describe_plan(plan)


class Found(torch.nn.Module):
    def forward(self, x):
        return torch.nonzero(x)


def test_a_budget_of_sizes_that_nodes_compute():
    with pytest.raises(ExportError, match="memory_budget: expected a model whose inputs determine"):
        taper_frontend.export(Found(), (torch.ones(3),), verify=False, memory_budget=1 << 20)


def test_a_budget_where_sizes_vary():
    plan = taper_frontend.export(
        Model(),
        (torch.ones(6, 4),),
        dynamic_shapes=({0: "n"},),
        verify=False,
        memory_budget=1 << 20,
    )
    told = plan.metadata["memory"]
    assert told["sizes"] == {"n": 6}
    assert told["achieved"] == told["natural"] == memory_use(plan).arena


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tuned": 3}, "tuned: expected a path or None, got 3"),
        ({"tuned": ""}, "tuned: expected a path or None, got ''"),
        ({"require_tuned": True}, "require_tuned: expected the database of `taper tune` in tuned"),
        ({"other_bits": True}, "other_bits: expected the database of `taper tune` in tuned"),
        ({"tuned": "x", "require_tuned": 1}, "require_tuned: expected True or False, got 1"),
        ({"tuned": "x", "memory_budget": 5}, "tuned: expected None beside memory_budget"),
        ({"tuned": "x", "quantize": "int8"}, "tuned: expected None beside quantize"),
    ],
)
def test_wrong_options_of_tuning_are_refused(options, message):
    with pytest.raises(ExportError, match=message):
        Options(**options).check()


@pytest.mark.parametrize("options", [{"cache": "a\0"}, {"trace": "a\0.html"}, {"tuned": "a\0"}])
def test_paths_that_no_file_can_have_are_refused(options):
    with pytest.raises(ExportError, match=r"(cache|trace|tuned): path: expected characters that"):
        taper_frontend.export(Model(), (torch.ones(2, 4),), verify=False, **options)


def test_a_fingerprint_covers_the_database(tmp_path):
    file = tmp_path / "times"
    file.write_text("")
    before = Options(tuned=file).fingerprint()
    assert before == Options(tuned=str(file)).fingerprint() != Options().fingerprint()
    file.write_text("\n")
    assert Options(tuned=file).fingerprint() != before
    with pytest.raises(ExportError, match=r"tuned: .*No such file"):
        Options(tuned=tmp_path / "none").fingerprint()
