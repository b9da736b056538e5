"""PT2 archives that torch wrote, read without it."""

import io
import pickle
import zipfile

import numpy as np
import pytest
import torch
from torch.export.pt2_archive._package import package_pt2

from taper_runtime import pt2
from taper_runtime.base.errors import PlanFormatError

#: torch says so where no weight covers all of the memory that others share.
pytestmark = pytest.mark.filterwarnings("ignore:No complete tensor")


class Tied(torch.nn.Module):
    """Weights that share memory in every way that torch saves."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.embed = torch.nn.Embedding(10, 4)
        self.head = torch.nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight
        memory = torch.arange(24.0)
        self.register_buffer("front", memory[:8])
        self.register_buffer("middle", memory[4:20].view(4, 4).t())
        self.register_buffer("small", torch.rand(3).bfloat16())
        self.register_buffer("wave", torch.rand(2, dtype=torch.complex64))
        self.register_buffer("flags", torch.tensor([True, False]))
        self.register_buffer("scratch", torch.ones(2), persistent=False)
        self.shift = torch.tensor([1, 2, 3])

    def forward(self, x):
        sums = [b.sum() for b in (self.front, self.middle, self.small, self.scratch, self.shift)]
        return self.head(self.embed(x)) + sum(sums) + self.wave.abs().sum() + self.flags.sum()


@pytest.fixture(scope="module")
def program():
    return torch.export.export(Tied().eval(), (torch.tensor([[1, 2]]),))


def as_numpy(tensor):
    tensor = tensor.detach()
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def test_weights_equal_those_of_torch(program, tmp_path):
    path = tmp_path / "tied.pt2"
    torch.export.save(program, path, extra_files={"labels.txt": "cat\ndog"})
    archive = pt2.open(path)
    weights, constants = archive.weights(), archive.constants()
    assert archive.weight_names() == list(program.state_dict)
    for name, tensor in program.state_dict.items():
        np.testing.assert_array_equal(weights[name], as_numpy(tensor), strict=True)
    assert constants.keys() == program.constants.keys() == {"scratch", "shift"}
    for name, tensor in program.constants.items():
        np.testing.assert_array_equal(constants[name], as_numpy(tensor), strict=True)
    assert archive.extra("labels.txt") == b"cat\ndog"
    assert archive.dtypes()["small"] == "bfloat16"


def test_shared_memory_is_there_once(program, tmp_path):
    path = tmp_path / "tied.pt2"
    torch.export.save(program, path)
    weights = pt2.open(path).weights()
    assert weights["embed.weight"].ctypes.data == weights["head.weight"].ctypes.data
    assert np.shares_memory(weights["front"], weights["middle"])


def test_several_models(program, tmp_path):
    path = tmp_path / "two.pt2"
    linear = torch.nn.Linear(2, 3)
    other = torch.export.export(linear, (torch.ones(1, 2),))
    package_pt2(path, exported_programs={"tied": program, "linear": other})
    archive = pt2.open(path)
    assert archive.model_names == ["linear", "tied"]
    weights = archive.weights("linear")
    np.testing.assert_array_equal(weights["weight"], linear.weight.detach().numpy())
    assert archive.weight_names("tied") == list(program.state_dict)


def test_samples_equal_those_of_torch(tmp_path):
    class Scaled(torch.nn.Module):
        def forward(self, x, parts, k=1, *, mask=None):
            return x * k + parts["a"] + parts["b"][0] + parts["b"][1].real

    memory = torch.arange(24.0)
    parts = {
        "a": memory[4:10].view(3, 2).t(),
        "b": [torch.ones(1).bfloat16(), torch.rand(2, 3, dtype=torch.complex64)],
    }
    args = (torch.nn.Parameter(memory[:6].view(2, 3)), parts, 3)
    torch.export.save(torch.export.export(Scaled(), args, {"mask": None}), tmp_path / "s.pt2")
    (x, got, k), named = pt2.open(tmp_path / "s.pt2").samples()
    assert (k, named, got.keys()) == (3, {"mask": None}, parts.keys())
    for mine, its in zip((x, got["a"], *got["b"]), (args[0], parts["a"], *parts["b"]), strict=True):
        np.testing.assert_array_equal(mine, as_numpy(its), strict=True)


class Marked(torch.Tensor):
    """A subclass of Tensor: torch pickles such weights."""


def test_a_pickled_weight_is_refused_by_name(tmp_path):
    module = torch.nn.BatchNorm1d(2).eval()
    program = torch.export.export(module, (torch.ones(1, 2),))
    mean = program.state_dict["running_mean"].as_subclass(Marked)
    program.state_dict["running_mean"] = mean
    path = tmp_path / "marked.pt2"
    torch.export.save(program, path)
    with pytest.raises(
        PlanFormatError, match=r"weights\['running_mean'\]: .* not pickled.*with torch"
    ):
        pt2.open(path).weights()


def test_what_torch_save_wrote_is_no_archive(tmp_path):
    path = tmp_path / "state.pt"
    torch.save({"w": torch.ones(2)}, path)
    with pytest.raises(PlanFormatError, match=r"archive_format'\]: expected 'pt2'"):
        pt2.open(path)


def test_nothing_is_unpickled(program, tmp_path, monkeypatch):
    """Reading everything that can be read never calls what unpickles."""
    path = tmp_path / "tied.pt2"
    torch.export.save(program, path)

    def refuse(*args, **kwargs):
        raise AssertionError("unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(np, "load", refuse)
    archive = pt2.open(path)
    assert archive.weights().keys() == program.state_dict.keys()
    assert archive.samples()[0][0].tolist() == [[1, 2]]
    assert "data/sample_inputs/model.pt" in {
        name.partition("/")[2] for name in zipfile.ZipFile(io.BytesIO(path.read_bytes())).namelist()
    }
