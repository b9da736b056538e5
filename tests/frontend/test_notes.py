"""Warnings of an export, and cases without a warning."""

import builtins

import pytest
import torch

import taper_frontend
import taper_runtime
from taper_frontend import ExportWarning
from taper_frontend.compiler.stages import PIPELINE
from taper_frontend.compiler.stages.weights.transform_weights import transform_weights
from taper_frontend.request.notes import KINDS
from taper_runtime.reports.report import describe_plan

torch.set_num_threads(1)


class Call(torch.nn.Module):
    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)


def notes_of(module, args, kwargs=None, **options):
    """Kinds and texts of the warnings; they stand in the plan, its report and explain() as well."""
    with pytest.warns() as caught:
        plan = taper_frontend.export(module, args, kwargs, verify=False, **options)
    assert all(warning.category is ExportWarning for warning in caught)
    assert all(warning.filename == __file__ for warning in caught)
    notes = {warning.message.kind: str(warning.message) for warning in caught}
    assert notes.keys() <= set(KINDS)
    assert {note["kind"]: note["text"] for note in plan.metadata["warnings"]} == notes
    report = describe_plan(plan)
    assert all(f"warning ({kind}): {text}" in report for kind, text in notes.items())
    return notes


class Blocks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv1d(3, 3, 1)
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm1d(3) for _ in range(7))

    def forward(self, x):
        x = self.conv(x)
        for norm in self.norms:
            x = norm(x)
        return x


class Noisy(torch.nn.Module):
    """One whose mode matters through a method."""

    def scale(self):
        return 2 if self.training else 1

    def forward(self, x):
        return x * self.scale()


def test_training_mode_names_the_modules():
    x = torch.randn(2, 3, 4)
    text = notes_of(Blocks().train(), (x,))["training"]
    assert text.startswith("7 parts of the module are in training mode")
    assert "norms.0 (BatchNorm1d)" in text
    assert "and 2 more" in text
    assert "call eval()" in text
    module = Blocks().eval()
    module.norms[3].train()
    text = notes_of(module, (x,))["training"]
    assert text.startswith("1 part of the module is in training mode")
    assert "norms.3 (BatchNorm1d)" in text
    assert "(Noisy)" in notes_of(Noisy().train(), (x,))["training"]


@pytest.mark.parametrize(
    "module",
    [
        Blocks().eval(),
        Noisy().eval(),
        torch.nn.Sequential(torch.nn.Conv1d(3, 3, 1), torch.nn.GroupNorm(3, 3), torch.nn.ReLU()),
        torch.nn.Sequential(torch.nn.Dropout(0.0), torch.nn.InstanceNorm1d(3)),
    ],
)
def test_no_warning(module):
    """The last two are in training mode, in which they compute nothing else."""
    x = torch.randn(2, 3, 4)
    plan = taper_frontend.export(module, (x,), verify=False)
    assert plan.metadata["warnings"] == []
    assert "warning" not in describe_plan(plan)
    assert taper_frontend.explain(module, (x,)).warnings == []


def test_nodes_that_numpy_computes():
    module = Call(lambda self, x: torch.lgamma(torch.lgamma(x)))
    text = notes_of(module, (torch.randn(3, 4),))["numpy"]
    assert text.startswith("2 nodes are without a native kernel")
    assert "2 LGAMMA" in text
    assert "at test_notes.py:" in text


def test_arguments_that_become_constants():
    module = Call(lambda self, x, power, *, flag, mode, none=None: x**power)
    notes = notes_of(module, (torch.randn(3), 2), {"flag": True, "mode": "a", "none": None})
    text = notes["argument"]
    assert "4 arguments are not a tensor" in text
    assert "args_1=2, flag=True, mode='a', none=None" in text


def test_a_file_much_larger_than_its_weights():
    conv = torch.nn.Conv2d(512, 512, 3, padding=1).eval()
    x = torch.randn(1, 512, 32, 32)
    text = notes_of(conv, (x,))["size"]
    assert "those of the module 9" in text
    assert "1 weight of 3x3 convolutions is stored" in text
    small = [each for each in PIPELINE if each is not transform_weights]
    plan = taper_frontend.export(conv, (x,), verify=False, passes=small)
    assert plan.metadata["warnings"] == []


