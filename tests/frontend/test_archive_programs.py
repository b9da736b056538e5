"""Programs of PT2 archives, compiled where torch cannot be imported: export's own plan bytes."""

import collections
import json
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from torch.export import Dim
from torch.export.pt2_archive._package import package_pt2

import taper_frontend
from taper_runtime import InferenceSession, load

_WITHOUT_TORCH = """
import json, pathlib, sys, warnings
sys.modules["torch"] = None  # whoever imports it gets an ImportError
warnings.simplefilter("ignore")
import taper_frontend
errors = {}
for path in pathlib.Path(sys.argv[1]).glob("*.pt2"):
    try:
        taper_frontend.export(path).save(path.with_suffix(".taper"))
    except Exception as error:
        errors[path.stem] = f"{type(error).__name__}: {error}"
from taper_runtime.cli import main
folder = pathlib.Path(sys.argv[1])
command = ["export", str(folder / "several.pt2"), "--model", "first", "--quiet"]
assert main([*command, "-o", str(folder / "command.taper")]) == 0
assert main([*command, "--explain"]) == 1
print(json.dumps(errors))
"""

Pair = collections.namedtuple("Pair", "sums places")
torch.utils._pytree._register_namedtuple(Pair, serialized_type_name="test.Pair")


class Function(torch.nn.Module):
    """A function of its arguments, with some layers at hand."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.linear, self.other = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.other.weight = self.linear.weight
        self.conv, self.norm = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4)
        self.embedding = torch.nn.Embedding(10, 8)
        self.lstm = torch.nn.LSTM(8, 4)
        self.attention = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.register_buffer("steps", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("wave", torch.randn(4, dtype=torch.complex64))
        self.register_buffer("bits", torch.randn(8).bfloat16())
        self.register_buffer("mask", torch.tensor([True, False] * 4), persistent=False)
        self.shift = torch.arange(8.0)

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)


def mlp(m, x):
    return m.other(torch.relu(m.linear(x)))


def convolutions(m, x):
    y = torch.nn.functional.silu(m.norm(m.conv(x)))
    return torch.nn.functional.interpolate(torch.nn.functional.max_pool2d(y, 2), scale_factor=2)


def attention(m, ids):
    return m.attention(m.embedding(ids))


def nested(m, x, *, scale):
    values, places = x.topk(2)
    return {"best": Pair(values * scale["by"], [places, None]), "count": 3}


def sizes(m, x, y):
    rows = x.shape[0] // 2
    joined = torch.cat([x[:rows], y]) * m.shift
    return joined + torch.arange(joined.shape[0])[:, None], x.reshape(-1), torch.full((rows,), 2.5)


def kinds(m, x):
    y = torch.view_as_real(torch.complex(x[:4], x[4:]) * m.wave)
    whole = (x > 0) & m.mask
    return y, x.bfloat16() + m.bits, whole.long() % 3, x.double().sum(), torch.clamp(x, max=1e9)


def remembers(m, x):
    m.steps.add_(1)
    return x * m.steps


def branches(m, x):
    return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos(), (x,))


def recurrent(m, x):
    return m.lstm(x)[0]


def found(m, x):
    return torch.nonzero(x > 0), x[x > 0].sum()


def ranges(m, x):
    whole = torch.tril(torch.ones(3, 3)), torch.arange(7, 0, -2, dtype=torch.float64)
    return x + torch.linspace(-1, 1, 8), torch.arange(0, 4, 0.5), *whole, -m.shift


ROWS = Dim.AUTO(max=64)
F8, BATCH = torch.linspace(-1, 1, 8), torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
IMAGE = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(2))

#: Function, its arguments, and which dims vary.
PROGRAMS = [
    (mlp, (BATCH,), {}, None),
    (convolutions, (IMAGE,), {}, None),
    (attention, (torch.tensor([[1, 2, 3]]),), {}, None),
    (nested, (BATCH,), {"scale": {"by": torch.tensor(2.0)}}, None),
    (sizes, (BATCH, BATCH), {}, ({0: ROWS}, {0: ROWS})),
    (kinds, (F8,), {}, None),
    (remembers, (BATCH,), {}, None),
    (branches, (BATCH,), {}, None),
    (recurrent, (BATCH[:, None],), {}, None),
    (found, (F8,), {}, None),
    (ranges, (F8,), {}, None),
]


def program_of(function, args=(BATCH,), kwargs=None, shapes=None, *, decompose=True):
    shapes = None if shapes is None else {"args": shapes}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch uses what it has deprecated
        program = torch.export.export(
            Function(function).eval(), args, kwargs, dynamic_shapes=shapes
        )
        return program.run_decompositions() if decompose else program


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Plans that a process without torch has made of archives, and its errors by name."""
    folder = tmp_path_factory.mktemp("archives")
    programs = {function.__name__: program_of(function, *rest) for function, *rest in PROGRAMS}
    programs["whole"] = program_of(convolutions, (IMAGE,), decompose=False)
    for name, program in programs.items():
        torch.export.save(program, folder / f"{name}.pt2")
    several = {"first": programs["mlp"], "second": programs["remembers"]}
    package_pt2(folder / "several.pt2", exported_programs=several)
    (folder / "none.pt2").write_bytes(b"PK")
    command = [sys.executable, "-c", _WITHOUT_TORCH, str(folder)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    return folder, json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", [function.__name__ for function, *_ in PROGRAMS])
@pytest.mark.filterwarnings("ignore::taper_frontend.ExportWarning")
def test_a_plan_made_without_torch_has_the_bytes_of_exports(folder, name, tmp_path):
    folder, errors = folder
    assert name not in errors
    plan = taper_frontend.export(folder / f"{name}.pt2", verify=False)
    plan._replace(samples={}).save(tmp_path / "plan.taper")
    assert (folder / f"{name}.taper").read_bytes() == (tmp_path / "plan.taper").read_bytes()


def test_the_plan_runs(folder):
    session = InferenceSession(load(folder[0] / "mlp.taper"))
    (got,) = session.run(None, {"args_0": BATCH.numpy()})
    with torch.no_grad():
        want = Function(mlp).eval()(BATCH)
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-5, atol=1e-6)


def test_ops_without_a_handler_are_listed(folder):
    error = folder[1]["whole"]
    assert "UnsupportedNodesError: the model holds" in error
    assert "aten.conv2d.default" in error
    assert "aten.batch_norm.default" in error
    assert "save the program after run_decompositions()" in error
    assert "test_archive_programs.py:" in error


def test_a_file_that_is_no_archive_is_refused_by_name(folder):
    assert "none.pt2: archive: expected a zip archive" in folder[1]["none"]


def test_several_programs_are_chosen_by_name(folder):
    folder, errors = folder
    assert "several.pt2': no model named; expected one of first, second" in errors["several"]
    unknown = "unknown model 'x'; expected one of first, second"
    with pytest.raises(taper_frontend.ExportError, match=unknown):
        taper_frontend.export(folder / "several.pt2", model="x")
    plan = taper_frontend.export(folder / "several.pt2", model="first", verify=False)
    assert plan.fingerprint() == load(folder / "mlp.taper").fingerprint()
    assert load(folder / "command.taper").fingerprint() == plan.fingerprint()
    with pytest.raises(taper_frontend.ExportError, match="model: expected None for a Function"):
        taper_frontend.export(Function(mlp), (BATCH,), model="first")
