"""Let torch capture code that asks tensors for Python's numbers, as torchvision's detectors do.

``len(x)`` of a tensor is a Python number, so torch fixes the size, or refuses one that values
decide. torchvision's ``batched_nms`` takes one of two ways by the number of boxes, its ``decode``
another for no boxes, and ``paste_masks_in_image`` resizes each mask to a size of its own. During
a capture, functions with the same results that ask for no numbers stand in their places. The export
compares the plan with the module as it is.

torchvision tells torch that ``nms`` keeps two boxes or more, by the default of a function that
torch has deprecated. It may keep none.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch._library.fake_impl import FakeImplCtx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from torch import Tensor


@contextmanager
def without_numbers(model: torch.nn.Module) -> Iterator[None]:
    """Replace ``len`` in the files of a module's parts, and those functions of torchvision."""
    files = {sys.modules.get(type(part).__module__) for part in model.modules()}
    names = [name for name in sys.modules if name.startswith("torchvision.")]
    known = [file for file in {*files, *map(sys.modules.get, names)} if file is not None]
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(FakeImplCtx, "create_unbacked_symint", _any_size))
        detection = sys.modules.get("torchvision.models.detection._utils")
        if detection is not None:
            stack.enter_context(mock.patch.object(vars(detection)["BoxCoder"], "decode", _decode))
        for file in known:
            changed = {
                name: _STAND_INS[where, value.__name__]
                for name, value in vars(file).items()
                if (where := getattr(value, "__module__", None)) in _FILES
                and (where, getattr(value, "__name__", None)) in _STAND_INS
            }
            if file in files and not _is_torch(file) and "len" not in vars(file):
                changed["len"] = _length
            stack.enter_context(mock.patch.dict(vars(file), changed))
        yield


def _is_torch(file: ModuleType) -> bool:
    return file.__name__.partition(".")[0] == "torch"


def _any_size(self: FakeImplCtx, *, min: int = 0, max: int | None = None) -> torch.SymInt:
    return self.new_dynamic_size(min=min, max=max)


def _length(x: Any) -> int:
    """Return the rows of a tensor as the size that torch traces; ``len`` of anything else."""
    return x.shape[0] if isinstance(x, torch.Tensor) and x.ndim else len(x)


def _decode(self: Any, rel_codes: Tensor, boxes: list[Tensor]) -> Tensor:
    """Move boxes ``[N, 4]`` by codes ``[N, 4 classes]``; also none: ``[N, classes, 4]``."""
    moved: Tensor = self.decode_single(rel_codes.flatten(1), torch.cat(boxes))
    return moved.reshape(moved.shape[0], moved.shape[1] // 4, 4)


def _batched_nms(boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor:
    """Suppress boxes ``[N, 4]`` of each class: those of each are moved to where no others are.

    torchvision does so for up to 1000 boxes. For more it takes class by class: shares differ by
    rounding errors of the coordinates.
    """
    least = boxes.new_full((1,), -torch.inf)  # of no boxes there is no largest coordinate
    offsets = idxs.to(boxes) * (torch.cat([boxes.flatten(), least]).max() + 1)
    moved = boxes + offsets[:, None]
    kept: Tensor = torch.ops.torchvision.nms(moved, scores, iou_threshold)
    return kept


def _paste_masks(
    masks: Tensor, boxes: Tensor, img_shape: tuple[int, int], padding: int = 1
) -> Tensor:
    """Resize masks ``[K, 1, M, M]`` to their boxes ``[K, 4]`` in an image: ``[K, 1, *img_shape]``.

    A mask gets a border of ``padding`` zeros, and its box is enlarged as much, to whole pixels.
    Bilinear resizing is a product with the weights of rows and one with those of columns, which are
    0 outside of the box.
    """
    size = masks.shape[-1] + 2 * padding
    scale = size / masks.shape[-1]
    masks = torch.nn.functional.pad(masks, (padding,) * 4)
    middle, half = (boxes[:, 2:] + boxes[:, :2]) * 0.5, (boxes[:, 2:] - boxes[:, :2]) * 0.5 * scale
    low, high = (middle - half).to(torch.int64), (middle + half).to(torch.int64)
    weights = [
        _resizing(low[:, axis], high[:, axis], size, img_shape[1 - axis]).to(masks.dtype)
        for axis in (1, 0)
    ]
    return weights[0][:, None] @ masks @ weights[1][:, None].transpose(2, 3)


def _resizing(low: Tensor, high: Tensor, size: int, length: int) -> Tensor:
    """Return the weights ``[K, length, size]`` of ``size`` elements that fill ``[low, high]``."""
    count = (high - low + 1).clamp(min=1)[:, None]
    place = torch.arange(length, device=low.device) - low[:, None]
    at = ((place + 0.5) * (size / count) - 0.5).clamp(min=0, max=size - 1)
    weights = (1 - (at[..., None] - torch.arange(size, device=low.device)).abs()).clamp(min=0)
    return weights * ((place >= 0) & (place < count))[..., None]


#: Where a function of torchvision is defined, and its name -> what stands in for it.
_STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {
    ("torchvision.ops.boxes", "batched_nms"): _batched_nms,
    ("torchvision.models.detection.roi_heads", "paste_masks_in_image"): _paste_masks,
}
_FILES = frozenset(file for file, _ in _STAND_INS)
