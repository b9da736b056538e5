"""Define ops that move values without changing them; all but COPY, CAT and PAD have a view rule."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

import numpy as np

from taper_runtime.base.sizes import bounds
from taper_runtime.ops.opdef import (
    ALL_INPUTS,
    Attr,
    Attrs,
    Cost,
    OpDef,
    Shape,
    TensorType,
    View,
    contiguous_strides,
    plain_strides,
)
from taper_runtime.ops.region import (
    Region,
    RegionRule,
    Relation,
    Same,
    Window,
    along,
    elementwise,
    reshape_region,
)
from taper_runtime.ops.type_rules import (
    MANY,
    broadcast,
    check_axes,
    check_axis,
    check_same_dtype,
    check_shape,
    fail,
    move_cost,
    replace,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from taper_runtime.ops.opdef import ViewRule

# -- type rules: the shape of the output -----------------------------------------------------------


def _infer_reshape(shape: Shape, attrs: Attrs) -> Shape:
    new = check_shape("RESHAPE", attrs["shape"])
    if math.prod(new) != math.prod(shape):
        fail("RESHAPE", f"a shape of {math.prod(shape)} elements", list(new))
    return new


def _infer_transpose(shape: Shape, attrs: Attrs) -> Shape:
    for name in ("axis0", "axis1"):
        check_axis("TRANSPOSE", attrs[name], len(shape))
    return _swapped(shape, attrs)


def _infer_permute(shape: Shape, attrs: Attrs) -> Shape:
    if sorted(attrs["axes"]) != list(range(len(shape))):
        fail("PERMUTE", f"axes 0 to {len(shape) - 1}, each once", list(attrs["axes"]))
    return _permuted(shape, attrs)


def _infer_slice(shape: Shape, attrs: Attrs) -> Shape:
    axis = check_axis("SLICE", attrs["axis"], len(shape))
    start, stop, step = attrs["start"], attrs["stop"], attrs["step"]
    if not 0 <= start <= stop <= shape[axis] or step < 1:
        expected = f"0 <= start <= stop <= {shape[axis]} and step >= 1"
        fail("SLICE", expected, (start, stop, step))
    return replace(shape, axis, (stop - start + step - 1) // step)


def _infer_expand(shape: Shape, attrs: Attrs) -> Shape:
    new = check_shape("EXPAND", attrs["shape"])
    if broadcast("EXPAND", [shape, new]) != new:
        fail("EXPAND", f"a shape that {list(shape)} expands to", list(new))
    return new


def _infer_flip(shape: Shape, attrs: Attrs) -> Shape:
    check_axes("FLIP", attrs["axes"], len(shape))
    return shape


# -- view rules ------------------------------------------------------------------------------------


def _view(shape: Shape, strides: Sequence[int], offset: int = 0) -> View:
    """Return the view with strides in normal form. A view of no elements has offset 0."""
    if 0 in shape:
        return View(0, contiguous_strides(shape))
    return View(offset, plain_strides(shape, strides))


def _view_reshape(shape: Shape, strides: Shape, attrs: Attrs) -> View | None:
    """Return the view of a reshape, or None if the new dims do not lie evenly in memory."""
    new = attrs["shape"]
    if 0 in shape:
        return _view(new, contiguous_strides(new))
    # runs of dims that lie evenly: their elements and the stride between them, innermost last
    runs: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if runs and runs[-1][1] == size * stride:
            size *= runs.pop()[0]
        runs.append((size, stride))
    result = []
    left, step = 1, 1
    for size in reversed(new):
        if size != 1 and left == 1 and runs:
            left, step = runs.pop()
        if bounds(size)[0] < 1 or left % size != 0:
            return None
        result.append(step)
        left, step = left // size, step * size
    return _view(new, result[::-1])


def _view_transpose(shape: Shape, strides: Shape, attrs: Attrs) -> View:
    return _view(_swapped(shape, attrs), _swapped(strides, attrs))


def _view_permute(shape: Shape, strides: Shape, attrs: Attrs) -> View:
    return _view(_permuted(shape, attrs), _permuted(strides, attrs))


def _view_slice(shape: Shape, strides: Shape, attrs: Attrs) -> View:
    axis = attrs["axis"]
    stepped = replace(strides, axis, strides[axis] * attrs["step"])
    return _view(_infer_slice(shape, attrs), stepped, attrs["start"] * strides[axis])


def _view_expand(shape: Shape, strides: Shape, attrs: Attrs) -> View:
    new = attrs["shape"]
    added = len(new) - len(shape)
    kept = [0 if size == 1 else stride for size, stride in zip(shape, strides, strict=True)]
    return _view(new, [0] * added + kept)


def _view_flip(shape: Shape, strides: Shape, attrs: Attrs) -> View:
    axes = attrs["axes"]
    flipped = [-stride if axis in axes else stride for axis, stride in enumerate(strides)]
    return _view(shape, flipped, sum((shape[axis] - 1) * strides[axis] for axis in axes))


# -- regions of the input -----------------------------------------------------------------------


def _region_reshape(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> list[Region]:
    return [reshape_region(inputs[0].shape, output.shape)]


def _region_transpose(
    inputs: Sequence[TensorType], output: TensorType, attrs: Attrs
) -> list[Region]:
    axes = _swapped(tuple(range(len(output.shape))), attrs)
    return [tuple(map(Same, axes))]


def _region_permute(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> list[Region]:
    axes = attrs["axes"]
    return [tuple(Same(axes.index(axis)) for axis in range(len(axes)))]


def _region_slice(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> list[Region]:
    region: list[Relation] = [Same(axis) for axis in range(len(output.shape))]
    region[attrs["axis"]] = Window(attrs["axis"], attrs["start"], attrs["step"])
    return [tuple(region)]


def _region_flip(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> list[Region]:
    return [
        tuple(
            Window(axis, size - 1, -1) if axis in attrs["axes"] else Same(axis)
            for axis, size in enumerate(output.shape)
        )
    ]


def _region_cat(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> list[Region]:
    joined, start, regions = attrs["axis"], 0, []
    for t in inputs:
        region: list[Relation] = [Same(axis) for axis in range(len(t.shape))]
        region[joined] = Window(joined, -start)
        regions.append(tuple(region))
        start += t.shape[joined]
    return regions


def _swapped(values: Shape, attrs: Attrs) -> Shape:
    result = list(values)
    a, b = attrs["axis0"], attrs["axis1"]
    result[a], result[b] = values[b], values[a]
    return tuple(result)


def _permuted(values: Shape, attrs: Attrs) -> Shape:
    return tuple(values[axis] for axis in attrs["axes"])


# -- evaluators ----------------------------


def _slice(x: np.ndarray, attrs: Attrs) -> np.ndarray:
    part = slice(attrs["start"], attrs["stop"], attrs["step"])
    return x[(slice(None),) * attrs["axis"] + (part,)]


def _evaluate_cat(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    return np.asarray(np.concatenate(inputs, attrs["axis"]), order="C")


def _infer_cat(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    dtype = check_same_dtype("CAT", inputs)
    shape = inputs[0].shape
    axis = check_axis("CAT", attrs["axis"], len(shape))
    for t in inputs:
        if len(t.shape) != len(shape) or replace(t.shape, axis) != replace(shape, axis):
            fail(
                "CAT",
                f"shapes that are equal except along axis {axis}",
                [list(t.shape) for t in inputs],
            )
    return TensorType(dtype, replace(shape, axis, sum(t.shape[axis] for t in inputs)))


def _parts_cat(shapes: Sequence[Shape], attrs: Attrs) -> list[int] | None:
    """Return the inputs' offsets if no axis before the concatenated one has several elements."""
    axis = attrs["axis"]
    if any(size != 1 for size in shapes[0][:axis]):
        return None
    return list(accumulate((math.prod(shape) for shape in shapes[:-1]), initial=0))


