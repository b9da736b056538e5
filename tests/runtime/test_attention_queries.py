"""Queries of a run that checks guesses have the bits that each of them has alone."""

import numpy as np
import pytest

from taper_runtime.generation.guess_count import MOST_GUESSES
from taper_runtime.native import _kernels
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import TensorType

KEYS, WIDTH = 150, 20


def operand(array):
    strides = [stride // array.itemsize for stride in array.strides]
    return TensorType(array.dtype.name, array.shape), strides


def attention(level, *inputs):
    op, out = REGISTRY["ATTENTION"], np.empty(inputs[0].shape, np.float32)
    attrs = op.complete({"scale": 0.25})
    node = _kernels.prepare(op, attrs, [*map(operand, inputs)], [operand(out)], (level,))
    assert node is not None
    node.run([*inputs], [out])
    return out


@pytest.mark.parametrize("level", _kernels.available_isas())
@pytest.mark.parametrize("stored", ["float32", "float16", "int8"])
@pytest.mark.parametrize("group", [1, 6, 40])  # queries of one position share keys, too
def test_queries_have_the_bits_of_one(level, stored, group):
    rng = np.random.default_rng(0)
    count = MOST_GUESSES + 1
    q = rng.standard_normal((2, group, count, WIDTH)).astype(np.float32)
    k, v = (rng.standard_normal((2, 1, KEYS, WIDTH)).astype(np.float32) for _ in "kv")
    scales = ()
    if stored == "int8":
        scales = [np.abs(x).max(-1, keepdims=True) / np.float32(127) for x in (k, v)]
        k, v = (np.rint(x / s) for x, s in zip((k, v), scales, strict=True))
    k, v = k.astype(stored), v.astype(stored)
    # rows of a batch at different places of their caches
    places = np.array([90, 20])[:, None] + np.arange(count)
    mask = np.arange(KEYS) <= places[:, None, :, None]
    together = attention(level, q, k, v, mask, *scales)
    for at in range(count):
        part = slice(at, at + 1)
        alone = attention(level, q[:, :, part].copy(), k, v, mask[:, :, part].copy(), *scales)
        np.testing.assert_array_equal(together[:, :, part], alone)
