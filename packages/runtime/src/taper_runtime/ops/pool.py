"""Define pooling over the spatial dims of channels-last tensors."""

from __future__ import annotations

import math
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.ops.opdef import Attr, Attrs, Cost, OpDef, TensorType
from taper_runtime.ops.region import WHOLE, Region, Same
from taper_runtime.ops.type_rules import FLOATS, REALS, check_dtype, fail
from taper_runtime.ops.window import (
    LIMIT,
    MAX_SPATIAL,
    check_ints,
    check_spatial,
    gather_windows,
    window_positions,
    window_region,
    window_sizes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def _infer_max(inputs: Sequence[TensorType], attrs: Attrs, op: str = "MAX_POOL") -> TensorType:
    (x,) = inputs
    check_dtype(op, "x", x.dtype, REALS)
    sizes = window_sizes(op, check_spatial(op, x, attrs), attrs)
    return TensorType(x.dtype, (x.shape[0], *sizes, x.shape[-1]))


def _infer_argmax(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    return _infer_max(inputs, attrs, "ARGMAX_POOL")._replace(dtype="int64")


def _infer_avg(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    (x,) = inputs
    check_dtype("AVG_POOL", "x", x.dtype, FLOATS)
    sizes = window_sizes("AVG_POOL", check_spatial("AVG_POOL", x, attrs), attrs)
    check_ints("AVG_POOL", attrs, "counted", 2 * len(sizes), 0)
    if abs(attrs["divisor"]) >= LIMIT:
        fail("AVG_POOL", f"a divisor from {1 - LIMIT} to {LIMIT - 1}", attrs["divisor"])
    return TensorType(x.dtype, (x.shape[0], *sizes, x.shape[-1]))


def _windows(x: np.ndarray, attrs: Attrs, fill: float) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the windows ``[N, *out, taps, C]``, and the positions of the taps per dim."""
    sizes = window_sizes("", x.shape[1:-1], attrs)
    positions = window_positions(sizes, attrs)
    windows = gather_windows(x, positions, fill)
    return windows.reshape(x.shape[0], *sizes, math.prod(attrs["kernel"]), x.shape[-1]), positions


def _max_pool(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    (x,) = inputs
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    windows, _ = _windows(x, attrs, lowest)
    return np.asarray(windows.max(-2), order="C")


def _argmax_pool(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    """Return the place of each window's maximum: the last NaN, else the first largest."""
    (x,) = inputs
    spatial = x.shape[1:-1]
    pixels = np.arange(math.prod(spatial)).reshape(1, *spatial, 1)
    windows, _ = _windows(x, attrs, 0)
    places, _ = _windows(pixels, attrs, -1)  # -1 outside of x
    order = np.arange(windows.shape[-2])[:, None]
    inside = np.broadcast_to(places >= 0, windows.shape)
    nans = inside & np.isnan(windows) if x.dtype.kind == "f" else np.zeros_like(inside)
    last_nan = np.where(nans, order, -1).max(-2, keepdims=True, initial=-1)
    low = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    known = inside & ~nans
    largest = np.where(known, windows, low).max(-2, keepdims=True, initial=low)
    first = (known & (windows == largest)).argmax(-2)[..., None, :]
    tap = np.where(last_nan >= 0, last_nan, first)
    found = np.take_along_axis(np.broadcast_to(places, windows.shape), tap, -2)
    return np.asarray(np.maximum(found[..., 0, :], 0), np.int64, order="C")


def _avg_pool(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    (x,) = inputs
    windows, positions = _windows(x.astype(np.float64), attrs, 0)
    counts = []
    for d, at in enumerate(positions):
        low, high = attrs["counted"][2 * d : 2 * d + 2]
        counts.append(((at >= -low) & (at < x.shape[1 + d] + high)).sum(1))
    count = reduce(np.multiply.outer, counts)[..., None]
    with np.errstate(all="ignore"):
        result = windows.sum(-2) / (attrs["divisor"] or count)
        return np.asarray(result, x.dtype, order="C")


def _infer_adaptive(
    op: str, dtypes: Sequence[str], inputs: Sequence[TensorType], attrs: Attrs
) -> TensorType:
    (x,) = inputs
    check_dtype(op, "x", x.dtype, dtypes)
    n = len(attrs["sizes"])
    if not 1 <= n <= MAX_SPATIAL or len(x.shape) != n + 2:
        fail(op, f"1 to {MAX_SPATIAL} sizes, one per spatial dim of x", [n, list(x.shape)])
    sizes = attrs["sizes"]
    if any(size < 0 for size in sizes):
        fail(op, "sizes >= 0", list(sizes))
    if any(size < 1 for size in x.shape[1:-1]):
        fail(op, "spatial dims that hold elements", list(x.shape))
    return TensorType(x.dtype, (x.shape[0], *sizes, x.shape[-1]))


def _adaptive(
    function: Callable[..., Any], inputs: Sequence[np.ndarray], attrs: Attrs
) -> np.ndarray:
    """Pool one dim after the other; window i goes from floor(i n / m) to ceil((i+1) n / m)."""
    (x,) = inputs
    y = x.astype(np.float64) if x.dtype.kind == "f" else x
    with np.errstate(all="ignore"):
        for axis, size in enumerate(attrs["sizes"], 1):
            n = y.shape[axis]
            pooled = [
                function(
                    y[(slice(None),) * axis + (slice(i * n // size, -(-(i + 1) * n // size)),)],
                    axis,
                )
                for i in range(size)
            ]
            empty = np.empty((*y.shape[:axis], 0, *y.shape[axis + 1 :]), y.dtype)
            y = np.stack(pooled, axis) if pooled else empty
        return np.asarray(y, x.dtype, order="C")


def _region(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> list[Region]:
    return [(Same(0), *window_region(attrs), Same(len(output.shape) - 1))]


def _region_whole(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> list[Region]:
    spatial = (WHOLE for _ in output.shape[1:-1])
    return [(Same(0), *spatial, Same(len(output.shape) - 1))]


def _cost(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    taken = output.size * math.prod(attrs["kernel"])
    functions = (("ADD", inputs[0].dtype, taken),)
    return Cost(taken, inputs[0].nbytes + output.nbytes, functions=functions)


def _cost_adaptive(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    """Return the cost if each element of x is in about one window."""
    x = inputs[0]
    return Cost(x.size, x.nbytes + output.nbytes, functions=(("ADD", x.dtype, x.size),))


_PADDING = Attr("ints", role="padding")
_WINDOW = {"kernel": Attr("ints"), "stride": Attr("ints"), "padding": _PADDING}

OPS = (
    OpDef(
        name="MAX_POOL",
        doc="The largest element of each window over the spatial dims of x [N, *spatial, C]; NaN "
        "if the window contains one. padding (low0, high0, low1, ...) adds elements smaller "
        "than any number.",
        inputs=(1, 1),
        infer=_infer_max,
        evaluate=_max_pool,
        attrs={**_WINDOW, "dilation": Attr("ints")},
        region=_region,
        border=-math.inf,
        cost=_cost,
    ),
    OpDef(
        name="ARGMAX_POOL",
        doc="The position of the largest element of each window of MAX_POOL, counted over the "
        "spatial dims of x: of equal elements the first, of NaNs the last; 0 of a window of "
        "padding alone.",
        inputs=(1, 1),
        infer=_infer_argmax,
        evaluate=_argmax_pool,
        attrs={**_WINDOW, "dilation": Attr("ints")},
        region=_region_whole,
        cost=_cost,
    ),
    OpDef(
        name="AVG_POOL",
        doc="The sum of each window over the spatial dims of x [N, *spatial, C], divided by the "
        "number of its positions that are in x or in the first `counted` of each padding, or "
        "by `divisor` if that is not 0. padding and counted are low0, high0, low1, ....",
        inputs=(1, 1),
        infer=_infer_avg,
        evaluate=_avg_pool,
        attrs={**_WINDOW, "counted": _PADDING, "divisor": Attr("int", 0)},
        region=_region,
        border=0.0,
        cost=_cost,
    ),
    OpDef(
        name="ADAPTIVE_MAX_POOL",
        doc="The largest element of each of `sizes` windows that partition the spatial dims of x "
        "[N, *spatial, C]; NaN if the window contains one: window i of m over n goes from "
        "floor(i n / m) to ceil((i + 1) n / m).",
        inputs=(1, 1),
        infer=partial(_infer_adaptive, "ADAPTIVE_MAX_POOL", REALS),
        evaluate=partial(_adaptive, np.max),
        attrs={"sizes": Attr("ints", sized=True)},
        region=_region_whole,
        cost=_cost_adaptive,
    ),
    OpDef(
        name="ADAPTIVE_AVG_POOL",
        doc="The mean of each of `sizes` windows, which are those of ADAPTIVE_MAX_POOL.",
        inputs=(1, 1),
        infer=partial(_infer_adaptive, "ADAPTIVE_AVG_POOL", FLOATS),
        evaluate=partial(_adaptive, np.mean),
        attrs={"sizes": Attr("ints", sized=True)},
        region=_region_whole,
        cost=_cost_adaptive,
    ),
)