#: For each mode of PAD, what numpy calls it, and how much wider than the border an axis must be.
_PADS: dict[str, tuple[Literal["reflect", "edge", "wrap"], int | None]] = {
    "reflect": ("reflect", 1),
    "replicate": ("edge", None),
    "circular": ("wrap", 0),
}


def _infer_pad(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    """Check the axes, the widths and the mode; return the type with the borders."""
    dtype, shape, _ = inputs[0]
    axes, low, high, mode = (attrs[name] for name in ("axes", "low", "high", "mode"))
    check_axes("PAD", axes, len(shape))
    if mode not in _PADS:
        fail("PAD", f"a mode of {', '.join(_PADS)}", repr(mode))
    if not len(axes) == len(low) == len(high):
        fail("PAD", "two widths for each axis", [list(axes), list(low), list(high)])
    more = _PADS[mode][1]
    for axis, *widths in zip(axes, low, high, strict=True):
        size = shape[axis]
        if any(width < 0 for width in widths):
            fail("PAD", "widths of at least 0", widths)
        if size < 1 if more is None else any(width + more > size for width in widths):
            fail("PAD", f"a border of axis {axis} that its {size} elements can fill", widths)
        shape = replace(shape, axis, size + sum(widths))
    return TensorType(dtype, shape)


def _evaluate_pad(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    y = np.array(inputs[0], order="C")
    for axis, *widths in zip(attrs["axes"], attrs["low"], attrs["high"], strict=True):
        each = [(0, 0)] * y.ndim
        each[axis] = (widths[0], widths[1])
        y = np.pad(y, each, _PADS[attrs["mode"]][0])
    return np.asarray(y, order="C")


# -- definitions -----------------------------------------------------------------------------------


def _cost_permute(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    """Return the cost of moving rows, or of transposing blocks if another axis becomes the last."""
    last = len(output.shape) - 1
    if last < 0 or attrs["axes"][last] == last:
        return move_cost(inputs, output, attrs)
    return _block_cost(inputs, output, attrs)


def _cost_transpose(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    """Return the cost of moving rows, or of transposing blocks if the last axis is swapped."""
    if len(output.shape) - 1 not in (attrs["axis0"], attrs["axis1"]):
        return move_cost(inputs, output, attrs)
    return _block_cost(inputs, output, attrs)


def _block_cost(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    """Return the cost of blocks that are loaded, transposed and stored by vectors.

    An element takes about as long as an addition: 3 planes of 224 x 224 pixels are interleaved in
    37 us, where rows of 3 elements would take 125.
    """
    moves = (("ADD", "float32", output.size),)
    return move_cost(inputs, output, attrs)._replace(rows=0, functions=moves)


def _cost_cat(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    """Return the cost of copying all runs, which end where an input ends along the axis."""
    work = move_cost(inputs[:1], output, attrs)
    return work._replace(rows=len(inputs) * math.prod(output.shape[: attrs["axis"]]))


def _movement(
    name: str,
    doc: str,
    attrs: Mapping[str, Attr],
    infer: Callable[[Shape, Attrs], Shape],
    view: ViewRule,
    region: RegionRule,
    evaluate: Callable[[np.ndarray, Attrs], np.ndarray],
    cost: Callable[[Sequence[TensorType], TensorType, Attrs], Cost] = move_cost,
) -> OpDef:
    """Define an op with one input and a view rule; ``evaluate`` may return a numpy view."""
    return OpDef(
        name=name,
        doc=doc,
        inputs=(1, 1),
        infer=lambda inputs, attrs: TensorType(inputs[0].dtype, infer(inputs[0].shape, attrs)),
        evaluate=lambda inputs, attrs: np.asarray(evaluate(inputs[0], attrs), order="C"),
        attrs=attrs,
        view=view,
        region=region,
        strided=(ALL_INPUTS,),
        cost=cost,
    )


OPS = (
    _movement(
        "RESHAPE",
        "The same elements, in row-major order, in another shape.",
        {"shape": Attr("ints", sized=True, role="shape")},
        _infer_reshape,
        _view_reshape,
        _region_reshape,
        lambda x, attrs: x.reshape(attrs["shape"]),
    ),
    _movement(
        "TRANSPOSE",
        "Two axes swapped.",
        {"axis0": Attr("int", role="axis"), "axis1": Attr("int", role="axis")},
        _infer_transpose,
        _view_transpose,
        _region_transpose,
        lambda x, attrs: x.swapaxes(attrs["axis0"], attrs["axis1"]),
        _cost_transpose,
    ),
    _movement(
        "PERMUTE",
        "Axes reordered: axis i of the output is axis axes[i] of x.",
        {"axes": Attr("ints", role="axis")},
        _infer_permute,
        _view_permute,
        _region_permute,
        lambda x, attrs: x.transpose(attrs["axes"]),
        _cost_permute,
    ),
    _movement(
        "SLICE",
        "Elements start, start + step, ... below stop of one axis.",
        {
            "axis": Attr("int", role="axis"),
            "start": Attr("int", sized=True),
            "stop": Attr("int", sized=True),
            "step": Attr("int", 1),
        },
        _infer_slice,
        _view_slice,
        _region_slice,
        _slice,
    ),
    _movement(
        "EXPAND",
        "Broadcast to a shape: dims of size 1 repeated, leading dims added.",
        {"shape": Attr("ints", sized=True, role="shape")},
        _infer_expand,
        _view_expand,
        elementwise,
        lambda x, attrs: np.broadcast_to(x, attrs["shape"]),
    ),
    _movement(
        "FLIP",
        "Axes reversed.",
        {"axes": Attr("ints", role="axis")},
        _infer_flip,
        _view_flip,
        _region_flip,
        lambda x, attrs: np.flip(x, attrs["axes"]),
    ),
    OpDef(
        name="COPY",
        doc="The same values in a new allocation.",
        inputs=(1, 1),
        infer=lambda inputs, attrs: inputs[0],
        evaluate=lambda inputs, attrs: np.array(inputs[0], order="C"),
        region=elementwise,
        strided=(ALL_INPUTS,),
        cost=move_cost,
    ),
    OpDef(
        name="CAT",
        doc="Tensors joined along an axis.",
        inputs=(1, MANY),
        infer=_infer_cat,
        evaluate=_evaluate_cat,
        attrs={"axis": Attr("int", role="axis")},
        region=_region_cat,
        parts=_parts_cat,
        strided=(ALL_INPUTS,),
        cost=_cost_cat,
    ),
    OpDef(
        name="PAD",
        doc="x with borders of its own elements: `low` before and `high` after each of some axes. "
        "The mode says which elements: reflect, the next ones in reverse order, without the "
        "outermost; replicate, the outermost one; circular, those of the other end.",
        inputs=(1, 1),
        infer=_infer_pad,
        evaluate=_evaluate_pad,
        attrs={
            "axes": Attr("ints", role="axis"),
            "low": Attr("ints", sized=True, role="each axis"),
            "high": Attr("ints", sized=True, role="each axis"),
            "mode": Attr("string"),
        },
        region=along("axes"),
        cost=move_cost,
    ),
)
