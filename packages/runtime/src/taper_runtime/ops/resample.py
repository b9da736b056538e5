"""Define RESAMPLE: resize one dim by interpolation, as torch does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.base.sizes import largest
from taper_runtime.ops.opdef import Attr, Attrs, Cost, OpDef, TensorType
from taper_runtime.ops.region import along
from taper_runtime.ops.rules import COMPUTED, FLOATS, check_axis, check_dtype, fail, replace

if TYPE_CHECKING:
    from collections.abc import Sequence

NEAREST = ("nearest", "nearest-exact")
#: For each mode, the number of elements on either side of a position that are used.
_REACH = {"linear": 1, "cubic": 2, "linear-antialias": 1, "cubic-antialias": 2}
MODES = (*NEAREST, *_REACH)
#: The largest explicit scale, and the largest reciprocal of one.
_MAX_SCALE = 2.0**20


def _infer(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    (x,) = inputs
    mode, size, scale = attrs["mode"], attrs["size"], attrs["scale"]
    if mode not in MODES:
        fail("RESAMPLE", f"a mode of {', '.join(MODES)}", repr(mode))
    check_dtype("RESAMPLE", "x", x.dtype, COMPUTED if mode in NEAREST else FLOATS)
    axis = check_axis("RESAMPLE", attrs["axis"], len(x.shape))
    if x.shape[axis] < 1 or size < 1:
        fail("RESAMPLE", "sizes of at least 1", [x.shape[axis], size])
    if scale != 0 and not 1 / _MAX_SCALE <= scale <= _MAX_SCALE:
        fail("RESAMPLE", f"a scale of 0 or from {1 / _MAX_SCALE} to {_MAX_SCALE}", scale)
    if attrs["align_corners"] and mode in NEAREST:
        fail("RESAMPLE", "no align_corners with a nearest mode", True)
    return TensorType(x.dtype, replace(x.shape, axis, size))


def _linear(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(x), x.dtype.type(0))


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    """Return the weights of cubic convolution (Keys 1981) with parameter ``a``."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, x.dtype.type(0)))


def _step(old: int, attrs: Attrs, real: Any) -> Any:
    """Return the distance in x between output elements, in torch's precision."""
    new = attrs["size"]
    if attrs["align_corners"]:
        return real(old - 1) / real(new - 1) if new > 1 else real(0)
    return real(1 / attrs["scale"]) if attrs["scale"] else real(old) / real(new)


def taps(old: int, attrs: Attrs, real: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return which elements of x each output element uses, and their weights, ``[size, taps]``.

    If an output element has fewer taps than others, the rest have index -1.

    Parameters
    ----------
    old : int
        Size of x along the axis.
    attrs : mapping
        The attrs of the op.
    real : type
        ``numpy.float32`` or ``numpy.float64``: the type in which positions are computed.
    """
    mode, new = attrs["mode"], attrs["size"]
    step = _step(old, attrs, real)
    outputs = np.arange(new).astype(real)
    if mode in NEAREST:
        at = np.floor((outputs + real(0.5 if mode == "nearest-exact" else 0)) * step)
        index = np.minimum(at.astype(np.int64), old - 1)[:, None]
        return index, np.ones(index.shape, real)
    reach = _REACH[mode]
    if mode.endswith("antialias"):
        stretch = np.maximum(step, real(1))
        centre = step * (outputs + real(0.5))
        first = np.maximum((centre - reach * stretch + real(0.5)).astype(np.int64), 0)
        last = np.minimum((centre + reach * stretch + real(0.5)).astype(np.int64), old)
        index = first[:, None] + np.arange(max(1, int((last - first).max())))
        distance = (index.astype(real) - centre[:, None] + real(0.5)) / stretch
        weight = _linear(distance) if mode.startswith("linear") else _cubic(distance, -0.5)
        used = index < last[:, None]
        weight = np.where(used, weight, real(0))
        total = weight.sum(1, keepdims=True)  # 0 if an explicit scale leads past the end
        return np.where(used, index, -1), weight / np.where(total == 0, real(1), total)
    half = real(0 if attrs["align_corners"] else 0.5)
    at = (outputs + half) * step - half
    if mode == "linear":
        at = np.maximum(at, real(0))
    base = np.minimum(np.floor(at).astype(np.int64), old - 1)
    rest = np.clip(at - base.astype(real), real(0), real(1))
    offsets = np.arange(1 - reach, reach + 1)
    distance = rest[:, None] - offsets.astype(real)
    weight = _linear(distance) if mode == "linear" else _cubic(distance, -0.75)
    return np.clip(base[:, None] + offsets, 0, old - 1), weight


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    """Sum the weighted taps of each output element along the axis."""
    (x,) = inputs
    axis = attrs["axis"]
    nearest = attrs["mode"] in NEAREST
    real = np.float64 if x.dtype == np.float64 and not nearest else np.float32
    index, weight = taps(x.shape[axis], attrs, real)
    if nearest:
        return np.asarray(np.take(x, index[:, 0], axis), order="C")
    along = (-1,) + (1,) * (x.ndim - axis - 1)
    result = np.zeros((), np.float64)
    with np.errstate(all="ignore"):
        for tap in range(index.shape[1]):
            part = np.take(x, index[:, tap], axis).astype(np.float64)
            part *= weight[:, tap].reshape(along)
            result = result + np.where(index[:, tap].reshape(along) >= 0, part, 0)
        return np.asarray(result, x.dtype, order="C")


def _cost(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    if attrs["mode"] in NEAREST:
        return Cost(0, 2 * output.nbytes)
    flops = 2 * output.size * 2 * _REACH[attrs["mode"]]
    if attrs["mode"].endswith("antialias"):
        old, new = inputs[0].shape[attrs["axis"]], output.shape[attrs["axis"]]
        flops *= largest(1, (old + new - 1) // new)
    return Cost(flops, inputs[0].nbytes + output.nbytes)


RESAMPLE = OpDef(
    name="RESAMPLE",
    doc="x with `size` elements along an axis, interpolated as in torch. A step in the output is 1 "
    "/ scale in x, or the ratio of the sizes if scale is 0; with align_corners the first and "
    "last elements keep their places. The antialias modes widen their window where the output "
    "is smaller.",
    inputs=(1, 1),
    infer=_infer,
    evaluate=_evaluate,
    attrs={
        "axis": Attr("int", role="axis"),
        "size": Attr("int", sized=True),
        "mode": Attr("string"),
        "align_corners": Attr("bool", False),
        "scale": Attr("float", 0.0),
    },
    region=along("axis"),
    cost=_cost,
)

OPS = (RESAMPLE,)
