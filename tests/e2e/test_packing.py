"""Winograd's tiles, stored in the file or made when a session opens it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import taper_frontend
from taper_runtime import InferenceSession, InputError
from taper_runtime.cli import main

torch.set_num_threads(1)

X = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
FEED = {"input": X.numpy()}


def tiles(plan):
    return {name for name, spec in plan.tensors.items() if spec.format.startswith("winograd")}


@pytest.fixture(scope="module")
def module():
    torch.manual_seed(0)
    layers = []
    for channels, more in ((3, 32), (32, 32), (32, 48)):
        layers += [nn.Conv2d(channels, more, 3, padding=1), nn.BatchNorm2d(more), nn.ReLU()]
    return nn.Sequential(*layers).eval()


@pytest.fixture(scope="module")
def stored(module):
    plan = taper_frontend.export(module, (X,), verify=False)
    assert len(tiles(plan)) >= 2
    return plan


@pytest.mark.parametrize("weights", ["fixed", "replaceable"])
def test_the_bits_are_those_of_stored_tiles(weights, module, tmp_path):
    how = {"verify": False, "weights": weights}
    stored = taper_frontend.export(module, (X,), **how)
    plan = taper_frontend.export(module, (X,), packing="at_open", **how)
    assert tiles(plan) == tiles(stored)
    assert not tiles(plan) & plan.constants.keys()
    stored.save(tmp_path / "stored.taper")
    plan.save(tmp_path / "opened.taper")
    sizes = [(tmp_path / f"{name}.taper").stat().st_size for name in ("opened", "stored")]
    assert sizes[0] < 0.75 * sizes[1]
    want = InferenceSession(tmp_path / "stored.taper").run(None, FEED)[0]
    for source in (plan, tmp_path / "opened.taper"):
        session = InferenceSession(source)
        assert session.run(None, FEED)[0].tobytes() == want.tobytes()
        for name in tiles(stored):
            assert session.plan.constants[name].tobytes() == stored.constants[name].tobytes()
    np.testing.assert_allclose(want, module(X).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_a_plain_weight_is_no_weight_to_replace(module):
    session = InferenceSession(taper_frontend.export(module, (X,), packing="at_open"))
    assert {spec.kind for spec in session.plan.weights.values()} == {"constant"}
    name = min(session.plan.weights)
    with pytest.raises(InputError, match="is a constant of the program"):
        session.weights.update(name, session.weights.get(name))


def test_two_convolutions_share_one_weight(tmp_path):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(32, 32, 3, padding=1)

        def forward(self, x):
            return self.conv(self.conv(x).relu())

    torch.manual_seed(0)
    x = torch.randn(1, 32, 32, 32)
    module = Twice().eval()
    plan = taper_frontend.export(module, (x,), packing="at_open")
    assert len(plan.weights) == len(plan.originals) == 1
    plan.save(tmp_path / "m.taper")
    (got,) = InferenceSession(tmp_path / "m.taper").run(None, {"x": x.numpy()})
    want = module(x).detach().numpy()
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5)


def test_a_model_without_tiles_is_as_ever():
    x = torch.randn(2, 8)
    plan = taper_frontend.export(nn.Linear(8, 4).eval(), (x,), packing="at_open")
    assert not plan.weights
    assert not plan.derived


def test_what_it_may_be(module):
    with pytest.raises(taper_frontend.ExportError, match="packing: expected one of stored, at_op"):
        taper_frontend.export(module, (X,), packing="never")


def test_the_command_line(module, stored, tmp_path):
    program = torch.export.export(module, (X,))
    torch.export.save(program, tmp_path / "m.pt2")
    files = [tmp_path / f"{name}.taper" for name in ("stored", "at_open")]
    for file in files:
        options = ["-o", str(file), "--packing", file.stem, "--no-verify"]
        main(["export", str(tmp_path / "m.pt2"), *options])
    assert files[1].stat().st_size < files[0].stat().st_size
    runs = [InferenceSession(file).run(None, FEED)[0].tobytes() for file in files]
    assert runs[0] == runs[1]
