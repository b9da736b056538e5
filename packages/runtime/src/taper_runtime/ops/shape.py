"""Ops that move values without changing them; most are views."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.dtypes import DTYPES
from taper_runtime.errors import OpError
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
)
from taper_runtime.ops.rules import broadcast, check_axes, check_axis, check_same_dtype, check_shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: Most inputs of one CAT.
MAX_PARTS = 1 << 16


def _arrays(*shapes: Shape) -> Iterator[np.ndarray]:
    """One array per shape and element size: every byte of an element must move with it."""
    rng = np.random.default_rng(15)
    for dtype in ("float32", "int64", "bool", "int16"):
        for shape in shapes:
            # large values: an 8-byte element moved as 4 bytes must show
            values = rng.integers(-(1 << 62), 1 << 62, shape)
            yield np.asarray(values % 2 if dtype == "bool" else values).astype(
                DTYPES[dtype].storage
            )


def _movement(
    name: str,
    doc: str,
    attrs: dict[str, Attr],
    infer: Callable[[TensorType, Attrs], Shape],
    view: Callable[[Shape, Shape, Attrs], View | None],
    samples: Callable[[], Iterator[Sample]],
) -> OpDef:
    """An op of one input whose output is a view of it; evaluated by copying that view."""

    def evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
        x = np.ascontiguousarray(inputs[0]).reshape(inputs[0].shape)
        shape = infer(TensorType("bool", x.shape), attrs)
        placed = view(x.shape, contiguous_strides(x.shape), attrs)
        assert placed is not None, "a contiguous tensor has every view"
        out = np.empty(shape, x.dtype)
        if out.size:
            strides = [s * x.itemsize for s in placed.strides]
            out[...] = np.ndarray(shape, x.dtype, x, placed.offset * x.itemsize, strides)
        return out

    return OpDef(
        name=name,
        doc=doc,
        inputs=(1, 1),
        infer=lambda inputs, attrs: TensorType(inputs[0].dtype, infer(inputs[0], attrs)),
        evaluate=evaluate,
        samples=samples,
        attrs=attrs,
        view=view,
        strided=(ALL_INPUTS,),
    )


def _infer_reshape(x: TensorType, attrs: Attrs) -> Shape:
    shape = check_shape("RESHAPE", attrs["shape"])
    if math.prod(shape) != x.size:
        raise OpError(f"RESHAPE: expected a shape of {x.size} elements, got {list(shape)}")
    return shape


def _view_reshape(shape: Shape, strides: Shape, attrs: Attrs) -> View | None:
    """Strides of the new shape, if it splits and joins only dims that lie evenly in memory."""
    new = tuple(attrs["shape"])
    if 0 in shape:
        return View(0, contiguous_strides(new))
    # runs of old dims that step evenly: (elements, innermost stride)
    runs: list[list[int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if runs and runs[-1][1] == size * stride:
            runs[-1] = [runs[-1][0] * size, stride]
        else:
            runs.append([size, stride])
    result = []
    for size in reversed(new):
        if size == 1:
            result.append(1)
            continue
        if not runs or runs[-1][0] % size:
            return None
        result.append(runs[-1][1])
        runs[-1] = [runs[-1][0] // size, runs[-1][1] * size]
        if runs[-1][0] == 1:
            runs.pop()
    return View(0, tuple(reversed(result)))


def _samples_reshape() -> Iterator[Sample]:
    for x in _arrays((2, 3, 4)):
        for shape in ((6, 4), (24,), (2, 1, 12), (4, 3, 2)):
            yield Sample([x], {"shape": shape})
    yield Sample([np.ones((), np.float32)], {"shape": (1, 1)})
    yield Sample([np.ones((1,), np.float32)], {"shape": ()})
    yield Sample([np.ones((0, 3), np.float32)], {"shape": (3, 0, 2)})


def _swapped(attrs: Attrs, rank: int) -> list[int]:
    a, b = (
        check_axis("TRANSPOSE", attrs["axis0"], rank),
        check_axis("TRANSPOSE", attrs["axis1"], rank),
    )
    axes = list(range(rank))
    axes[a], axes[b] = b, a
    return axes


def _permuted(attrs: Attrs, rank: int) -> list[int]:
    axes = list(attrs["axes"])
    if sorted(axes) != list(range(rank)):
        raise OpError(f"PERMUTE: expected a permutation of {rank} axes, got {axes}")
    return axes


def _take(values: Shape, axes: Sequence[int]) -> Shape:
    return tuple(values[axis] for axis in axes)


def _samples_transpose() -> Iterator[Sample]:
    for x in _arrays((3, 5), (2, 3, 4), (2, 3, 4, 5), (33, 70)):
        yield Sample([x], {"axis0": 0, "axis1": x.ndim - 1})
        yield Sample([x], {"axis0": x.ndim - 1, "axis1": x.ndim - 2})


def _samples_permute() -> Iterator[Sample]:
    for x in _arrays((2, 3, 4), (2, 3, 4, 5, 2)):
        axes = list(range(x.ndim))
        yield Sample([x], {"axes": axes})
        yield Sample([x], {"axes": axes[::-1]})
        yield Sample([x], {"axes": axes[1:] + axes[:1]})
    yield Sample([np.ones((0, 3), np.float32)], {"axes": (1, 0)})
    yield Sample([np.ones((), np.float32)], {"axes": ()})


def _infer_slice(x: TensorType, attrs: Attrs) -> Shape:
    axis = check_axis("SLICE", attrs["axis"], len(x.shape))
    start, stop, step = attrs["start"], attrs["stop"], attrs["step"]
    if not 0 <= start <= stop <= x.shape[axis] or step < 1:
        raise OpError(
            f"SLICE: expected 0 <= start <= stop <= {x.shape[axis]} and step >= 1, got "
            f"{start}, {stop}, {step}"
        )
    return (*x.shape[:axis], -(-(stop - start) // step), *x.shape[axis + 1 :])


def _view_slice(shape: Shape, strides: Shape, attrs: Attrs) -> View:
    axis = attrs["axis"]
    stride = strides[axis]
    inside = attrs["stop"] > attrs["start"] and 0 not in shape
    return View(
        attrs["start"] * stride if inside else 0,
        (*strides[:axis], stride * attrs["step"], *strides[axis + 1 :]),
    )


def _samples_slice() -> Iterator[Sample]:
    for x in _arrays((7,), (5, 6), (2, 5, 7)):
        for axis in range(x.ndim):
            size = x.shape[axis]
            yield Sample([x], {"axis": axis, "start": 1, "stop": size})
            yield Sample([x], {"axis": axis, "start": 0, "stop": size, "step": 3})
            yield Sample([x], {"axis": axis, "start": size, "stop": size})


def _infer_expand(x: TensorType, attrs: Attrs) -> Shape:
    shape = check_shape("EXPAND", attrs["shape"])
    if broadcast("EXPAND", [x.shape, shape]) != shape:
        raise OpError(f"EXPAND: expected a shape {list(x.shape)} expands to, got {list(shape)}")
    return shape


def _view_expand(shape: Shape, strides: Shape, attrs: Attrs) -> View:
    added = len(attrs["shape"]) - len(shape)
    kept = [
        0 if size == 1 and new != 1 else stride
        for size, stride, new in zip(shape, strides, attrs["shape"][added:], strict=True)
    ]
    return View(0, (*[0] * added, *kept))


def _samples_expand() -> Iterator[Sample]:
    for x in _arrays((3, 1), (1, 4)):
        yield Sample([x], {"shape": (3, 4)})
        yield Sample([x], {"shape": (2, 3, 3, 4)})
    yield Sample([np.ones((), np.float32)], {"shape": (2, 3)})
    yield Sample([np.ones((1,), np.float32)], {"shape": (0,)})


def _infer_flip(x: TensorType, attrs: Attrs) -> Shape:
    check_axes("FLIP", attrs["axes"], len(x.shape))
    return x.shape


def _view_flip(shape: Shape, strides: Shape, attrs: Attrs) -> View:
    if 0 in shape:
        return View(0, strides)
    offset = sum((shape[axis] - 1) * strides[axis] for axis in attrs["axes"])
    return View(offset, tuple(-s if axis in attrs["axes"] else s for axis, s in enumerate(strides)))


def _samples_flip() -> Iterator[Sample]:
    for x in _arrays((5,), (3, 4), (2, 3, 5)):
        yield Sample([x], {"axes": (0,)})
        yield Sample([x], {"axes": tuple(range(x.ndim))})


def _infer_cat(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    dtype = check_same_dtype("CAT", inputs)
    first = inputs[0].shape
    axis = check_axis("CAT", attrs["axis"], len(first))
    for t in inputs:
        if len(t.shape) != len(first) or any(
            a != b for i, (a, b) in enumerate(zip(t.shape, first, strict=True)) if i != axis
        ):
            shapes = [list(t.shape) for t in inputs]
            raise OpError(f"CAT: expected shapes equal but for axis {axis}, got {shapes}")
    total = sum(t.shape[axis] for t in inputs)
    return TensorType(dtype, (*first[:axis], total, *first[axis + 1 :]))


def _cat(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    return np.ascontiguousarray(np.concatenate(inputs, attrs["axis"]))


def _samples_cat() -> Iterator[Sample]:
    for x in _arrays((3, 4), (2, 3, 5)):
        for axis in range(x.ndim):
            part = x.take(range(1), axis)
            yield Sample([x, part, x], {"axis": axis})
            yield Sample([x, x.take([], axis)], {"axis": axis})
    yield Sample([np.ones((2, 2), np.float32)], {"axis": 0})


MOVEMENT = [
    _movement(
        "RESHAPE",
        "The same elements in row-major order under another shape.",
        {"shape": Attr("ints")},
        _infer_reshape,
        _view_reshape,
        _samples_reshape,
    ),
    _movement(
        "TRANSPOSE",
        "Two axes swapped.",
        {"axis0": Attr("int"), "axis1": Attr("int")},
        lambda x, attrs: _take(x.shape, _swapped(attrs, len(x.shape))),
        lambda shape, strides, attrs: View(0, _take(strides, _swapped(attrs, len(shape)))),
        _samples_transpose,
    ),
    _movement(
        "PERMUTE",
        "Axes reordered: axis i of the output is axis axes[i] of the input.",
        {"axes": Attr("ints")},
        lambda x, attrs: _take(x.shape, _permuted(attrs, len(x.shape))),
        lambda shape, strides, attrs: View(0, _take(strides, attrs["axes"])),
        _samples_permute,
    ),
    _movement(
        "SLICE",
        "Elements start, start + step, ... below stop of one axis.",
        {"axis": Attr("int"), "start": Attr("int"), "stop": Attr("int"), "step": Attr("int", 1)},
        _infer_slice,
        _view_slice,
        _samples_slice,
    ),
    _movement(
        "EXPAND",
        "Broadcast to a shape.",
        {"shape": Attr("ints")},
        _infer_expand,
        _view_expand,
        _samples_expand,
    ),
    _movement(
        "FLIP",
        "Axes reversed.",
        {"axes": Attr("ints")},
        _infer_flip,
        _view_flip,
        _samples_flip,
    ),
]
COPY = OpDef(
    name="COPY",
    doc="The same values in memory of their own.",
    inputs=(1, 1),
    infer=lambda inputs, attrs: inputs[0],
    evaluate=lambda inputs, attrs: np.array(inputs[0], order="C"),
    samples=lambda: (Sample([x]) for x in _arrays((), (3, 4), (0, 2))),
    strided=(ALL_INPUTS,),
)
CAT = OpDef(
    name="CAT",
    doc="Tensors joined along an axis.",
    inputs=(1, MAX_PARTS),
    infer=_infer_cat,
    evaluate=_cat,
    samples=_samples_cat,
    attrs={"axis": Attr("int")},
    strided=(ALL_INPUTS,),
)
