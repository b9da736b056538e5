"""Define RESAMPLE: resize one or two dims by interpolation, as torch does."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from taper_runtime.base.records import NamedTuple
from taper_runtime.base.sizes import largest
from taper_runtime.ops.opdef import Attr, Attrs, Cost, OpDef, TensorType
from taper_runtime.ops.region import WHOLE, Range, Region, Relation, Same, Window
from taper_runtime.ops.type_rules import COMPUTED, FLOATS, check_axes, check_dtype, fail, replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_runtime.ops.opdef import Shape

NEAREST = ("nearest", "nearest-exact")
#: For each mode, the number of elements on either side of a position that are used.
_REACH = {"linear": 1, "cubic": 2, "linear-antialias": 1, "cubic-antialias": 2}
MODES = (*NEAREST, *_REACH)
#: The largest explicit scale, and the largest reciprocal of one.
_MAX_SCALE = 2.0**20
#: The most bits that weights of bytes are shifted by.
_MOST_SHIFT = 22
#: The most taps of all output elements along one axis: some 600 MB while they are computed. Only an
#: explicit scale that is far from the ratio of the sizes needs more than a few per element.
_MAX_TAPS = 1 << 25


def _infer(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    """Check sizes, scales and mode; return x's type with the new sizes."""
    (x,) = inputs
    mode, sizes, scales = attrs["mode"], attrs["sizes"], attrs["scales"]
    if mode not in MODES:
        fail("RESAMPLE", f"a mode of {', '.join(MODES)}", repr(mode))
    check_dtype("RESAMPLE", "x", x.dtype, COMPUTED if mode in NEAREST else (*FLOATS, "uint8"))
    axes = check_axes("RESAMPLE", attrs["axes"], len(x.shape))
    if not len(axes) == len(sizes) == len(scales) or len(axes) not in (1, 2):
        got = [list(axes), list(sizes), list(scales)]
        fail("RESAMPLE", "one or two axes, and a size and a scale for each", got)
    shape = x.shape
    for axis, size, scale in zip(axes, sizes, scales, strict=True):
        if x.shape[axis] < 1 or size < 1:
            fail("RESAMPLE", "sizes of at least 1", [x.shape[axis], size])
        if scale != 0 and not 1 / _MAX_SCALE <= scale <= _MAX_SCALE:
            fail("RESAMPLE", f"a scale of 0 or from {1 / _MAX_SCALE} to {_MAX_SCALE}", scale)
        shape = replace(shape, axis, size)
    if attrs["align_corners"] and mode in NEAREST:
        fail("RESAMPLE", "no align_corners with a nearest mode", True)
    if attrs["part"]:
        shape = _infer_part(x, attrs, shape)
    return TensorType(x.dtype, shape)


def _infer_part(x: TensorType, attrs: Attrs, shape: Shape) -> Shape:
    """Check a part of an output of this shape; return the part's shape."""
    axes, part = attrs["axes"], attrs["part"]
    if len(part) != 3 * len(axes):
        fail("RESAMPLE", "three numbers for each axis of a part", list(part))
    for index, axis in enumerate(axes):
        old, first, stop = part[3 * index : 3 * index + 3]
        if old < 1 or not 0 <= first < stop <= shape[axis]:
            fail("RESAMPLE", f"a part of an axis of {shape[axis]} elements", [old, first, stop])
    for axis, of in zip(axes, axes_of(x.shape, attrs), strict=True):
        low, high = 0, of.old
        if of.part != (0, of.new):
            runs = runs_of(of, attrs["mode"], attrs["align_corners"], _real(x.dtype, attrs["mode"]))
            if not runs:
                fail("RESAMPLE", "a part whose elements all have taps", list(part))
            low, high = _reach_of(runs, of.part)
        if x.shape[axis] != high - low:
            fail("RESAMPLE", f"the {high - low} elements that a part needs", x.shape[axis])
        shape = replace(shape, axis, of.part[1] - of.part[0])
    return shape


