"""Errors of export for things that it cannot export."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import taper_frontend
from taper_frontend import ExportError

torch.set_num_threads(1)

X = torch.ones(3)


class Double(torch.nn.Module):
    def forward(self, x, *, scale=2):
        return x * scale


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (
            X,
            None,
            r"args: expected a tuple of the example arguments, \(x,\) for one tensor, got T",
        ),
        (X.numpy(), None, r"args: expected a tuple.*, got ndarray"),
        (None, None, "args: expected a tuple of the example arguments, got NoneType"),
        ((X,), [3], "kwargs: expected a dict, got list"),
        ((X.numpy(),), None, r"args\[0\]: expected a torch.Tensor, got ndarray; torch.from_numpy"),
        (
            (X,),
            {"scale": np.float32(2)},
            r"kwargs\['scale'\]: expected .*, got float32; torch.tensor makes .*\.item\(\)",
        ),
        ((), None, r"do not fit Double.forward: missing a required argument: 'x'; expected \(x,"),
        ((X, X), None, r"too many positional arguments; expected .*, got \(Tensor, Tensor\)"),
        ((X,), {"by": 3}, "unexpected keyword argument 'by'"),
    ],
)
def test_arguments_that_do_not_fit(args, kwargs, message):
    for function in (taper_frontend.export, taper_frontend.explain):
        with pytest.raises(ExportError, match=message):
            function(Double(), args, kwargs)


def save(path, content):
    torch.save(content, path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "no such file"),
        (lambda path: path.mkdir(), "it is a folder"),
        (lambda path: path.write_bytes(b"ONNX"), "it is not an archive of torch"),
        (
            lambda path: save(path, Double().state_dict() | {"w": X}),
            "was written by torch.save: .* a state dict of 1 tensors, which has no model",
        ),
        (
            lambda path: save(path, {"epoch": 3, "model": {"w": X}}),
            "it is a dict with the keys 'epoch', 'model'",
        ),
        (lambda path: save(path, [X]), "it is a list, not a program"),
        (lambda path: save(path, Double()), "it holds a pickled object; load it with torch.load"),
    ],
)
def test_files_that_are_no_program(make, message, tmp_path):
    path = tmp_path / "model.pth"
    make(path)
    for given in (path, str(path)):
        with pytest.raises(ExportError, match=rf"model\.pth.*{message}"):
            taper_frontend.export(given)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript(tmp_path):
    scripted = torch.jit.script(torch.nn.ReLU())
    with pytest.raises(ExportError, match=r"is TorchScript .*build the module from its Python cl"):
        taper_frontend.export(scripted, (X,))
    torch.jit.save(scripted, tmp_path / "model.pt")
    with pytest.raises(ExportError, match=r"model\.pt' is TorchScript"):
        taper_frontend.export(tmp_path / "model.pt")
    with pytest.raises(ExportError, match="is TorchScript"):
        taper_frontend.explain(scripted, (X,))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Double, "got the class Double: call it to make a module"),
        ({"w": X}, "got a dict; it is a state dict of 1 tensors"),
        (3, "expected a torch.nn.Module, an ExportedProgram or the path of a .pt2 file, got int"),
    ],
)
def test_models_that_are_none(model, message):
    with pytest.raises(ExportError, match=message):
        taper_frontend.export(model, (X,))


class Decides(torch.nn.Module):
    def forward(self, x):
        y = x * 2
        if y.sum() > 0:
            return y
        return x


def test_a_decision_by_values_names_the_line(capfd):
    with pytest.raises(ExportError, match=r"reads a number from a tensor and branches") as caught:
        taper_frontend.export(Decides(), (X,))
    assert "in forward: if y.sum() > 0:" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 2
    explanation = taper_frontend.explain(Decides(), (X,))
    (each,) = explanation.breaks
    assert each.category == "data-dependent"
    assert "if y.sum() > 0:" in each.sources[0]
    assert "0 of 0" not in str(explanation)
    assert capfd.readouterr() == ("", "")


def test_an_error_of_the_module_names_the_line():
    class Wrong(torch.nn.Module):
        def forward(self, x):
            return x @ torch.ones(7, 2)

    with pytest.raises(ExportError, match=r"in forward: return x @ torch.ones\(7, 2\)"):
        taper_frontend.export(Wrong(), (X,))


QUIET = """
import torch, taper_frontend
class Decides(torch.nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x
class Wrong(torch.nn.Module):
    def forward(self, x):
        return x @ torch.ones(7, 2)
for model in (Decides(), Wrong(), "nothing.pt2", "weights.pth"):
    try:
        taper_frontend.export(model, (torch.ones(3),))
    except taper_frontend.ExportError:
        print("refused")
taper_frontend.export(torch.nn.ReLU(), (torch.ones(1, 3),), dynamic_axes={"input": [0]})
"""


def test_torch_writes_nothing_to_the_terminal(tmp_path):
    """In a process of its own: torch keeps the stream that it logs to."""
    torch.save({"w": X}, tmp_path / "weights.pth")
    result = subprocess.run(
        [sys.executable, "-c", QUIET], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (result.stdout, result.stderr) == ("refused\n" * 4, "")
