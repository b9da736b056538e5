"""torchvision's ops, or, where torchvision is not there, ops of the same schemas."""

import math

import numpy as np
import torch


def suppress(boxes, scores, iou_threshold):
    """Suppress box by box, in the boxes' dtype."""
    order = scores.sort(stable=True, descending=True).indices.tolist()
    x1, y1, x2, y2 = boxes.numpy().T
    areas = (x2 - x1) * (y2 - y1)
    kept = []
    with np.errstate(all="ignore"):
        for i in order:
            for k in kept:
                width = max(min(x2[i], x2[k]) - max(x1[i], x1[k]), 0)
                height = max(min(y2[i], y2[k]) - max(y1[i], y1[k]), 0)
                shared = np.multiply(width, height, dtype=areas.dtype)
                if shared / (areas[i] + areas[k] - shared) > iou_threshold:
                    break
            else:
                kept.append(i)
    return torch.tensor(kept, dtype=torch.int64)


def pixel(image, y, x):
    """The value between four pixels [C]; 0 more than a pixel outside of the outermost centres."""
    _, height, width = image.shape
    if not (-1 <= y <= height and -1 <= x <= width):
        return np.zeros(len(image))
    y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
    top, left = int(y), int(x)
    below, right = min(top + 1, height - 1), min(left + 1, width - 1)
    upper = image[:, top, left] * (left + 1 - x) + image[:, top, right] * (x - left)
    lower = image[:, below, left] * (left + 1 - x) + image[:, below, right] * (x - left)
    return upper * (top + 1 - y) + lower * (y - top)


def average(x, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned):
    """RoIAlign (He et al. 2017) point by point, in float64."""
    images, result = x.double().numpy(), []
    for image, *ends in rois.double().tolist():
        x1, y1, x2, y2 = (end * spatial_scale - (0.5 if aligned else 0) for end in ends)
        least = -math.inf if aligned else 1
        height = max(y2 - y1, least) / pooled_height
        width = max(x2 - x1, least) / pooled_width
        rows = sampling_ratio if sampling_ratio > 0 else math.ceil(height)
        columns = sampling_ratio if sampling_ratio > 0 else math.ceil(width)
        result.append(
            [
                [
                    sum(
                        pixel(
                            images[int(image)],
                            y1 + (i + (r + 0.5) / rows) * height,
                            x1 + (j + (c + 0.5) / columns) * width,
                        )
                        for r in range(rows)
                        for c in range(columns)
                    )
                    / max(rows * columns, 1)
                    + np.zeros(x.shape[1])
                    for j in range(pooled_width)
                ]
                for i in range(pooled_height)
            ]
        )
    shape = (len(result), pooled_height, pooled_width, x.shape[1])
    return torch.tensor(np.array(result).reshape(shape), dtype=x.dtype).permute(0, 3, 1, 2)


_library = torch.library.Library("torchvision", "FRAGMENT")


def _register(schema, function, fake):
    name = schema.partition("(")[0]
    if not hasattr(torch.ops.torchvision, name):
        _library.define(schema)
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"torchvision::{name}", "CPU"):
        _library.impl(name, function, "CPU")
        torch.library.register_fake(f"torchvision::{name}", fake, lib=_library)


def _fake_nms(dets, scores, iou_threshold):
    count = torch.library.get_ctx().create_unbacked_symint()  # as torchvision does
    return dets.new_empty(count, dtype=torch.int64)


def _fake_align(x, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned):
    return x.new_empty((rois.shape[0], x.shape[1], pooled_height, pooled_width))


_register("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor", suppress, _fake_nms)
_register(
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, "
    "SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor",
    average,
    _fake_align,
)
nms = torch.ops.torchvision.nms
roi_align = torch.ops.torchvision.roi_align
