"""Ops of torchvision's detectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import taper_frontend
import taper_runtime
import vision_ops
from taper_runtime.base.errors import InputError

torch.set_num_threads(1)

#: scale, height, width, sampling_ratio, aligned
POOLS = [(0.5, 3, 2, 2, False), (0.5, 2, 2, 1, True), (0.25, 2, 3, 0, False), (1.0, 1, 2, -1, True)]


class Pools(nn.Module):
    """Features of an image, averaged in boxes, by a linear layer."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 5, 3, padding=1)
        self.heads = nn.ModuleList(nn.Linear(5 * pool[1] * pool[2], 4) for pool in POOLS)

    def forward(self, x, boxes):
        x = self.body(x).relu()
        pooled = [vision_ops.roi_align(x, boxes, *pool) for pool in POOLS]
        return *pooled, sum(h(p.flatten(1)) for h, p in zip(self.heads, pooled, strict=True))


def boxes_of(count, images=2):
    """Boxes of which some are outside of the image, and some less than a pixel long."""
    ends = torch.rand(count, 4) * 24 - 4
    low, high = torch.minimum(ends[:, :2], ends[:, 2:]), torch.maximum(ends[:, :2], ends[:, 2:])
    return torch.cat([torch.randint(images, (count, 1)).float(), low, high], 1)


@pytest.fixture(scope="module")
def pools():
    torch.manual_seed(0)
    module = Pools().eval()
    arguments = torch.randn(2, 3, 9, 12), boxes_of(7)
    plan = taper_frontend.export(module, arguments, dynamic_shapes={"x": {}, "boxes": {0: "n"}})
    assert [node.op for node in plan.nodes].count("ROI_ALIGN") == len(POOLS)
    assert not plan.metadata["fallbacks"]
    return module, taper_runtime.InferenceSession(plan)


@torch.no_grad()
@pytest.mark.parametrize("count", [1, 0, 13])
def test_roi_align(pools, count):
    module, session = pools
    x, boxes = torch.randn(2, 3, 9, 12), boxes_of(count)
    results = session.run(None, {"x": x.numpy(), "boxes": boxes.numpy()})
    for got, want in zip(results, module(x, boxes), strict=True):
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, 2, "expected boxes of images 0 to 1, got images 0 to 2"),
        (0, float("nan"), "expected boxes of images 0 to 1"),
        (2, float("inf"), "expected boxes of finite numbers"),
        (3, 1e9, "bins have at most 65536 points along an axis"),
    ],
)
def test_no_such_box(pools, place, value, message):
    _, session = pools
    boxes = torch.zeros(3, 5)
    boxes[1, place] = value
    with pytest.raises(InputError, match=message):
        session.run(None, {"x": np.zeros((2, 3, 9, 12), np.float32), "boxes": boxes.numpy()})
