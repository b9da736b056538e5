"""Define reductions. Floats are summed and multiplied in float64; float32 is rounded once."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.ops.opdef import Attr, Attrs, Cost, OpDef, Shape, TensorType
from taper_runtime.ops.region import reducing
from taper_runtime.ops.type_rules import (
    COMPUTED,
    FLOATS,
    REALS,
    check_axes,
    check_axis,
    check_dtype,
    fail,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


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
    # In numpy, too, the first NaN is the extreme.
    result = function(inputs[0], axis=attrs["axis"], keepdims=attrs["keepdim"])
    return np.asarray(result, np.int64, order="C")


def _cost(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    x = inputs[0]
    return Cost(x.size, x.nbytes + output.nbytes, functions=(("ADD", x.dtype, x.size),))


_ATTRS = {"axes": Attr("ints", role="axis"), "keepdim": Attr("bool", False)}


def _define(
    op: str,
    doc: str,
    function: Callable[..., Any],
    dtypes: tuple[str, ...],
    *,
    of_nothing: bool = True,
) -> OpDef:
    """Define a reduction over several axes.

    Parameters
    ----------
    op, doc : str
    function : callable
        A numpy reduction, or one with its signature. Floats are passed as float64.
    dtypes : tuple of str
    of_nothing : bool
        Whether the reduction of no elements has a result.
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
        attrs=_ATTRS,
        region=reducing("axes"),
        cost=_cost,
    )


def _define_arg(op: str, which: str, function: Callable[..., Any]) -> OpDef:
    return OpDef(
        name=op,
        doc=f"The index of the {which} element along an axis: the first of equal ones, or the "
        "first NaN if there is one.",
        inputs=(1, 1),
        infer=partial(_infer_arg, op),
        evaluate=partial(_arg, function),
        attrs={"axis": Attr("int", role="axis"), "keepdim": Attr("bool", False)},
        region=reducing("axis"),
        cost=_cost,
    )


OPS = (
    _define("SUM", "Sum", np.sum, REALS),
    _define("MEAN", "Mean, NaN for no elements,", _mean, FLOATS),
    _define("PROD", "Product", np.prod, REALS),
    _define(
        "AMAX",
        "Largest element, NaN if there is one,",
        np.max,
        COMPUTED,
        of_nothing=False,
    ),
    _define(
        "AMIN",
        "Smallest element, NaN if there is one,",
        np.min,
        COMPUTED,
        of_nothing=False,
    ),
    _define("ANY", "Whether an element is true", np.any, ("bool",)),
    _define("ALL", "Whether every element is true", np.all, ("bool",)),
    OpDef(
        name="VAR",
        doc="Variance over `axes`: squared deviations divided by max(0, count - correction); NaN "
        "if there are no elements.",
        inputs=(1, 1),
        infer=_infer_var,
        evaluate=_var,
        attrs={**_ATTRS, "correction": Attr("float", 1.0)},
        region=reducing("axes"),
        cost=_cost,
    ),
    _define_arg("ARGMAX", "largest", np.argmax),
    _define_arg("ARGMIN", "smallest", np.argmin),
)
