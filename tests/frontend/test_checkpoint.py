"""A module without values and a checkpoint: the plan of the module with those tensors."""

import json
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from taper_frontend import ExportError, export
from taper_runtime import InferenceSession

#: What there is no value for.
UNSAVED = (
    "a buffer on the meta device that is not part of a state dict; "
    "make the module with its buffers on the CPU"
)

IDS = torch.tensor([[1, 5, 2]])


class Net(torch.nn.Module):
    """Tied parameters, a recurrent layer, buffers of both kinds."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(11, 8)
        self.lstm = torch.nn.LSTM(8, 8, batch_first=True)
        self.norm = torch.nn.BatchNorm1d(8)
        self.head = torch.nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.full((8,), 2.0), persistent=False)

    def forward(self, ids):
        y, _ = self.lstm(self.embed(ids) * self.scale)
        return self.head(self.norm(y.transpose(1, 2)).transpose(1, 2))


def on_meta():
    """A Net whose state dict has no values."""
    with torch.device("meta"):
        net = Net().eval()
    net.scale = torch.full((8,), 2.0)
    return net


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    net = Net().eval()
    with torch.no_grad():
        net.norm.running_mean.normal_()
    return net


def tensors_of(net):
    return {name: t for name, t in net.state_dict().items() if name != "head.weight"}


def save_shards(tensors, folder):
    """Write two files and their index; return the index."""
    names = sorted(tensors)
    shards = {"a.safetensors": names[:3], "b.safetensors": names[3:]}
    for file, mine in shards.items():
        save_file({name: tensors[name] for name in mine}, folder / file)
    index = folder / "model.safetensors.index.json"
    weight_map = {name: file for file, mine in shards.items() for name in mine}
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return index


@pytest.mark.parametrize("sharded", [False, True])
def test_the_plan_is_that_of_the_module_with_its_values(net, sharded, tmp_path):
    path = tmp_path / "model.safetensors"
    if sharded:
        path = save_shards(tensors_of(net), tmp_path)
    else:
        save_file(tensors_of(net), path)
    empty = on_meta()
    plan = export(empty, (IDS,), checkpoint=path)
    assert plan.metadata["verified"]["trials"] == 3
    (got,) = InferenceSession(plan).run(None, {"ids": IDS.numpy()})
    (want,) = InferenceSession(export(net, (IDS,))).run(None, {"ids": IDS.numpy()})
    np.testing.assert_array_equal(got, want)
    assert all(t.is_meta for t in empty.state_dict().values())
    assert empty.head.weight is empty.embed.weight
    assert all(weight.is_meta for weight in empty.lstm._flat_weights)


def test_the_file_is_left_as_it_is(net, tmp_path):
    path = tmp_path / "m.safetensors"
    save_file(tensors_of(net), path)
    before = path.read_bytes()
    export(on_meta(), (IDS,), checkpoint=path)
    assert path.read_bytes() == before


def test_values_that_are_there_give_way_or_stay(net, tmp_path):
    """A module with values takes those of the checkpoint and keeps what that does not have."""
    path = tmp_path / "m.safetensors"
    save_file({"embed.weight": torch.zeros(11, 8), "unknown": torch.ones(3)}, path)
    other = Net().eval()
    before = {name: t.clone() for name, t in other.state_dict().items()}
    plan = export(other, (IDS,), checkpoint=path)
    (got,) = InferenceSession(plan).run(None, {"ids": IDS.numpy()})
    np.testing.assert_array_equal(got, np.zeros((1, 3, 11)))
    for name, tensor in other.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_all_problems_are_listed(net, tmp_path):
    tensors = tensors_of(net)
    tensors["embed.weight"] = torch.zeros(11, 9)
    tensors["norm.weight"] = torch.zeros(8, dtype=torch.float16)
    del tensors["norm.bias"]
    path = tmp_path / "m.safetensors"
    save_file(tensors, path)
    with torch.device("meta"):
        empty = Net().eval()
    with pytest.raises(ExportError) as caught:
        export(empty, (IDS,), checkpoint=path)
    lines = str(caught.value).split("\n  ")
    assert str(path) in lines[0]
    assert sorted(lines[1:]) == [
        "embed.weight: expected float32[11, 8], got float32[11, 9]",
        "norm.bias: expected float32[8], got nothing",
        "norm.weight: expected float32[8], got float16[8]",
        f"scale: expected values, got {UNSAVED}",
    ]
    assert empty.norm.weight.is_meta


def test_a_tied_parameter_lacks_under_all_its_names(net, tmp_path):
    tensors = tensors_of(net)
    del tensors["embed.weight"]
    path = tmp_path / "m.safetensors"
    save_file(tensors, path)
    with pytest.raises(ExportError, match=r"embed\.weight = head\.weight: expected float32\[11, 8"):
        export(on_meta(), (IDS,), checkpoint=path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected a safetensors file, got .*small"),
        (b"\xff" * 64, "expected a safetensors file, got "),
        (b"\x08\0\0\0\0\0\0\0{}      ", "got nothing"),
    ],
)
def test_a_malformed_file_is_named(content, message, tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(ExportError, match=message):
        export(on_meta(), (IDS,), checkpoint=path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ExportError, match=r"none\.safetensors: expected a safetensors file, got"):
        export(on_meta(), (IDS,), checkpoint=tmp_path / "none.safetensors")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected an index of safetensors files"),
        ("[]", "without an object 'weight_map'"),
        ('{"weight_map": {"a": "../m.safetensors"}}', "not the name of a file in the same folder"),
        ('{"weight_map": {"a": ".."}}', "not the name of a file in the same folder"),
        ('{"weight_map": {"a": 3}}', "not the name of a file in the same folder"),
        ('{"weight_map": {"a": "gone.safetensors"}}', r"gone\.safetensors: expected a safetensors"),
    ],
)
def test_a_malformed_index_is_named(text, message, tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(text)
    with pytest.raises(ExportError, match=message):
        export(on_meta(), (IDS,), checkpoint=index)


def test_a_shard_without_what_the_index_says_is_named(net, tmp_path):
    index = save_shards(tensors_of(net), tmp_path)
    content = json.loads(index.read_text())
    content["weight_map"]["extra"] = "a.safetensors"
    index.write_text(json.dumps(content))
    with pytest.raises(
        ExportError, match=r"extra: expected it in .*a\.safetensors, which the index"
    ):
        export(on_meta(), (IDS,), checkpoint=index)


def test_without_safetensors_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ExportError, match=r"pip install taper-frontend\[checkpoint\]"):
        export(on_meta(), (IDS,), checkpoint=tmp_path / "m.safetensors")


def test_a_program_has_its_own_tensors(tmp_path):
    program = torch.export.export(torch.nn.Embedding(3, 2), (IDS,))
    with pytest.raises(ExportError, match="checkpoint: expected None"):
        export(program, checkpoint=tmp_path / "m.safetensors")
