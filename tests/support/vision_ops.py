"""torchvision's op nms, or, where torchvision is not there, one of the same schema."""

import numpy as np
import torch


def reference(boxes, scores, iou_threshold):
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


_NAME = "torchvision::nms"
_library = torch.library.Library("torchvision", "FRAGMENT")
if not hasattr(torch.ops.torchvision, "nms"):
    _library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
if not torch._C._dispatch_has_kernel_for_dispatch_key(_NAME, "CPU"):
    _library.impl("nms", reference, "CPU")

    @torch.library.register_fake(_NAME, lib=_library)
    def _(dets, scores, iou_threshold):
        count = torch.library.get_ctx().new_dynamic_size()
        return dets.new_empty(count, dtype=torch.int64)


nms = torch.ops.torchvision.nms
