"""Softmax and the norms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.errors import OpError
from taper_runtime.ops.opdef import Attr, Attrs, Cost, OpDef, Sample, TensorType
from taper_runtime.ops.rules import FLOATS, check_axis, check_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def _infer_softmax(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_dtype("SOFTMAX", "x", inputs[0].dtype, FLOATS)
    check_axis("SOFTMAX", attrs["axis"], len(inputs[0].shape))
    return inputs[0]


def _softmax(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, axis = inputs[0], attrs["axis"]
    with np.errstate(all="ignore"):
        shifted = x - x.max(axis, keepdims=True, initial=-np.inf)
        total = np.exp(shifted).sum(axis, keepdims=True)
        result = shifted - np.log(total) if attrs["log"] else np.exp(shifted) / total
    return np.ascontiguousarray(result, x.dtype)


def _samples_softmax() -> Iterator[Sample]:
    rng = np.random.default_rng(3)
    for shape in ((5,), (3, 7), (2, 3, 33), (2, 0, 3), (1, 1000)):
        x = rng.standard_normal(shape).astype(np.float32) * 4
        for axis in range(len(shape)):
            yield Sample([x], {"axis": axis})
            yield Sample([x], {"axis": axis, "log": True})
    special = np.array(
        [[1, -np.inf, 2], [-np.inf] * 3, [np.nan, 0, 1], [np.inf, 0, 1], [90, 89, -90]], np.float32
    )
    yield Sample([special], {"axis": 1})
    yield Sample([special], {"axis": 0, "log": True})
    yield Sample([rng.standard_normal((2, 3))], {"axis": 1}, native=False)


def _trailing(op: str, x: TensorType, dims: int) -> tuple[int, ...]:
    if not 1 <= dims <= len(x.shape):
        raise OpError(f"{op}: dims: expected 1 to {len(x.shape)}, got {dims}")
    return x.shape[len(x.shape) - dims :]


def _check_parameters(op: str, inputs: Sequence[TensorType], dims: int) -> TensorType:
    x = inputs[0]
    check_dtype(op, "x", x.dtype, FLOATS)
    expected = TensorType(x.dtype, _trailing(op, x, dims))
    for t in inputs[1:]:
        if t != expected:
            raise OpError(f"{op}: expected weight and bias of {expected}, got {t}")
    return x


def _infer_layer_norm(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    count = 1 + attrs["has_weight"] + attrs["has_bias"]
    if len(inputs) != count:
        raise OpError(f"LAYER_NORM: expected {count} inputs, got {len(inputs)}")
    return _check_parameters("LAYER_NORM", inputs, attrs["dims"])


def _layer_norm(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, *rest = inputs
    axes = tuple(range(x.ndim - attrs["dims"], x.ndim))
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        centred = wide - wide.mean(axes, keepdims=True)
        variance = (centred * centred).mean(axes, keepdims=True)
        y = centred / np.sqrt(variance + attrs["eps"])
        if attrs["has_weight"]:
            y = y * rest.pop(0)
        if attrs["has_bias"]:
            y = y + rest.pop(0)
    return np.ascontiguousarray(y, x.dtype)


def _infer_rms_norm(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    return _check_parameters("RMS_NORM", inputs, attrs["dims"])


def _rms_norm(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x = inputs[0]
    axes = tuple(range(x.ndim - attrs["dims"], x.ndim))
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        y = wide / np.sqrt((wide * wide).mean(axes, keepdims=True) + attrs["eps"])
        if len(inputs) == 2:
            y = y * inputs[1]
    return np.ascontiguousarray(y, x.dtype)


_NORM_SHAPES = (
    ((4, 33), 1),
    ((2, 3, 16), 1),
    ((2, 3, 5), 2),
    ((7,), 1),
    ((0, 4), 1),
    ((3, 1000), 1),
)


def _samples_layer_norm() -> Iterator[Sample]:
    rng = np.random.default_rng(4)
    for shape, dims in _NORM_SHAPES:
        x = rng.standard_normal(shape).astype(np.float32)
        parameters = [rng.standard_normal(shape[-dims:]).astype(np.float32) for _ in range(2)]
        base = {"dims": dims, "eps": 1e-5}
        yield Sample([x, *parameters], base)
        yield Sample([x, parameters[0]], {**base, "has_bias": False})
        yield Sample([x, parameters[1]], {**base, "has_weight": False})
        yield Sample([x], {**base, "has_weight": False, "has_bias": False})
    # a mean far from zero: the variance must not be computed by cancellation
    far = (rng.standard_normal((3, 64)) + 1e4).astype(np.float32)
    yield Sample([far], {"dims": 1, "eps": 1e-5, "has_weight": False, "has_bias": False})


def _samples_rms_norm() -> Iterator[Sample]:
    rng = np.random.default_rng(5)
    for shape, dims in _NORM_SHAPES:
        x = rng.standard_normal(shape).astype(np.float32)
        weight = rng.standard_normal(shape[-dims:]).astype(np.float32)
        yield Sample([x, weight], {"dims": dims, "eps": 1e-6})
        yield Sample([x], {"dims": dims, "eps": 1e-6})


def _cost(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    return Cost(5 * output.size, output.nbytes + sum(t.nbytes for t in inputs))


SOFTMAX = OpDef(
    name="SOFTMAX",
    doc="exp(x - max) / sum(exp(x - max)) along an axis, or its logarithm.",
    inputs=(1, 1),
    infer=_infer_softmax,
    evaluate=_softmax,
    samples=_samples_softmax,
    attrs={"axis": Attr("int"), "log": Attr("bool", False)},
    inplace=(0,),
    cost=_cost,
)
LAYER_NORM = OpDef(
    name="LAYER_NORM",
    doc="(x - mean) / sqrt(variance + eps) over the last `dims` axes, times weight and plus bias "
    "where given.",
    inputs=(1, 3),
    infer=_infer_layer_norm,
    evaluate=_layer_norm,
    samples=_samples_layer_norm,
    attrs={
        "dims": Attr("int"),
        "eps": Attr("float"),
        "has_weight": Attr("bool", True),
        "has_bias": Attr("bool", True),
    },
    inplace=(0,),
    cost=_cost,
)
RMS_NORM = OpDef(
    name="RMS_NORM",
    doc="x / sqrt(mean(x^2) + eps) over the last `dims` axes, times weight where given.",
    inputs=(1, 2),
    infer=_infer_rms_norm,
    evaluate=_rms_norm,
    samples=_samples_rms_norm,
    attrs={"dims": Attr("int"), "eps": Attr("float")},
    inplace=(0,),
    cost=_cost,
)
