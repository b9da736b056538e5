"""Ops that move values without changing them. All but COPY and CAT have a view rule."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.sizes import bounds
from taper_runtime.ops.opdef import (
    ALL_INPUTS,
    Attr,
    Attrs,
    OpDef,
    Sample,
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
    elementwise,
    reshape_region,
)
from taper_runtime.ops.rules import (
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
    from collections.abc import Callable, Iterator, Mapping, Sequence

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
    """Return the view, in the one form it has. A view of no elements starts at 0."""
    if 0 in shape:
        return View(0, contiguous_strides(shape))
    return View(offset, plain_strides(shape, strides))


def _view_reshape(shape: Shape, strides: Shape, attrs: Attrs) -> View | None:
    """Split and join dims that lie evenly in memory; None where the new dims may not."""
    new = attrs["shape"]
    if 0 in shape:
        return _view(new, contiguous_strides(new))
    runs: list[tuple[int, int]] = []  # elements and step of dims that lie evenly, innermost last
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
            fail("CAT", f"shapes equal but for axis {axis}", [list(t.shape) for t in inputs])
    return TensorType(dtype, replace(shape, axis, sum(t.shape[axis] for t in inputs)))


def _parts_cat(shapes: Sequence[Shape], attrs: Attrs) -> list[int] | None:
    """One after the other, if the axis is the outermost with more than one element."""
    axis = attrs["axis"]
    if any(size != 1 for size in shapes[0][:axis]):
        return None
    return list(accumulate((math.prod(shape) for shape in shapes[:-1]), initial=0))


# -- samples ---------------------------------------------------------------------------------------


def _arrays(*shapes: Shape) -> Iterator[np.ndarray]:
    """Yield an array per shape and element size; of integers every byte differs."""
    rng = np.random.default_rng(8)
    for dtype in (np.float32, np.int64, np.bool_, np.int16):
        for shape in shapes:
            if dtype is np.bool_:
                yield np.asarray(rng.random(shape) < 0.5)
            else:
                bits = rng.integers(-(2**62), 2**62, shape)
                yield np.asarray(bits).astype(dtype)


def _samples_reshape() -> Iterator[Sample]:
    for x in _arrays((2, 3, 4)):
        for shape in ((6, 4), (24,), (2, 1, 12), (4, 3, 2), (2, 3, 1, 2, 2, 1)):
            yield Sample([x], {"shape": shape})
    yield Sample([np.ones((), np.float32)], {"shape": (1, 1)})
    yield Sample([np.ones((1,), np.float32)], {"shape": ()})
    yield Sample([np.ones((0, 3), np.float32)], {"shape": (3, 0, 2)})


def _samples_transpose() -> Iterator[Sample]:
    for x in _arrays((3, 5), (2, 3, 4), (2, 3, 4, 5), (33, 70), (2, 1, 2, 3, 2, 3)):
        yield Sample([x], {"axis0": 0, "axis1": x.ndim - 1})
        yield Sample([x], {"axis0": x.ndim - 1, "axis1": x.ndim - 2})
    yield Sample([np.ones((3, 0, 2), np.float32)], {"axis0": 0, "axis1": 1})
    yield Sample([np.ones((3,), np.float32)], {"axis0": 0, "axis1": 0})


def _samples_permute() -> Iterator[Sample]:
    for x in _arrays((2, 3, 4), (2, 3, 4, 5, 2), (5, 1, 3)):
        axes = list(range(x.ndim))
        for permuted in (axes, axes[::-1], axes[1:] + axes[:1]):
            yield Sample([x], {"axes": permuted})
    yield Sample([np.ones((0, 3), np.float32)], {"axes": (1, 0)})
    yield Sample([np.ones((), np.float32)], {"axes": ()})


def _samples_slice() -> Iterator[Sample]:
    for x in _arrays((7,), (5, 6), (2, 5, 7)):
        for axis, size in enumerate(x.shape):
            yield Sample([x], {"axis": axis, "start": 1, "stop": size})
            yield Sample([x], {"axis": axis, "start": 0, "stop": size, "step": 3})
            yield Sample([x], {"axis": axis, "start": size - 1, "stop": size, "step": 2**40})
            yield Sample([x], {"axis": axis, "start": size, "stop": size})


def _samples_expand() -> Iterator[Sample]:
    for x in _arrays((3, 1), (1, 4), (1, 1)):
        yield Sample([x], {"shape": (max(x.shape[0], 3), max(x.shape[1], 4))})
        yield Sample([x], {"shape": (2, *x.shape)})
        yield Sample([x], {"shape": (2, 1, x.shape[0], max(x.shape[1], 4))})
    yield Sample([np.ones((), np.float32)], {"shape": (2, 3)})
    yield Sample([np.ones((1,), np.float32)], {"shape": (0,)})
    yield Sample([np.ones((0, 1), np.float32)], {"shape": (3, 0, 2)})


def _samples_flip() -> Iterator[Sample]:
    for x in _arrays((5,), (3, 4), (2, 3, 5), (1, 3)):
        yield Sample([x], {"axes": (0,)})
        yield Sample([x], {"axes": tuple(range(x.ndim))})
        yield Sample([x], {"axes": (x.ndim - 1,)})
    yield Sample([np.ones((3, 0), np.float32)], {"axes": (0, 1)})
    yield Sample([np.ones((), np.float32)], {"axes": ()})


def _samples_copy() -> Iterator[Sample]:
    for x in _arrays((), (3, 4), (0, 2), (4, 3, 5)):
        yield Sample([x])


def _samples_cat() -> Iterator[Sample]:
    for x in _arrays((3, 4), (2, 3, 5)):
        for axis in range(x.ndim):
            yield Sample([x, x.take([0], axis), x], {"axis": axis})
            yield Sample([x, x.take([], axis)], {"axis": axis})
    yield Sample([np.ones((2, 2), np.float32)], {"axis": 0})


# -- definitions -----------------------------------------------------------------------------------


def _movement(
    name: str,
    doc: str,
    attrs: Mapping[str, Attr],
    infer: Callable[[Shape, Attrs], Shape],
    view: ViewRule,
    region: RegionRule,
    evaluate: Callable[[np.ndarray, Attrs], np.ndarray],
    samples: Callable[[], Iterator[Sample]],
) -> OpDef:
    """An op of one input and a view rule; ``evaluate`` may give a view of numpy's."""
    return OpDef(
        name=name,
        doc=doc,
        inputs=(1, 1),
        infer=lambda inputs, attrs: TensorType(inputs[0].dtype, infer(inputs[0].shape, attrs)),
        evaluate=lambda inputs, attrs: np.asarray(evaluate(inputs[0], attrs), order="C"),
        samples=samples,
        attrs=attrs,
        view=view,
        region=region,
        strided=(ALL_INPUTS,),
        cost=move_cost,
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
        _samples_reshape,
    ),
    _movement(
        "TRANSPOSE",
        "Two axes swapped.",
        {"axis0": Attr("int", role="axis"), "axis1": Attr("int", role="axis")},
        _infer_transpose,
        _view_transpose,
        _region_transpose,
        lambda x, attrs: x.swapaxes(attrs["axis0"], attrs["axis1"]),
        _samples_transpose,
    ),
    _movement(
        "PERMUTE",
        "Axes reordered: axis i of the output is axis axes[i] of x.",
        {"axes": Attr("ints", role="axis")},
        _infer_permute,
        _view_permute,
        _region_permute,
        lambda x, attrs: x.transpose(attrs["axes"]),
        _samples_permute,
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
        _samples_slice,
    ),
    _movement(
        "EXPAND",
        "Broadcast to a shape: dims of size 1 repeated, leading dims added.",
        {"shape": Attr("ints", sized=True, role="shape")},
        _infer_expand,
        _view_expand,
        elementwise,
        lambda x, attrs: np.broadcast_to(x, attrs["shape"]),
        _samples_expand,
    ),
    _movement(
        "FLIP",
        "Axes reversed.",
        {"axes": Attr("ints", role="axis")},
        _infer_flip,
        _view_flip,
        _region_flip,
        lambda x, attrs: np.flip(x, attrs["axes"]),
        _samples_flip,
    ),
    OpDef(
        name="COPY",
        doc="The same values in memory of their own.",
        inputs=(1, 1),
        infer=lambda inputs, attrs: inputs[0],
        evaluate=lambda inputs, attrs: np.array(inputs[0], order="C"),
        samples=_samples_copy,
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
        samples=_samples_cat,
        attrs={"axis": Attr("int", role="axis")},
        region=_region_cat,
        parts=_parts_cat,
        strided=(ALL_INPUTS,),
        cost=lambda inputs, output, attrs: move_cost(inputs[:1], output, attrs),
    ),
)
