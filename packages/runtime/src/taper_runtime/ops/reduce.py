"""Reductions. Floats are summed and multiplied in float64; float32 is rounded once."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.ops.opdef import Attr, Attrs, Cost, OpDef, Sample, Shape, TensorType
from taper_runtime.ops.region import reducing
from taper_runtime.ops.rules import (
    COMPUTED,
    FLOATS,
    REALS,
    check_axes,
    check_axis,
    check_dtype,
    fail,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def _count(x: np.ndarray, axes: Shape) -> np.float64:
    return np.float64(math.prod(x.shape[axis] for axis in axes))


def _mean(x: np.ndarray, axis: Shape, keepdims: bool) -> Any:
    return x.sum(axis, keepdims=keepdims) / _count(x, axis)


def _reduced(shape: Shape, axes: Sequence[int], keepdim: bool) -> Shape:
    if keepdim:
        return tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    return tuple(size for axis, size in enumerate(shape) if axis not in axes)


def _check_not_empty(op: str, shape: Shape, axes: Sequence[int]) -> None:
    if any(shape[axis] < 1 for axis in axes):
        fail(op, "axes that hold elements", list(shape))


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def _infer_var(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    dtype, shape, _ = inputs[0]
    check_dtype("VAR", "x", dtype, FLOATS)
    axes = check_axes("VAR", attrs["axes"], len(shape))
    return TensorType(dtype, _reduced(shape, axes, attrs["keepdim"]))


def _var(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, axes = _wide(inputs[0]), attrs["axes"]
    with np.errstate(all="ignore"):
        squares = np.square(x - _mean(x, axes, True)).sum(axes, keepdims=attrs["keepdim"])
        count = _count(x, axes)
        result = squares / (np.maximum(count - attrs["correction"], 0) if count else np.nan)
        return np.asarray(result, inputs[0].dtype, order="C")


def _infer_arg(op: str, inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    dtype, shape, _ = inputs[0]
    check_dtype(op, "x", dtype, REALS)
    axes = (check_axis(op, attrs["axis"], len(shape)),)
    _check_not_empty(op, shape, axes)
    return TensorType("int64", _reduced(shape, axes, attrs["keepdim"]))


def _arg(function: Callable[..., Any], inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    # To numpy too the first NaN is the extreme.
    result = function(inputs[0], axis=attrs["axis"], keepdims=attrs["keepdim"])
    return np.asarray(result, np.int64, order="C")


def _cost(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    return Cost(inputs[0].size, inputs[0].nbytes + output.nbytes)


#: Shape of x, and the axes reduced.
_SAMPLED: list[tuple[Shape, Shape]] = [
    ((5,), (0,)),
    ((3, 33), (1,)),
    ((33, 3), (0,)),
    ((2, 3, 4, 5), (1, 3)),
    ((2, 3, 4, 5), (0, 1)),
    ((2, 1, 2, 3, 1, 2), (0, 2, 4, 5)),
    ((4, 300), (0, 1)),
    ((3, 4), ()),
    ((), ()),
    ((0, 4), (1,)),
    ((4, 0), (1,)),
    ((0, 3), (0,)),
]
_SPECIAL = [[1, np.nan, 3], [-np.inf, np.inf, 0], [-0.0, 0, -0.0], [np.inf, 1, 2], [-np.inf, 1, 2]]


def _values(rng: np.random.Generator, shape: Shape, dtype: str) -> np.ndarray:
    scale = 100 if dtype == "int64" else 3
    values = np.asarray(rng.standard_normal(shape) * scale)
    return (abs(values) if dtype == "uint8" else values).astype(dtype)


def _reduction_samples(
    dtypes: Sequence[str], native: Sequence[str], of_nothing: bool
) -> Iterator[Sample]:
    rng = np.random.default_rng(5)
    for dtype in dtypes:
        for shape, axes in _SAMPLED if dtype in native else _SAMPLED[:4]:
            if of_nothing or all(shape[axis] for axis in axes):
                x = _values(rng, shape, dtype)
                yield Sample([x], {"axes": axes}, dtype in native)
                yield Sample([x], {"axes": axes, "keepdim": True}, dtype in native)
        if dtype in FLOATS:
            for axes in ((0,), (1,)):
                yield Sample([np.array(_SPECIAL, dtype)], {"axes": axes}, dtype in native)


def _samples_var() -> Iterator[Sample]:
    yield from _reduction_samples(FLOATS, ("float32",), of_nothing=True)
    rng = np.random.default_rng(6)
    # A mean far from zero: the variance must not be computed by cancellation.
    x = np.asarray(rng.standard_normal((3, 33)) + 1000, np.float32)
    for correction in (0.0, 1, 2.5, 33, 40):
        yield Sample([x], {"axes": (1,), "correction": correction})
    yield Sample([x[:, :0]], {"axes": (1,), "correction": -1.5})


def _samples_along(dtypes: Sequence[str], native: Sequence[str], **attrs: Any) -> Iterator[Sample]:
    """Yield samples for ops over one axis that is not empty."""
    rng = np.random.default_rng(7)
    for dtype in dtypes:
        for shape in ((5,), (3, 40), (2, 3, 4), (2, 1, 1, 3, 1, 2)):
            for axis in range(len(shape)):
                x = _values(rng, shape, dtype)
                yield Sample([x], {"axis": axis, **attrs}, dtype in native)
    for dtype in [dtype for dtype in FLOATS if dtype in dtypes]:
        for axis in range(2):
            x = np.array(_SPECIAL, dtype)
            yield Sample([x], {"axis": axis, **attrs}, dtype in native)
    yield Sample([_values(rng, (0, 3), "float32")], {"axis": 1, **attrs}, "float32" in native)


def _samples_arg() -> Iterator[Sample]:
    native = ("float32", "float64", "int64", "int32")
    yield from _samples_along(REALS, native)
    yield from _samples_along(("float32",), native, keepdim=True)


_ATTRS = {"axes": Attr("ints", role="axis"), "keepdim": Attr("bool", False)}


def _define(
    op: str,
    doc: str,
    function: Callable[..., Any],
    dtypes: tuple[str, ...],
    native: tuple[str, ...],
    *,
    of_nothing: bool = True,
) -> OpDef:
    """An op over several axes.

    Parameters
    ----------
    op, doc : str
    function : callable
        numpy's of that name, or like it. Gets floats as float64.
    dtypes : tuple of str
    native : tuple of str
        Those of ``dtypes`` that a kernel is expected to serve.
    of_nothing : bool
        Whether no elements have a result.
    """

    def infer(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        dtype, shape, _ = inputs[0]
        check_dtype(op, "x", dtype, dtypes)
        axes = check_axes(op, attrs["axes"], len(shape))
        if not of_nothing:
            _check_not_empty(op, shape, axes)
        return TensorType(dtype, _reduced(shape, axes, attrs["keepdim"]))

    def evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
        x = inputs[0]
        with np.errstate(all="ignore"):
            result = function(_wide(x), axis=attrs["axes"], keepdims=attrs["keepdim"])
            return np.asarray(result, x.dtype, order="C")

    return OpDef(
        name=op,
        doc=f"{doc} over `axes`, each kept with size 1 if `keepdim`.",
        inputs=(1, 1),
        infer=infer,
        evaluate=evaluate,
        samples=partial(_reduction_samples, dtypes, native, of_nothing),
        attrs=_ATTRS,
        region=reducing("axes"),
        cost=_cost,
    )


def _define_arg(op: str, which: str, function: Callable[..., Any]) -> OpDef:
    return OpDef(
        name=op,
        doc=f"Where the {which} element along an axis is: the first of equals, the first NaN if "
        "there is one.",
        inputs=(1, 1),
        infer=partial(_infer_arg, op),
        evaluate=partial(_arg, function),
        samples=_samples_arg,
        attrs={"axis": Attr("int", role="axis"), "keepdim": Attr("bool", False)},
        region=reducing("axis"),
        cost=_cost,
    )


_SUMMED = (*FLOATS, "int64")
_COMPARED = (*FLOATS, "int64", "int32", "bool")

OPS = (
    _define("SUM", "Sum", np.sum, REALS, _SUMMED),
    _define("MEAN", "Mean, NaN of nothing,", _mean, FLOATS, FLOATS),
    _define("PROD", "Product", np.prod, REALS, _SUMMED),
    _define(
        "AMAX",
        "Largest element, NaN if there is one,",
        np.max,
        COMPUTED,
        _COMPARED,
        of_nothing=False,
    ),
    _define(
        "AMIN",
        "Smallest element, NaN if there is one,",
        np.min,
        COMPUTED,
        _COMPARED,
        of_nothing=False,
    ),
    _define("ANY", "Whether an element is true", np.any, ("bool",), ("bool",)),
    _define("ALL", "Whether every element is true", np.all, ("bool",), ("bool",)),
    OpDef(
        name="VAR",
        doc="Variance over `axes`: squared deviations divided by max(0, count - correction); "
        "NaN of no elements.",
        inputs=(1, 1),
        infer=_infer_var,
        evaluate=_var,
        samples=_samples_var,
        attrs={**_ATTRS, "correction": Attr("float", 1.0)},
        region=reducing("axes"),
        cost=_cost,
    ),
    _define_arg("ARGMAX", "largest", np.argmax),
    _define_arg("ARGMIN", "smallest", np.argmin),
)