class Remembers(torch.nn.Module):
    def __init__(self, used):
        super().__init__()
        self.used = used
        self.register_buffer("last", torch.zeros(3))

    def forward(self, x):
        y = x + self.last if self.used else x + 1
        self.last.copy_(x)
        return y


def test_a_small_file_much_larger_than_its_weights():
    model = torch.nn.Sequential(*(torch.nn.Conv2d(64, 64, 3, padding=1) for _ in range(2)))
    image = torch.randn(1, 64, 28, 28)
    with pytest.warns(ExportWarning, match=r"take \d\.\d MB, those of the module 0\.3"):
        taper_frontend.export(model.eval(), (image,), verify=False)
    tiny = taper_frontend.export(model[0], (image,), verify=False)
    assert tiny.metadata["warnings"] == []  # less than 0.5 MB more


def test_state_that_changes_results():
    x = torch.randn(3)
    assert "the module writes to last" in notes_of(Remembers(True), (x,))["state"]
    plan = taper_frontend.export(Remembers(False), (x,))
    assert plan.states
    assert plan.metadata["warnings"] == []


def test_explain_warns_too():
    explanation = taper_frontend.explain(Blocks().train(), (torch.randn(2, 3, 4),))
    (text,) = explanation.warnings
    assert "in training mode" in text
    assert f"warning: {text}" in str(explanation)
    axes = {"args_0": {0: "n"}}
    module = Call(lambda self, x: x + torch.ones(3))
    (text,) = taper_frontend.explain(module, (torch.ones(3),), dynamic_axes=axes).warnings
    assert "the model fixes it to 3" in text


@pytest.mark.parametrize(
    ("module", "shape", "axes", "kind"),
    [
        (Remembers(True), (3,), None, "state"),
        (
            Call(lambda self, x: x[:, :1] + 1 if x.shape[1] > 64 else x),
            (2, 70),
            {"args_0": {1: "n"}},
            "shape",
        ),
        (
            Call(lambda self, x: x + 1 if x.shape[1] % 4 else x * 2),
            (2, 7),
            {"args_0": {1: "n"}},
            "branch",
        ),
    ],
)
def test_explain_warns_of_what_export_warns_of(module, shape, axes, kind):
    example = (torch.randn(shape),)
    with pytest.warns(ExportWarning):
        plan = taper_frontend.export(module, example, dynamic_axes=axes)
    explanation = taper_frontend.explain(module, example, dynamic_axes=axes)
    assert [note["kind"] for note in plan.metadata["warnings"]] == [kind]
    assert explanation.warnings == [note["text"] for note in plan.metadata["warnings"]]


def test_explain_tells_of_no_ranges_where_an_input_is_missing():
    module = Call(lambda self, z, x: z.float().sum() + (x + 1 if x.shape[1] > 64 else x))
    example = (torch.ones(2).to(torch.float8_e4m3fn), torch.ones(2, 70))
    explanation = taper_frontend.explain(module, example, dynamic_axes={"args_1": {1: "n"}})
    assert "dtype" in explanation.categories
    assert explanation.warnings == []


def test_warnings_are_in_the_file(tmp_path):
    with pytest.warns(ExportWarning):
        plan = taper_frontend.export(Noisy().train(), (torch.ones(3),))
    plan.save(tmp_path / "m.taper")
    assert taper_runtime.load(tmp_path / "m.taper").metadata["warnings"] == list(
        plan.metadata["warnings"]
    )


def test_a_size_fixed_by_len():
    model = Call(lambda _, x: x * builtins.len(x))  # as in a file that defines no module
    with pytest.warns(ExportWarning, match=r"write x\.shape\[0\] for len\(x\)"):
        taper_frontend.export(model, (torch.randn(4, 3),), dynamic_shapes=(({0: "n"},),))
