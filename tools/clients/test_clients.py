"""Programs written for ONNX Runtime run on Taper unchanged, and give what they gave.

Each runs in two processes from the same weights: over Taper, and over its reference, which is ONNX
Runtime itself, for rapidocr its own torch engine.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


def python(*args):
    done = subprocess.run(
        [sys.executable, "-m", *map(str, args)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def results(client, tmp_path):
    """What the client gives: over its reference, over Taper."""
    python("tools.clients.models", client, tmp_path)
    given = []
    for engine in ("reference", "taper"):
        path = tmp_path / f"{engine}.npz"
        python("tools.clients.run", engine, client, tmp_path, path)
        given.append(np.load(path))
    assert given[0].files == given[1].files
    return given


@pytest.mark.parametrize("client", ["rembg"])
def test_rembg_cuts_the_same_out(results):
    want, got = results
    assert want["mask"].std() > 10
    for name in want.files:  # bytes: a step of rounding may fall to the other side
        np.testing.assert_allclose(got[name].astype(int), want[name].astype(int), atol=1)


@pytest.mark.parametrize("client", ["fastembed"])
def test_fastembed_embeds_alike(results):
    want, got = results
    assert want["passages"].shape == (4, 64)
    for name in want.files:
        np.testing.assert_allclose(got[name], want[name], atol=1e-6)


@pytest.mark.parametrize("client", ["silero"])
def test_silero_hears_the_same_speech(results):
    want, got = results
    assert len(want["found"]) > 0
    np.testing.assert_array_equal(got["found"], want["found"])
    np.testing.assert_allclose(got["probabilities"], want["probabilities"], atol=1e-5)


@pytest.mark.parametrize("client", ["rapidocr"])
def test_rapidocr_reads_the_same(results):
    want, got = results
    assert len(want["boxes"]) > 1
    assert any(want["texts"])
    np.testing.assert_allclose(got["boxes"], want["boxes"], atol=1)
    np.testing.assert_array_equal(got["texts"], want["texts"])
    np.testing.assert_array_equal(got["line"], want["line"])
    for name in ("box_scores", "scores", "line_scores"):
        np.testing.assert_allclose(got[name], want[name], atol=1e-4)
