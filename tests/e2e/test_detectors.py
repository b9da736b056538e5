"""Detectors of torchvision's kind: their ops, and what their code asks tensors for."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

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


class Deformable(nn.Module):
    """A deformable convolution whose offsets and masks convolutions compute, as in DCNv2."""

    def __init__(self, channels, columns, kernel, stride, padding, dilation, groups, moving, mask):
        super().__init__()
        taps = kernel[0] * kernel[1]
        self.offset = nn.Conv2d(channels, 2 * moving * taps, kernel, stride, padding, dilation)
        self.mask = nn.Conv2d(channels, moving * taps, kernel, stride, padding, dilation)
        self.conv = nn.Conv2d(channels, columns, kernel, groups=groups)
        self.numbers = (*stride, *padding, *dilation, groups, moving, mask)

    def forward(self, x):
        return vision_ops.deform_conv2d(
            x,
            self.conv.weight,
            4 * self.offset(x),  # some taps leave the image
            self.mask(x).sigmoid(),
            self.conv.bias,
            *self.numbers,
        )


@torch.no_grad()
@pytest.mark.parametrize(
    "numbers",
    [
        (8, 6, (3, 3), (1, 1), (1, 1), (1, 1), 1, 1, True),
        (8, 6, (3, 2), (2, 1), (1, 0), (2, 1), 2, 1, False),
        (12, 12, (1, 3), (1, 2), (0, 1), (1, 1), 3, 2, True),
    ],
)
def test_deformable_convolution(numbers):
    torch.manual_seed(0)
    module = Deformable(*numbers).eval()
    dims = {0: torch.export.Dim("n", min=1), 2: torch.export.Dim("h", min=6)}
    plan = taper_frontend.export(
        module, (torch.randn(2, numbers[0], 9, 7),), dynamic_shapes=(dims,)
    )
    assert not plan.metadata["fallbacks"]
    session = taper_runtime.InferenceSession(plan)
    for size in ((2, numbers[0], 9, 7), (1, numbers[0], 6, 7)):
        x = torch.randn(size)
        (got,) = session.run(None, {"x": x.numpy()})
        np.testing.assert_allclose(got, module(x).numpy(), rtol=1e-4, atol=1e-5)


# -- code that asks tensors for numbers ------------------------------------------------------------


def batched_nms(boxes, scores, idxs, iou_threshold):
    """Suppress class by class where there are many boxes, else moved apart, as torchvision does."""
    if boxes.numel() > 160:
        kept = torch.zeros_like(scores, dtype=torch.bool)
        for number in idxs.unique():
            (own,) = torch.where(idxs == number)
            kept[own[vision_ops.nms(boxes[own], scores[own], iou_threshold)]] = True
        (found,) = torch.where(kept)
        return found[scores[found].argsort(descending=True)]
    if boxes.numel() == 0:
        return idxs
    far = boxes.max() + 1
    return vision_ops.nms(boxes + (idxs.to(boxes) * far)[:, None], scores, iou_threshold)


def paste_masks_in_image(masks, boxes, img_shape, padding=1):
    """Resize mask by mask to its box, as torchvision does, which some of the boxes stand out of."""
    images = torch.zeros(len(masks), 1, *img_shape)
    padded = F.pad(masks, (padding,) * 4)
    half = (boxes[:, 2:] - boxes[:, :2]) / 2 * (padded.shape[-1] / masks.shape[-1])
    middle = (boxes[:, 2:] + boxes[:, :2]) / 2
    ends = torch.cat([middle - half, middle + half], 1).long()
    for image, mask, (x1, y1, x2, y2) in zip(images, padded, ends.tolist(), strict=True):
        size = max(y2 - y1 + 1, 1), max(x2 - x1 + 1, 1)
        resized = F.interpolate(mask[None], size, mode="bilinear", align_corners=False)[0, 0]
        top, left = max(y1, 0), max(x1, 0)
        part = resized[top - y1 : img_shape[0] - y1, left - x1 : img_shape[1] - x1]
        image[0, top : top + part.shape[0], left : left + part.shape[1]] = part
    return images


@pytest.fixture
def torchvision(monkeypatch):
    """Files of torchvision with these functions."""
    for path, function in [
        ("torchvision.ops.boxes", batched_nms),
        ("torchvision.models.detection.roi_heads", paste_masks_in_image),
    ]:
        file = ModuleType(path)
        monkeypatch.setattr(function, "__module__", path)
        setattr(file, function.__name__, function)
        monkeypatch.setitem(sys.modules, path, file)


class TwoStages(nn.Module):
    """A detector: boxes of all pixels, of these the best, and a mask in each."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 8, 3, 2, 1)
        self.boxes = nn.Conv2d(8, 6, 1)
        self.mask = nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, images):
        features = self.body(images[0][None]).relu()
        found = self.boxes(features)[0].flatten(1).T
        (likely,) = torch.where(found[:, 4] > 0.1)
        found = found[likely]
        ends = torch.cat([found[:, :2], found[:, :2] + 0.3 + found[:, 2:4].abs()], 1) * 20
        classes = (found[:, 5] > 0).long()
        kept = sys.modules["torchvision.ops.boxes"].batched_nms(ends, found[:, 4], classes, 0.3)
        ends = ends[kept[:6]]
        boxes = torch.cat([torch.zeros(len(ends), 1), ends], 1)
        mask = self.mask(vision_ops.roi_align(features, boxes, 0.5, 7, 7, 2, False)).sigmoid()
        paste = sys.modules["torchvision.models.detection.roi_heads"].paste_masks_in_image
        return [{"boxes": ends, "masks": paste(mask, ends, images[0].shape[1:])}]


@torch.no_grad()
def test_a_detector_as_it_is(torchvision):
    torch.manual_seed(2)
    module = TwoStages().eval()
    plan = taper_frontend.export(module, ([torch.randn(3, 24, 20)],))
    session = taper_runtime.InferenceSession(plan)
    counts = set()
    for scale in (1, 2, 0.3, 0):
        image = torch.randn(3, 24, 20) * scale
        (want,) = module([image])
        counts.add(len(want["boxes"]))
        for got, name in zip(session.run(None, {"images.0": image.numpy()}), want, strict=True):
            np.testing.assert_allclose(got, want[name].numpy(), rtol=1e-4, atol=1e-4)
    assert len(counts) > 1
    original = sys.modules["torchvision.ops.boxes"].batched_nms
    assert (original, "len" in globals()) == (batched_nms, False)


class Rows(nn.Module):
    def forward(self, x):
        return x.sum(0) / len(x), len([x, x]) * len(x[x > 0])


def test_len_is_a_size():
    x = torch.tensor([[1.0, -2], [3, 4]])
    plan = taper_frontend.export(Rows(), (x,), dynamic_shapes={"x": {0: "n"}})
    session = taper_runtime.InferenceSession(plan)
    for count in (1, 5):
        x = torch.randn(count, 2)
        mean, positive = session.run(None, {"x": x.numpy()})
        np.testing.assert_allclose(mean, x.mean(0).numpy(), rtol=1e-5, atol=1e-6)
        assert positive == 2 * (x > 0).sum()
