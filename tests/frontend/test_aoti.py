"""Refusals of the delegate "aoti" before anything is compiled; ``tests/aoti`` compiles."""

import numpy as np
import pytest
import torch

import taper_frontend.aoti as aoti
from taper_frontend import ExportError, ExportWarning, export
from taper_frontend.aoti import AotiDelegate, export_aoti
from taper_runtime import InputError
from taper_runtime.extend.servers import ServedNode
from taper_runtime.ops.opdef import TensorType


class Model(torch.nn.Module):
    def __init__(self, compute):
        super().__init__()
        self.compute = compute
        self.register_buffer("count", torch.zeros(2))

    def forward(self, *args):
        return self.compute(self, *args)


def count(self, x):
    self.count.add_(1)
    return x + self.count


X = torch.ones(2)


@pytest.fixture
def no_compiler(monkeypatch):
    """A package that is no package, in place of what takes a minute."""
    monkeypatch.setattr(aoti, "_compiled", lambda program, configs: b"package")
    monkeypatch.setattr(AotiDelegate, "__init__", lambda self, node: None)


@pytest.mark.parametrize(
    ("compute", "args", "message"),
    [
        (count, (X,), "expected a model without states"),
        (lambda s, x: x.add_(1) * 2, (X,), "that writes to no argument"),
        (lambda s, x, n: x + n, (X, 3), "argument 'args_1': expected a tensor"),
        (lambda s, x: x * 2, (torch.ones(2, 3).T,), "expected contiguous arguments"),
        (lambda s, x: (x, x * 2), (X,), "whose outputs are different tensors and no arguments"),
        (lambda s, x: (y := x * 2, y), (X,), "whose outputs are different tensors"),
        (lambda s, x: (s.count, x * 2), (X,), "whose outputs are different tensors"),
    ],
)
@pytest.mark.usefixtures("no_compiler")
def test_models_are_refused(compute, args, message):
    with pytest.raises(ExportError, match=message):
        export_aoti(Model(compute).eval(), args, verify=False)


@pytest.mark.filterwarnings("ignore::taper_frontend.ExportWarning")
@pytest.mark.usefixtures("no_compiler")
def test_an_unread_input_is_refused():
    with pytest.raises(
        ExportError, match=r"expected one node(?s:.*)expected a model that reads all"
    ):
        export_aoti(Model(lambda s, x, y: x * 2).eval(), (X, X), verify=False)


@pytest.mark.parametrize("name", ["partition", "delegate", "weights"])
def test_its_own_options_are_refused(name):
    with pytest.raises(ExportError, match=f"expected other options, got {name}"):
        export_aoti(Model(lambda s, x: x * 2).eval(), (X,), **{name: None})


def test_an_export_by_its_name_alone_keeps_the_model():
    with pytest.warns(ExportWarning, match="expected an export by taper_frontend.aoti.export_aoti"):
        plan = export(
            Model(lambda s, x: x * 2).eval(),
            (X,),
            partition=lambda graph: [list(graph.nodes)],
            delegate="aoti",
        )
    assert [node.op for node in plan.nodes] == ["MUL"]


@pytest.mark.parametrize(
    "blob",
    [b"", b"\n", b"{}\npackage", b'{"inputs": 3}\n', b'{"inputs": ["y"]}\n', b'{"inputs": [[]]}\n'],
)
def test_another_blob_is_refused(blob):
    type_ = TensorType("float32", (2,))
    node = ServedNode(
        "n", np.frombuffer(blob, np.uint8), (type_,), (type_,), (), None, names=("x",)
    )
    with pytest.raises(InputError, match="expected the names of the inputs and a package"):
        AotiDelegate(node)


def test_a_package_that_torch_cannot_load_is_refused():
    type_ = TensorType("float32", (2,))
    blob = np.frombuffer(b'{"inputs": ["x"]}\nnothing', np.uint8)
    node = ServedNode("n", blob, (type_,), (type_,), (), None, names=("x",))
    with pytest.raises(InputError, match="node 'n': torch cannot load its package"):
        AotiDelegate(node)
