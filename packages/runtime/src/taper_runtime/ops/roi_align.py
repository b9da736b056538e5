"""Define ROI_ALIGN: average what an image has in the bins of boxes, as torchvision does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.base.errors import InputError
from taper_runtime.ops.opdef import Attr, Attrs, Cost, OpDef, TensorType
from taper_runtime.ops.region import WHOLE, Same
from taper_runtime.ops.type_rules import FLOATS, check_dtype, fail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_runtime.ops.region import Region

#: The most bins of a box, and the most points of a bin, along an axis.
_MOST_BINS, _MOST_SAMPLES = 2**15, 2**16
#: Pixels that a bin reads, as a typical box has bins of one or two pixels.
_TAPS = 9


def _infer(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    """Check the image, the boxes and the attrs; return the type of the bins' means."""
    x, boxes = inputs
    size, samples = attrs["size"], attrs["samples"]
    check_dtype("ROI_ALIGN", "x", x.dtype, FLOATS)
    if boxes.dtype != x.dtype:
        fail("ROI_ALIGN", f"boxes of {x.dtype}", boxes.dtype)
    if len(x.shape) != 4 or any(length < 1 for length in x.shape[1:3]):
        fail("ROI_ALIGN", "images [N, H, W, C] with pixels", list(x.shape))
    if len(boxes.shape) != 2 or boxes.shape[1] != 5:
        fail("ROI_ALIGN", "boxes [K, 5]", list(boxes.shape))
    if len(size) != 2 or not all(1 <= count <= _MOST_BINS for count in size):
        fail("ROI_ALIGN", f"a size of two numbers of 1 to {_MOST_BINS}", list(size))
    if not 0 <= samples <= _MOST_SAMPLES:
        fail("ROI_ALIGN", f"samples of 0 to {_MOST_SAMPLES}", samples)
    return TensorType(x.dtype, (boxes.shape[0], *size, x.shape[3]))


def _sides(boxes: np.ndarray, attrs: Attrs) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, for each box along y and x, its start, the length of a bin, and a bin's points."""
    real: Any = boxes.dtype.type
    ends = boxes[:, [[2, 1], [4, 3]]] * real(attrs["scale"]) - real(0.5 if attrs["aligned"] else 0)
    length = ends[:, 1] - ends[:, 0]
    if not attrs["aligned"]:
        length = np.where((length < 1) & np.isfinite(length), real(1), length)
    bins = length / np.array(attrs["size"], boxes.dtype)
    samples = np.full_like(bins, attrs["samples"]) if attrs["samples"] else np.ceil(bins)
    return ends[:, 0], bins, samples


def _check(inputs: Sequence[np.ndarray], attrs: Attrs) -> None:
    """Refuse boxes of no image, and those without bins of a number of points."""
    x, boxes = inputs
    if not (boxes.size and x.shape[3]):  # none is read
        return
    image = boxes[:, 0]
    if not ((image > -1) & (np.trunc(image) < x.shape[0])).all():
        raise InputError(
            f"ROI_ALIGN: expected boxes of images 0 to {x.shape[0] - 1}, "
            f"got images {image.min():g} to {image.max():g}"
        )
    with np.errstate(all="ignore"):
        start, bins, samples = _sides(boxes, attrs)
        good = np.isfinite(start) & np.isfinite(bins) & (np.abs(samples) <= _MOST_SAMPLES)
    if not good.all():
        bad = boxes[~good.all(1)][0, 1:]
        raise InputError(
            f"ROI_ALIGN: expected boxes of finite numbers whose bins have at most {_MOST_SAMPLES} "
            f"points along an axis, got {', '.join(f'{value:g}' for value in bad)}"
        )


def _taps(points: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the elements of an axis that points read, and the sum of the weights of each.

    A point more than 1 outside reads none. One that is less outside is moved to the end.
    """
    at = np.maximum(points[(points >= -1) & (points <= size)], points.dtype.type(0))
    low = np.minimum(at.astype(np.int64), size - 1)
    inner = low < size - 1
    rest = np.where(inner, at - low.astype(at.dtype), at.dtype.type(0))
    weights, is_read = np.zeros(size, at.dtype), np.zeros(size, bool)
    np.add.at(weights, low, 1 - rest)
    np.add.at(weights, low[inner] + 1, rest[inner])
    is_read[low] = is_read[low[inner] + 1] = True
    places = np.flatnonzero(is_read)
    return places, weights[places]


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    """Sum the pixels of each bin, in float64."""
    x, boxes = inputs
    _check(inputs, attrs)
    real: Any = x.dtype.type
    y = np.zeros((len(boxes), *attrs["size"], x.shape[3]))
    if not y.size:
        return y.astype(x.dtype)
    with np.errstate(all="ignore"):
        for k, (start, bins, samples) in enumerate(zip(*_sides(boxes, attrs), strict=True)):
            points = np.arange(max(samples[0], 0)), np.arange(max(samples[1], 0))
            axes = [
                [
                    _taps(
                        start[d] + real(b) * bins[d]
                        + (points[d].astype(x.dtype) + real(0.5)) * bins[d] / samples[d],
                        x.shape[d + 1],
                    )
                    for b in range(count)
                ]
                for d, count in enumerate(attrs["size"])
            ]  # fmt: skip
            image = x[int(boxes[k, 0])]
            for i, (rows, down) in enumerate(axes[0]):
                for j, (columns, across) in enumerate(axes[1]):
                    pixels = image[np.ix_(rows, columns)].astype(np.float64)
                    weights = np.multiply.outer(down, across)[..., None]
                    y[k, i, j] = (pixels * weights).sum((0, 1))
            y[k] /= max(samples[0] * samples[1], 1)
        return y.astype(x.dtype)


def _region(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> list[Region]:
    return [(WHOLE, WHOLE, WHOLE, Same(3)), (Same(0), WHOLE)]


def _cost(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    x, boxes = inputs
    return Cost(2 * _TAPS * output.size, x.nbytes + boxes.nbytes + output.nbytes)


ROI_ALIGN = OpDef(
    name="ROI_ALIGN",
    doc="Means of x `[N, H, W, C]` over the bins of boxes `[K, 5]`: `[K, *size, C]` (He et al. "
    "2017, Mask R-CNN). A box is the number of its image, which is truncated, and x1, y1, x2, y2, "
    "times `scale` pixels, less half a pixel if `aligned`; otherwise it is at least one pixel "
    "long. A bin's mean is over a grid of points, `samples` along each axis or, if that is 0, the "
    "bin's length in pixels, rounded up. A point is interpolated between 2 rows and 2 columns, and "
    "0 if it is more than a pixel outside of the centres of the outermost pixels.",
    inputs=(2, 2),
    infer=_infer,
    evaluate=_evaluate,
    check=_check,
    attrs={
        "scale": Attr("float"),
        "size": Attr("ints"),
        "samples": Attr("int", 0),
        "aligned": Attr("bool", False),
    },
    region=_region,
    cost=_cost,
)

OPS = (ROI_ALIGN,)