def _linear(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(x), x.dtype.type(0))


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    """Return the weights of cubic convolution (Keys 1981) with parameter ``a``."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, x.dtype.type(0)))


class ResampledAxis(NamedTuple):
    """One axis that is resampled.

    Attributes
    ----------
    old, new : int
        The sizes of the whole axis before and after.
    scale : float
        0 for the ratio of the sizes.
    part : tuple of int
        The elements of the output that are computed: the first, and one past the last.
    """

    old: int
    new: int
    scale: float
    part: Range


def axes_of(shape: Sequence[int], attrs: Attrs) -> list[ResampledAxis]:
    """Return how each of ``attrs["axes"]`` of a tensor of this shape is resampled."""
    found = []
    each = zip(attrs["axes"], attrs["sizes"], attrs["scales"], strict=True)
    for index, (axis, size, scale) in enumerate(each):
        given = attrs["part"][3 * index : 3 * index + 3] or (shape[axis], 0, size)
        found.append(ResampledAxis(given[0], size, float(scale), tuple(given[1:])))
    return found


def _real(dtype: str, mode: str) -> Any:
    """Return the type in which positions are computed."""
    return np.float64 if dtype in ("float64", "uint8") and mode not in NEAREST else np.float32


@lru_cache(maxsize=64)
def runs_of(axis: ResampledAxis, mode: str, align_corners: bool, real: Any) -> tuple[Range, ...]:
    """Return which run of elements each element of the whole output axis uses.

    Empty if one uses none, or if there are more than :data:`_MAX_TAPS` taps.
    """
    if _count_taps(axis, mode, align_corners) > _MAX_TAPS:
        return ()
    index, _ = _all_taps(axis, mode, align_corners, real)
    if (index[:, 0] < 0).any():
        return ()
    lows = np.where(index < 0, axis.old, index).min(1)
    return tuple(zip(lows.tolist(), (index.max(1) + 1).tolist(), strict=True))


def _reach_of(runs: Sequence[Range], part: Range) -> Range:
    return Window(0, runs=tuple(runs)).needs(part)


def _step(axis: ResampledAxis, align_corners: bool, real: Any) -> Any:
    """Return the distance in x between output elements, in torch's precision."""
    old, new, scale, _ = axis
    if align_corners:
        return real(old - 1) / real(new - 1) if new > 1 else real(0)
    return real(1 / scale) if scale else real(old) / real(new)


def _count_taps(axis: ResampledAxis, mode: str, align_corners: bool) -> int:
    """Return an upper bound of the number of taps of all output elements along an axis."""
    old, new, _, _ = axis
    if mode in NEAREST:
        return new
    reach = _REACH[mode]
    if not mode.endswith("antialias"):
        return new * 2 * reach
    stretch = max(float(_step(axis, align_corners, np.float64)), 1.0)
    return new * min(old, math.ceil(2 * reach * stretch) + 2)


