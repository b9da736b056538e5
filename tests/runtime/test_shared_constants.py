"""Numbers that the kernels and Python both have: what Python says is what the kernels do."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from taper_runtime.base.checks import ALIGNMENT
from taper_runtime.formats import panels, winograd
from taper_runtime.formats.panels import PANEL
from taper_runtime.native._kernels import prepare
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.map import MAX_INPUTS, MAX_INSTRUCTIONS
from taper_runtime.ops.opdef import TensorType, contiguous_strides

HEADER = Path(__file__).parents[2] / "packages/kernels/include/taper/kernels.h"


def test_memory_is_aligned_as_kernels_ask():
    (bytes_,) = re.findall(r"^#define TAPER_ALIGNMENT (\d+)\b", HEADER.read_text(), re.MULTILINE)
    assert int(bytes_) == ALIGNMENT


def prepared(op, attrs, inputs, output):
    """Return what our kernels make of a node of types, all row-major; None where none takes it."""
    pairs = [(t, contiguous_strides(t.storage.shape)) for t in (*inputs, output)]
    return prepare(REGISTRY[op], REGISTRY[op].fill(attrs), pairs[:-1], pairs[-1:])


def program(inputs, instructions):
    """Return a node that adds all its inputs, and the last again and again, in so many steps."""
    args = [0, min(1, inputs - 1)]
    for step in range(1, instructions):
        args += [inputs + step - 1, min(step + 1, inputs - 1)]
    x = TensorType("float32", (8,))
    return prepared("MAP", {"code": ("ADD",) * instructions, "args": tuple(args)}, [x] * inputs, x)


def test_tile_programs_have_the_limits_that_ops_know():
    made = program(MAX_INPUTS, MAX_INSTRUCTIONS)
    x, y = np.ones(8, np.float32), np.zeros(8, np.float32)
    made.run([x] * MAX_INPUTS, [y])
    assert (y == MAX_INSTRUCTIONS + 1).all()
    assert program(MAX_INPUTS, MAX_INSTRUCTIONS + 1) is None
    assert program(MAX_INPUTS + 1, MAX_INSTRUCTIONS) is None


def test_panels_are_as_wide_as_kernels_read_them(monkeypatch):
    a, c = TensorType("float32", (3, 5)), TensorType("float32", (3, 40))
    b = TensorType("float32", (5, 40), "panels.1")
    assert b.storage.shape[2] == PANEL
    assert prepared("MATMUL", {}, [a, b], c).kind == "native"
    for width in (8, 32):
        monkeypatch.setattr(panels, "PANEL", width)
        narrow = TensorType("float32", (5, 40), "panels.1")
        assert narrow.storage.shape[2] == width
        assert prepared("MATMUL", {}, [a, narrow], c) is None


@pytest.mark.parametrize("tile", winograd.POINTS)
def test_winograd_points_are_those_of_the_kernels(tile):
    """One point of the transformed weight, one pixel of the image: a product of four entries."""
    n = tile + 2
    image = TensorType("float32", (1, n, n, 1))
    weight = TensorType("float32", (3, 3, 1, 1), f"winograd.{tile}")
    result = TensorType("float32", (1, tile, tile, 1))
    attrs = {"kernel": (3, 3), "stride": (1, 1), "dilation": (1, 1), "padding": (0, 0, 0, 0)}
    made = prepared("CONV", attrs, [image, weight], result)
    matrices = winograd.transforms(tile)
    x, w = np.zeros(image.shape, np.float32), np.zeros(weight.storage.shape, np.float32)
    y = np.zeros(result.shape, np.float32)
    for (i, j), (p, q) in itertools.product(np.ndindex(n, n), np.ndindex(n, n)):
        x[...], w[...] = 0, 0
        x[0, p, q, 0] = w[i * n + j, 0, 0, 0] = 1
        made.run([x, w], [y])
        factor = matrices.x[i, p] * matrices.x[j, q]
        expected = factor * np.outer(matrices.output[:, i], matrices.output[:, j])
        np.testing.assert_allclose(y[0, ..., 0], expected, rtol=1e-6, atol=1e-12)
