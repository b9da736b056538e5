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


def between(image, y, x):
    """The value between four pixels [C], where pixels outside of the image are 0."""
    value, (_, height, width) = np.zeros(len(image)), image.shape
    for row in (math.floor(y), math.floor(y) + 1):
        for column in (math.floor(x), math.floor(x) + 1):
            if 0 <= row < height and 0 <= column < width:
                value += image[:, row, column] * (1 - abs(y - row)) * (1 - abs(x - column))
    return value


def deform(x, weight, offset, mask, bias, *numbers):
    """Deformable convolution (Dai et al. 2017; Zhu et al. 2019) tap by tap, in float64."""
    stride, padding, dilation = numbers[:2], numbers[2:4], numbers[4:6]
    groups, offset_groups, use_mask = numbers[6:]
    images, channels, *_ = x.shape
    columns, per_group, *kernel = weight.shape
    height, width = offset.shape[2:]
    x, weight = x.double().numpy(), weight.double().numpy()
    offset = offset.double().numpy().reshape(images, offset_groups, *kernel, 2, height, width)
    weights = np.ones((images, offset_groups, *kernel, height, width))
    if use_mask:
        weights = mask.double().numpy().reshape(weights.shape)
    moving = np.arange(channels).reshape(offset_groups, -1)
    taps = np.zeros((images, channels, *kernel, height, width))
    for n, g, i, j, r, c in np.ndindex(images, offset_groups, *kernel, height, width):
        dy, dx = offset[n, g, i, j, :, r, c]
        at_y = r * stride[0] - padding[0] + i * dilation[0] + dy
        at_x = c * stride[1] - padding[1] + j * dilation[1] + dx
        value = between(x[n, moving[g]], at_y, at_x)
        taps[n, moving[g], i, j, r, c] = value * weights[n, g, i, j, r, c]
    y = np.einsum(
        "ngcijrw,gocij->ngorw",
        taps.reshape(images, groups, per_group, *taps.shape[2:]),
        weight.reshape(groups, -1, per_group, *kernel),
    )
    return (
        torch.from_numpy(y.reshape(images, columns, height, width)).to(bias) + bias[:, None, None]
    )


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


def _fake_deform(x, weight, offset, mask, bias, *numbers):
    return x.new_empty((x.shape[0], weight.shape[0], *offset.shape[2:]))


_register("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor", suppress, _fake_nms)
_register(
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, "
    "SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor",
    average,
    _fake_align,
)
_register(
    "deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, "
    "SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, "
    "SymInt dilation_w, SymInt groups, SymInt offset_groups, bool use_mask) -> Tensor",
    deform,
    _fake_deform,
)
nms = torch.ops.torchvision.nms
roi_align = torch.ops.torchvision.roi_align
deform_conv2d = torch.ops.torchvision.deform_conv2d