def taps(
    axis: ResampledAxis, mode: str, align_corners: bool, real: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return which elements of x each output element uses, and their weights, ``[size, taps]``.

    If an output element has fewer taps than others, the rest have index -1. Of a part, x holds only
    the elements that it uses.

    Parameters
    ----------
    axis : ResampledAxis
    mode, align_corners
        The attrs of the op.
    real : type
        ``numpy.float32`` or ``numpy.float64``: the type in which positions are computed.
    """
    return _cut(axis, *_all_taps(axis, mode, align_corners, real))


def _cut(
    axis: ResampledAxis, index: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the taps of a part out of those of the whole axis."""
    if axis.part == (0, axis.new):
        return index, weight
    index, weight = index[slice(*axis.part)], weight[slice(*axis.part)]
    low = index[index >= 0].min()
    return np.where(index < 0, -1, index - low), weight


def _all_taps(
    axis: ResampledAxis, mode: str, align_corners: bool, real: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return the taps of the whole axis."""
    old, new, _, _ = axis
    step = _step(axis, align_corners, real)
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
    half = real(0 if align_corners else 0.5)
    at = (outputs + half) * step - half
    if mode == "linear":
        at = np.maximum(at, real(0))
    base = np.minimum(np.floor(at).astype(np.int64), old - 1)
    rest = np.clip(at - base.astype(real), real(0), real(1))
    offsets = np.arange(1 - reach, reach + 1)
    distance = rest[:, None] - offsets.astype(real)
    weight = _linear(distance) if mode == "linear" else _cubic(distance, -0.75)
    return np.clip(base[:, None] + offsets, 0, old - 1), weight


def whole_taps(
    axis: ResampledAxis, mode: str, align_corners: bool
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the taps of one axis of an image of bytes: indices, weights, and a shift.

    An output element is the sum of its taps times their weights, plus ``2^(shift - 1)``, shifted
    right by ``shift`` and clamped to a byte. Weights are the real ones times ``2^shift``, rounded;
    the shift is the largest with which they fit 16 bits. So torch computes these images.
    """
    index, weight = _all_taps(axis, mode, align_corners, np.float64)
    for tap in range(index.shape[1] - 1, 0, -1):  # beyond an end, taps are one element's
        same = (index[:, tap] == index[:, tap - 1]) & (index[:, tap] >= 0)
        weight[:, tap - 1] += np.where(same, weight[:, tap], 0)
        weight[:, tap] = np.where(same, 0, weight[:, tap])
    shift, most = 0, float(weight.max())
    while shift < _MOST_SHIFT and int(0.5 + most * 2 ** (shift + 1)) < 2**15:
        shift += 1
    scaled = weight * 2**shift
    whole = np.trunc(scaled + np.copysign(0.5, scaled)).astype(np.int64)
    return *_cut(axis, index, whole), shift


def _along(x: np.ndarray, at: int, index: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Sum the weighted taps of each output element along axis ``at``, in the weights' dtype."""
    shape = (-1,) + (1,) * (x.ndim - at - 1)
    result = np.zeros((), weight.dtype)
    for tap in range(index.shape[1]):
        part = np.take(x, index[:, tap], at).astype(weight.dtype)
        part *= weight[:, tap].reshape(shape)
        result = result + np.where(index[:, tap].reshape(shape) >= 0, part, 0)
    return result


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    """Resample the last axis, then the other one; in float64, but bytes are rounded between."""
    (x,) = inputs
    mode, align_corners = attrs["mode"], attrs["align_corners"]
    nearest = mode in NEAREST
    real = _real(x.dtype.name, mode)
    y = x
    with np.errstate(all="ignore"):
        for at, axis in reversed([*zip(attrs["axes"], axes_of(x.shape, attrs), strict=True)]):
            count = _count_taps(axis, mode, align_corners)
            if count > _MAX_TAPS:
                fail("RESAMPLE", f"at most {_MAX_TAPS:,} taps along an axis", f"{count:,}")
            if nearest:
                y = np.take(y, taps(axis, mode, False, np.float32)[0][:, 0], at)
            elif x.dtype == np.uint8:
                index, weight, shift = whole_taps(axis, mode, align_corners)
                total = _along(y, at, index, weight)
                y = np.clip((total + (1 << shift >> 1)) >> shift, 0, 255).astype(np.uint8)
            else:
                index, weight = taps(axis, mode, align_corners, real)
                y = _along(y, at, index, weight.astype(np.float64))
        return np.asarray(y, x.dtype, order="C")


# -- the table of kernels --------------------------------------------------------------------------

#: Pixels with fewer elements than this are resampled element by element: they fill no vector.
_SMALL_PIXEL = 16
#: The kernels read a vector of entries from any of the first ones on: a multiple of this.
_ENTRIES = 16
#: Tables in use. Nodes of the same sizes share one.
_TABLES: WeakValueDictionary[tuple[Any, ...], np.ndarray] = WeakValueDictionary()


def table(inputs: Sequence[TensorType], attrs: Attrs) -> np.ndarray | None:
    """Return the taps and their weights as kernels read them.

    Returns
    -------
    numpy.ndarray or None
        int32. First for rows, then for columns: the number of taps, the number of entries of each
        tap, and the shift of whole weights. An axis that is not resampled has no taps. Then for
        rows, and after them for columns: the taps' indices ``[taps, entries]``, and unless the mode
        is nearest their weights, as float32 bits or, for uint8, whole numbers. Columns are the last
        of the axes, and rows the one before; a single axis with at least :data:`_SMALL_PIXEL`
        elements behind it is rows. If fewer elements are behind columns, each of these has its own
        entry, and indices count elements, not pixels. None for dtypes without kernels, beyond
        :data:`_MAX_TAPS`, and if an output element has no taps.
    """
    (x,) = inputs
    mode, nearest = attrs["mode"], attrs["mode"] in NEAREST
    if not nearest and x.dtype not in ("float32", "uint8"):
        return None
    axes = axes_of(x.shape, attrs)
    inner = math.prod(x.shape[attrs["axes"][-1] + 1 :])
    rows: ResampledAxis | None = axes[0] if len(axes) == 2 or inner >= _SMALL_PIXEL else None
    columns: ResampledAxis | None = axes[-1] if len(axes) == 2 or rows is None else None
    pixel = inner if columns is not None and inner < _SMALL_PIXEL else 1
    counts = [_count_taps(axis, mode, attrs["align_corners"]) for axis in axes]
    counts[-1] *= max(pixel, 1)
    if max(counts) > _MAX_TAPS:
        return None
    whole = x.dtype == "uint8" and not nearest
    key = (rows, columns, pixel, mode, attrs["align_corners"], whole)
    found = _TABLES.get(key)
    if found is not None:
        return found
    head, parts = [], []
    for axis, size in ((rows, 1), (columns, pixel)):
        if axis is None or size == 0:
            head += [0, 0, 0]
            continue
        shift = 0
        if whole:
            index, weight, shift = whole_taps(axis, mode, attrs["align_corners"])
        else:
            index, weight = taps(axis, mode, attrs["align_corners"], np.float32)
        if index[-1, 0] < 0:  # an explicit scale leads past the end, where torch gives 0
            return None
        index, weight = _filled(index, weight)
        index = (index[..., None] * size + np.arange(size)).reshape(len(index), -1)
        weight = np.repeat(weight, size, 1)
        end = (0, 0), (0, -index.shape[1] % _ENTRIES)
        index, weight = np.pad(index, end, "edge"), np.pad(weight, end, "edge")
        head += [*index.shape, shift]
        parts.append(index.astype(np.int32).ravel())
        if not nearest:
            bits = weight.astype(np.int32 if whole else np.float32)
            parts.append(bits.view(np.int32).ravel())
    made = _TABLES[key] = np.concatenate([np.array(head, np.int32), *parts])
    return made


def _filled(index: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ``[taps, size]`` with as many taps for each output element.

    A tap that is not used repeats the one before. It shares the weight of that one, so that it adds
    nothing of its own, whatever the element is.
    """
    index, weight = index.T.copy(), weight.T.copy()
    for tap in range(1, len(index)):
        free = index[tap] < 0
        index[tap] = np.where(free, index[tap - 1], index[tap])
        if weight.dtype.kind == "f":
            half = weight[tap - 1] / 2
            weight[tap - 1] = np.where(free, half, weight[tap - 1])
            weight[tap] = np.where(free, half, weight[tap])
    return index, weight


def _region(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> list[Region]:
    """Return the runs of each resampled axis where sizes are known; of a part, all of x."""
    (x,) = inputs
    region: list[Relation] = [Same(axis) for axis in range(len(x.shape))]
    for axis, of in zip(attrs["axes"], axes_of(x.shape, attrs), strict=True):
        runs: tuple[Range, ...] = ()
        if type(of.old) is type(of.new) is int and not attrs["part"]:
            mode, align_corners = attrs["mode"], attrs["align_corners"]
            runs = runs_of(of, mode, align_corners, _real(x.dtype, mode))
        region[axis] = Window(axis, length=0, runs=runs) if runs else WHOLE
    return [tuple(region)]


def _cost(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    (x,) = inputs
    nbytes = x.nbytes + output.nbytes
    if attrs["mode"] in NEAREST:
        return Cost(0, nbytes)
    flops = 0
    for axis in attrs["axes"]:
        each = 2 * _REACH[attrs["mode"]]
        if attrs["mode"].endswith("antialias"):
            old, new = x.shape[axis], output.shape[axis]
            each *= largest(1, (old + new - 1) // new)
        flops += 2 * output.size * each
    return Cost(flops, nbytes)


RESAMPLE = OpDef(
    name="RESAMPLE",
    doc="x with `sizes` elements along one or two axes, interpolated as in torch. A step in the "
    "output is 1 / scale in x, or the ratio of the sizes if the axis's scale is 0; with "
    "align_corners the first and last elements keep their places. The antialias modes widen their "
    "window where the output is smaller. uint8 is rounded after each axis, the last one first. "
    "`part` says that x is a part of a larger one: what a range of the output needs. It has three "
    "numbers for each axis: the whole size of x, and the range, which alone is computed.",
    inputs=(1, 1),
    infer=_infer,
    evaluate=_evaluate,
    attrs={
        "axes": Attr("ints", role="axis"),
        "sizes": Attr("ints", sized=True, role="each axis"),
        "mode": Attr("string"),
        "align_corners": Attr("bool", False),
        "scales": Attr("scalars", role="each axis"),
        "part": Attr("ints", (), role="part"),
    },
    region=_region,
    cost=_cost,
    table=table,
)

OPS = (RESAMPLE,)
