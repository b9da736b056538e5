"""Define QUANTIZE and DEQUANTIZE: affine quantization with a scale for each block of elements.

Both take x ``[d0, d1, ...]``, the scales ``[s0, s1, ...]`` and, if there are any, the zero points,
of the shape of the scales. The shapes are aligned at the last axes, as for broadcasting. But a size
of the scales may be any divisor of the size of x: then it says how many blocks of equal length the
axis has, and each block has one scale. So one rule holds for a scale per tensor ``[]``, per channel
``[1, C, 1]``, per token ``[T, 1]``, and per group of g elements ``[N, K/g]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.sizes import is_static
from taper_runtime.ops.convert import FLOATS_16_BIT, cast
from taper_runtime.ops.opdef import Attr, Attrs, OpDef, TensorType
from taper_runtime.ops.region import WHOLE, Region, broadcast_region
from taper_runtime.ops.type_rules import FLOATS, INTS, check_dtype, check_scalar, fail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_runtime.ops.opdef import Shape

#: The dtypes of scales, and of what DEQUANTIZE returns.
SCALES = (*FLOATS_16_BIT, *FLOATS)


def block_shapes(shape: Shape, scales: Shape) -> tuple[Shape, Shape] | None:
    """Return shapes of x and of its scales, with the same elements, that broadcast.

    An axis that has several scales and more elements than scales becomes two: its blocks, and the
    elements of a block.

    Parameters
    ----------
    shape : tuple of int
        The shape of x.
    scales : tuple of int
        The shape of the scales.

    Returns
    -------
    tuple of two tuples of int, or None
        None if the scales do not fit x.
    """
    missing = len(shape) - len(scales)
    if missing < 0:
        return None
    x: list[int] = list(shape[:missing])
    blocks: list[int] = []
    for size, count in zip(shape[missing:], scales, strict=True):
        if count in (1, size):
            x.append(size)
            blocks.append(count)
            continue
        if not (is_static(size) and is_static(count)) or count < 1 or size % count:
            return None
        x += [count, size // count]
        blocks += [count, 1]
    return tuple(x), tuple(blocks)


def _check_parameters(op: str, inputs: Sequence[TensorType]) -> None:
    """Check that scales and zero points fit x."""
    x, scale, *zero = inputs
    if block_shapes(x.shape, scale.shape) is None:
        fail(op, f"scales whose sizes divide those of x, {list(x.shape)}", list(scale.shape))
    for each in zero:
        check_dtype(op, "zero points", each.dtype, INTS)
        if each.shape != scale.shape:
            fail(op, f"zero points of the scales' shape {list(scale.shape)}", list(each.shape))


def _infer_quantize(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    dtype = check_dtype("QUANTIZE", "dtype", attrs["dtype"], INTS)
    for what, each in zip(("x", "scales"), inputs, strict=False):
        check_dtype("QUANTIZE", what, each.dtype, FLOATS)
    if inputs[0].dtype != inputs[1].dtype:
        fail("QUANTIZE", f"scales of x's dtype {inputs[0].dtype}", inputs[1].dtype)
    _check_parameters("QUANTIZE", inputs)
    low, high = (check_scalar("QUANTIZE", attrs[name], dtype) for name in ("low", "high"))
    if low > high:
        fail("QUANTIZE", "low of at most high", (low, high))
    return TensorType(dtype, inputs[0].shape)


def _infer_dequantize(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    check_dtype("DEQUANTIZE", "x", inputs[0].dtype, INTS)
    check_dtype("DEQUANTIZE", "scales", inputs[1].dtype, SCALES)
    _check_parameters("DEQUANTIZE", inputs)
    dtype = check_dtype("DEQUANTIZE", "dtype", attrs["dtype"], SCALES)
    return TensorType(dtype, inputs[0].shape)


def _in_blocks(inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Return x, the scales and the zero points in shapes that broadcast."""
    shapes = block_shapes(inputs[0].shape, inputs[1].shape)
    assert shapes is not None
    x, *parameters = inputs
    return x.reshape(shapes[0]), *(each.reshape(shapes[1]) for each in parameters)


def _evaluate_quantize(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, scale, *zero = _in_blocks(inputs)
    dtype = x.dtype
    with np.errstate(all="ignore"):
        y = x * (1 / scale).astype(dtype)
        if not attrs["shift_first"]:
            y = np.rint(y)
        for each in zero:
            y = y + each.astype(dtype)
        y = np.clip(np.rint(y), dtype.type(attrs["low"]), dtype.type(attrs["high"]))
        return cast(y.reshape(inputs[0].shape), attrs["dtype"])


def _evaluate_dequantize(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, scale, *zero = _in_blocks(inputs)
    if scale.dtype != np.float64:
        scale = cast(scale, "float32")
    with np.errstate(all="ignore"):
        y = x.astype(scale.dtype)
        for each in zero:
            y = y - each.astype(scale.dtype)
        return cast((y * scale).reshape(inputs[0].shape), attrs["dtype"])


def _region(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> list[Region]:
    """Return elementwise regions; an axis of several blocks is needed whole."""
    x, scale = inputs[0].shape, inputs[1].shape
    counts = (1,) * (len(x) - len(scale)) + scale
    whole = [count not in (1, size) for size, count in zip(x, counts, strict=True)]
    return [
        tuple(
            WHOLE if whole[axis] else relation
            for axis, relation in enumerate(broadcast_region(t.shape, x), len(x) - len(t.shape))
        )
        for t in inputs
    ]


QUANTIZE = OpDef(
    name="QUANTIZE",
    doc="Round x / scale to integers: `clamp(round(x * (1 / scale)) + zero, low, high)`, computed "
    "in the dtype of x and rounded to nearest even; with `shift_first` "
    "`clamp(round(x * (1 / scale) + zero), low, high)`. Zero points may be left out. A block of "
    "elements along an axis shares a scale: see the module.",
    inputs=(2, 3),
    infer=_infer_quantize,
    evaluate=_evaluate_quantize,
    attrs={
        "dtype": Attr("string"),
        "low": Attr("int"),
        "high": Attr("int"),
        "shift_first": Attr("bool", False),
    },
    region=_region,
    native=False,
)

DEQUANTIZE = OpDef(
    name="DEQUANTIZE",
    doc="`(x - zero) * scale`, computed in float32, or in float64 if the scales are float64, and "
    "rounded to `dtype`. Zero points may be left out. A block of elements along an axis shares a "
    "scale: see the module.",
    inputs=(2, 3),
    infer=_infer_dequantize,
    evaluate=_evaluate_dequantize,
    attrs={"dtype": Attr("string", "float32")},
    region=_region,
    native=False,
)

OPS = (QUANTIZE, DEQUANTIZE)
