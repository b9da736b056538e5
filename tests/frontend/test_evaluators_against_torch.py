"""Evaluators against torch, beyond the registry's samples: casts, masks of attention."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from taper_runtime.ops import REGISTRY
from taper_runtime.ops.convert import cast
from taper_runtime.ops.type_rules import COMPUTED

torch.set_num_threads(1)


@pytest.mark.parametrize("target", COMPUTED)
def test_cast(target):
    values = np.array([0.0, -0.0, 0.5, 1.5, 2.5, 100.9, -0.5, -1.5, -100.9])
    if target == "uint8":  # a negative number has no value there
        values = values[:6]
    for source in COMPUTED:
        x = (np.trunc(np.abs(values)) if source == "uint8" else values).astype(source)
        got = REGISTRY["CAST"].evaluate([x], {"dtype": target})
        want = torch.from_numpy(x).to(getattr(torch, target)).numpy()
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
        if got.dtype.kind == "f":
            np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


@pytest.mark.parametrize("source", ["float64", "float32", "float16", "int64", "bool"])
def test_cast_to_bfloat16(source):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(5000) * 10.0 ** rng.integers(-4, 4, 5000)).astype(source)
    want = torch.from_numpy(x).to(torch.bfloat16)
    got = cast(x, "bfloat16")
    np.testing.assert_array_equal(got, want.view(torch.uint16).numpy())
    np.testing.assert_array_equal(cast(got, "float32"), want.float().numpy())


@pytest.mark.parametrize("safe", [True, False])
def test_attention_without_anything_to_attend(safe):
    op = REGISTRY["ATTENTION"]
    x = np.ones((1, 2, 3, 4), np.float32)
    mask = np.array([[True] * 3, [False] * 3, [True] * 3])
    attrs = op.complete({"scale": 1.0, "safe_softmax": safe})
    got = op.evaluate([x, x, x, mask], attrs)
    np.testing.assert_array_equal(got[:, :, 1], 0 if safe else np.nan)
    np.testing.assert_array_equal(got[:, :, ::2], 1)
    tensors = [torch.from_numpy(x)] * 3
    torchs = F.scaled_dot_product_attention(*tensors, torch.from_numpy(mask), scale=1.0)
    np.testing.assert_allclose(op.evaluate([x, x, x, mask], attrs | {"safe_softmax": True}), torchs)


def test_attention_adds_the_mask_in_its_dtype():
    """A row masked by a large number throughout attends all keys alike, as in torch."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, 3, 8)).astype(np.float32) for _ in range(3))
    mask = np.full((3, 3), -1e9, np.float32)
    got = REGISTRY["ATTENTION"].evaluate(
        [q, k, v, mask], REGISTRY["ATTENTION"].complete({"scale": 0.3})
    )
    want = F.scaled_dot_product_attention(*map(torch.from_numpy, (q, k, v, mask)), scale=0.3)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
