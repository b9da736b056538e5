"""Reductions and scans."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.errors import OpError
from taper_runtime.ops.opdef import Attr, Attrs, OpDef, Sample, Shape, TensorType
from taper_runtime.ops.rules import COMPUTED, FLOATS, REALS, check_axes, check_axis, check_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def _reduced(shape: Shape, axes: Sequence[int], keepdim: bool) -> Shape:
    if keepdim:
        return tuple(1 if i in axes else size for i, size in enumerate(shape))
    return tuple(size for i, size in enumerate(shape) if i not in axes)


def _nonempty(op: str, shape: Shape, axes: Sequence[int]) -> None:
    if any(shape[axis] == 0 for axis in axes):
        raise OpError(f"{op}: expected something to reduce, got an empty axis of {list(shape)}")


def _reduction(
    name: str,
    doc: str,
    function: Callable[..., np.ndarray],
    dtypes: Sequence[str],
    native: Sequence[str],
    *,
    identity: bool = True,
) -> OpDef:
    """An op over several axes. ``identity``: whether an empty reduction has a value."""

    def infer(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        x = inputs[0]
        check_dtype(name, "x", x.dtype, dtypes)
        axes = check_axes(name, attrs["axes"], len(x.shape))
        if not identity:
            _nonempty(name, x.shape, axes)
        return TensorType(x.dtype, _reduced(x.shape, axes, attrs["keepdim"]))

    def evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
        x = inputs[0]
        with np.errstate(all="ignore"):
            result = function(x, axis=attrs["axes"], keepdims=attrs["keepdim"])
        return np.array(result, x.dtype, order="C", copy=None)

    def samples() -> Iterator[Sample]:
        rng = np.random.default_rng(6)
        for dtype in dtypes:
            for shape, axes in (
                ((5,), [0]),
                ((3, 33), [1]),
                ((3, 33), [0]),
                ((2, 3, 4, 5), [1, 3]),
            ):
                x = (rng.standard_normal(shape) * 3).astype(dtype)
                yield Sample([x], {"axes": axes}, dtype in native)
                yield Sample([x], {"axes": axes, "keepdim": True}, dtype in native)
        x = (rng.standard_normal((4, 100)) * 3).astype(dtypes[-1])
        yield Sample([x], {"axes": [0, 1]}, dtypes[-1] in native)
        yield Sample([x], {"axes": []}, dtypes[-1] in native)
        if identity and name not in ("MEAN", "VAR"):
            yield Sample([x[:, :0].copy()], {"axes": [1]}, dtypes[-1] in native)
        if "float32" in dtypes:
            special = np.array([[1, np.nan, 3], [-np.inf, np.inf, 0], [-0.0, 0, -0.0]], np.float32)
            yield Sample([special], {"axes": [1]})

    return OpDef(
        name=name,
        doc=doc,
        inputs=(1, 1),
        infer=infer,
        evaluate=evaluate,
        samples=samples,
        attrs={"axes": Attr("ints"), "keepdim": Attr("bool", False)},
    )


def _mean(x: np.ndarray, axis: Shape, keepdims: bool) -> np.ndarray:
    count = np.prod([x.shape[i] for i in axis])
    return np.asarray(np.sum(x, axis=axis, keepdims=keepdims, dtype=np.float64) / count)


def _sum(x: np.ndarray, axis: Shape, keepdims: bool) -> np.ndarray:
    wide = np.float64 if x.dtype.kind == "f" else None
    return np.asarray(np.sum(x, axis=axis, keepdims=keepdims, dtype=wide))


def _infer_var(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x = inputs[0]
    check_dtype("VAR", "x", x.dtype, FLOATS)
    axes = check_axes("VAR", attrs["axes"], len(x.shape))
    return TensorType(x.dtype, _reduced(x.shape, axes, attrs["keepdim"]))


def _var(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, axes = inputs[0].astype(np.float64), attrs["axes"]
    count = int(np.prod([x.shape[i] for i in axes]))
    with np.errstate(all="ignore"):
        centred = x - np.sum(x, axis=axes, keepdims=True) / np.float64(count)
        total = np.sum(centred * centred, axis=axes, keepdims=attrs["keepdim"])
        # torch divides by max(0, count - correction)
        result = np.asarray(total) / np.float64(max(count - attrs["correction"], 0))
    return np.array(result, inputs[0].dtype, order="C", copy=None)


def _samples_var() -> Iterator[Sample]:
    rng = np.random.default_rng(7)
    for shape, axes in (((5,), [0]), ((3, 33), [1]), ((3, 33), [0]), ((2, 3, 4, 5), [1, 3])):
        x = rng.standard_normal(shape).astype(np.float32) + np.float32(100)
        yield Sample([x], {"axes": axes})
        yield Sample([x], {"axes": axes, "keepdim": True, "correction": 0.0})
    yield Sample([np.ones((3, 1), np.float32)], {"axes": [1]})


def _arg(name: str, function: Callable[..., np.ndarray]) -> OpDef:
    def infer(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        x = inputs[0]
        check_dtype(name, "x", x.dtype, REALS)
        axes = (check_axis(name, attrs["axis"], len(x.shape)),)
        _nonempty(name, x.shape, axes)
        return TensorType("int64", _reduced(x.shape, axes, attrs["keepdim"]))

    def evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
        # numpy too takes the first NaN for the extreme
        result = function(inputs[0], axis=attrs["axis"], keepdims=attrs["keepdim"])
        return np.array(result, np.int64, order="C", copy=None)

    def samples() -> Iterator[Sample]:
        rng = np.random.default_rng(8)
        for dtype in ("float32", "int64", "int32"):
            for shape in ((5,), (3, 40), (2, 3, 4)):
                x = (rng.standard_normal(shape) * 3).astype(dtype)
                for axis in range(len(shape)):
                    yield Sample([x], {"axis": axis, "keepdim": axis == 1})
        special = np.array([[1, np.nan, np.nan], [np.inf, 1, np.inf], [2, 2, 2]], np.float32)
        yield Sample([special], {"axis": 1})

    return OpDef(
        name=name,
        doc=f"Index of the {'largest' if name == 'ARGMAX' else 'smallest'} element along an axis: "
        "the first of equals, and the first NaN if there is one.",
        inputs=(1, 1),
        infer=infer,
        evaluate=evaluate,
        samples=samples,
        attrs={"axis": Attr("int"), "keepdim": Attr("bool", False)},
    )


def _scan(name: str, doc: str, function: Callable[..., np.ndarray], native: bool) -> OpDef:
    def infer(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
        check_dtype(name, "x", inputs[0].dtype, REALS)
        check_axis(name, attrs["axis"], len(inputs[0].shape))
        return inputs[0]

    def evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
        x = inputs[0]
        with np.errstate(all="ignore"):
            return np.ascontiguousarray(function(x, axis=attrs["axis"], dtype=x.dtype))

    def samples() -> Iterator[Sample]:
        rng = np.random.default_rng(9)
        for dtype in ("float32", "int64", "float64"):
            for shape in ((5,), (3, 40), (2, 3, 4), (2, 0)):
                x = (rng.standard_normal(shape) * 2).astype(dtype)
                for axis in range(len(shape)):
                    yield Sample([x], {"axis": axis}, native and dtype != "float64")

    return OpDef(
        name=name,
        doc=doc,
        inputs=(1, 1),
        infer=infer,
        evaluate=evaluate,
        samples=samples,
        attrs={"axis": Attr("int")},
        native=native,
    )


_NUMERIC = ("float32", "int64")
REDUCTIONS = [
    _reduction("SUM", "Sum over axes.", _sum, REALS, _NUMERIC),
    _reduction("MEAN", "Mean over axes; NaN where there is nothing.", _mean, FLOATS, ("float32",)),
    _reduction("PROD", "Product over axes.", np.prod, REALS, _NUMERIC),
    _reduction(
        "AMAX",
        "Largest over axes; NaN if any is.",
        np.max,
        COMPUTED,
        ("float32", "int64", "int32", "bool"),
        identity=False,
    ),
    _reduction(
        "AMIN",
        "Smallest over axes; NaN if any is.",
        np.min,
        COMPUTED,
        ("float32", "int64", "int32", "bool"),
        identity=False,
    ),
    _reduction("ANY", "Whether any is true.", np.any, ("bool",), ("bool",)),
    _reduction("ALL", "Whether all are true.", np.all, ("bool",), ("bool",)),
    OpDef(
        name="VAR",
        doc="Variance over axes, divided by max(0, count - correction).",
        inputs=(1, 1),
        infer=_infer_var,
        evaluate=_var,
        samples=_samples_var,
        attrs={
            "axes": Attr("ints"),
            "keepdim": Attr("bool", False),
            "correction": Attr("float", 1.0),
        },
    ),
    _arg("ARGMAX", np.argmax),
    _arg("ARGMIN", np.argmin),
    _scan("CUMSUM", "Running sum along an axis.", np.cumsum, native=True),
    _scan("CUMPROD", "Running product along an axis.", np.cumprod, native=False),
]
