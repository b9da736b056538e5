"""Models that AOTInductor compiles, a minute of CPU time in all: ``nox -s aoti`` runs these."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import taper_runtime
from taper_frontend import ExportError
from taper_frontend.aoti import AotiDelegate, export_aoti
from taper_runtime import InferenceSession, InputError, SessionOptions

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs g++"),
    # of AOTInductor's own code
    *map(pytest.mark.filterwarnings, ("ignore::DeprecationWarning", "ignore::FutureWarning")),
]


class Scorer(torch.nn.Module):
    """Nested outputs that are not in the order of their nodes, and inputs that are not either."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)

    def forward(self, x, mask, shift):
        hidden = torch.relu(self.layer(x)) + shift
        return {"b": torch.where(mask, x, 0).sum(0), "a": [hidden, (hidden > 1).to(torch.bfloat16)]}


@pytest.fixture(scope="module")
def module():
    torch.manual_seed(0)
    return Scorer().eval()


@pytest.fixture(scope="module")
def path(module, tmp_path_factory):
    """A file of the compiled module, for 2 to 64 rows."""
    rows = {0: torch.export.Dim("rows", min=2, max=64)}
    args = (torch.randn(3, 8), torch.ones(3, 8, dtype=torch.bool), torch.randn(4))
    shapes = (rows, rows, None)
    plan = export_aoti(module, args, dynamic_shapes=shapes, metadata={"by": "aoti"})
    path = tmp_path_factory.mktemp("aoti") / "scorer.taper"
    plan.save(path)
    return path


def options(delegates, *, code=True):
    made = SessionOptions()
    made.delegates, made.allow_native_code = delegates, code
    return made


def arguments(rows):
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 8, generator=generator)
    return x, x > 0, torch.randn(4, generator=generator)


@pytest.mark.parametrize("rows", [2, 3, 64])
@pytest.mark.parametrize("delegate", [AotiDelegate, None], ids=["aoti", "own"])
def test_results_are_the_module_s(module, path, rows, delegate):
    made = options({"aoti": delegate})
    if delegate:
        made.executor = "delegate"
    session = InferenceSession(path, made)
    args = arguments(rows)
    got, want = session(*(each.numpy() for each in args)), module(*args)
    np.testing.assert_allclose(got["b"], want["b"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got["a"][0], want["a"][0].detach(), rtol=1e-5, atol=1e-6)
    assert got["a"][1].astype(np.float32).tolist() == want["a"][1].float().tolist()


def test_inputs_with_strides_are_copied(module, path):
    x, mask, shift = arguments(5)
    flipped = x.numpy()[::-1]
    got = InferenceSession(path, options({"aoti": AotiDelegate}))(
        flipped, mask.numpy(), shift.numpy()
    )
    want = module(x.flip(0), mask, shift)
    np.testing.assert_allclose(got["a"][0], want["a"][0].detach(), rtol=1e-5, atol=1e-6)


def test_it_is_off_unless_the_options_name_it_and_allow_code(path):
    with pytest.raises(InputError, match="expected delegate 'aoti' in SessionOptions"):
        InferenceSession(path)
    with pytest.raises(InputError, match="'aoti' runs machine code from the plan's file"):
        InferenceSession(path, options({"aoti": AotiDelegate}, code=False))


def test_the_example_of_the_page_runs(tmp_path, monkeypatch):
    """Those of the other pages are run by tests/documents, which must be fast."""
    page = (Path(__file__).parents[2] / "docs/how-to/extend.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (example,) = (block for block in blocks if "taper_frontend.aoti" in block)
    monkeypatch.chdir(tmp_path)
    model, x = torch.nn.Linear(8, 4).eval(), torch.randn(3, 8)
    names = {"torch": torch, "taper_runtime": taper_runtime, "model": model, "x": x}
    exec(example, names)  # noqa: S102
    (y,) = names["session"].run(None, {names["session"].get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(y, model(x).detach(), rtol=1e-5, atol=1e-6)


def test_without_a_compiler_the_export_is_refused(module, monkeypatch):
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    x, mask, shift = arguments(3)
    with pytest.raises(ExportError, match="AOTInductor cannot compile the model"):
        export_aoti(module, (x, mask, shift), inductor_configs={"cpp.cxx": ("/nonexistent/c++",)})
