"""Lower quantization: the ops of PT2E, those of torchao, and products with packed weights.

What quantizes becomes QUANTIZE, what decodes DEQUANTIZE, both with the scales and zero points that
the model has. Scales stay in their dtype.

torch packs int4 weights for CPUs in an order that depends on the vector size of the CPU, which the
packed tensor does not record. So the lowering assumes the packing of this process. If the weights
of a module or ``.pt2`` file were packed on a CPU with other vectors (or under another
``ATEN_CPU_CAPABILITY``), torch computes wrong results here, and so does the export.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from taper_frontend.compiler.graph.constants import visible
from taper_frontend.lowering.handlers import lowers
from taper_runtime.ops.convert import FLOATS_16_BIT, cast
from taper_runtime.ops.quant import block_shapes
from taper_runtime.ops.type_rules import INTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taper_frontend.lowering.context import Lowering

# -- PT2E: quantized_decomposed --------------------------------------------------------------------


@lowers("quantized_decomposed.quantize_per_tensor.default")
def quantize_per_tensor(
    ctx: Lowering, x: str, scale: float, zero: int, low: int, high: int, dtype: str
) -> str:
    """Quantize by two numbers; torch computes the reciprocal of the scale in float64."""
    x, factor = ctx.cast(x, "float32"), _scale(ctx, scale)
    if 1 / np.float32(scale) != np.float32(1 / scale):  # QUANTIZE would compute another one
        y = ctx.emit("ROUND", [ctx.apply("MUL", x, 1 / scale, dtype="float32")])
        y = ctx.apply("ADD", y, zero, dtype="float32")
        y = ctx.apply("MAXIMUM", y, low, dtype="float32")
        return ctx.cast(ctx.apply("MINIMUM", y, high, dtype="float32"), dtype)
    return _quantize(ctx, x, factor, _number(ctx, zero), low, high, dtype)


@lowers(
    "quantized_decomposed.quantize_per_tensor.tensor",
    "quantized_decomposed.quantize_per_tensor.tensor2",
)
def quantize_per_tensor_by_tensors(
    ctx: Lowering, x: str, scale: str, zero: str, low: int | str, high: int | str, dtype: str
) -> str:
    """Quantize by tensors of one element."""
    x, scale = ctx.cast(x, "float32"), ctx.cast(ctx.reshape(scale, ()), "float32")
    return _quantize(
        ctx, x, scale, ctx.reshape(zero, ()), _fixed(ctx, low), _fixed(ctx, high), dtype
    )


@lowers("quantized_decomposed.dequantize_per_tensor.default")
def dequantize_per_tensor(
    ctx: Lowering,
    q: str,
    scale: float,
    zero: int,
    low: int,
    high: int,
    dtype: str,
    out_dtype: str | None = None,
) -> str:
    """Decode by two numbers."""
    return _dequantize(ctx, q, _scale(ctx, scale), _number(ctx, zero), ctx.output.dtype)


@lowers(
    "quantized_decomposed.dequantize_per_tensor.tensor",
    "quantized_decomposed.dequantize_per_tensor.tensor2",
)
def dequantize_per_tensor_by_tensors(
    ctx: Lowering,
    q: str,
    scale: str,
    zero: str,
    low: int | str,
    high: int | str,
    dtype: str,
    out_dtype: str | None = None,
) -> str:
    """Decode by tensors of one element."""
    scale = ctx.cast(ctx.reshape(scale, ()), "float32")
    return _dequantize(ctx, q, scale, ctx.reshape(zero, ()), ctx.output.dtype)


@lowers("quantized_decomposed.quantize_per_channel.default")
def quantize_per_channel(
    ctx: Lowering, x: str, scales: str, zeros: str, axis: int, low: int, high: int, dtype: str
) -> str:
    """Quantize by a scale for each index of an axis."""
    scales, zeros = (_along(ctx, each, x, axis) for each in (scales, zeros))
    return _quantize(ctx, *_promoted(ctx, ctx.cast(x, "float32"), scales), zeros, low, high, dtype)


@lowers("quantized_decomposed.dequantize_per_channel.default")
def dequantize_per_channel(
    ctx: Lowering,
    q: str,
    scales: str,
    zeros: str | None,
    axis: int,
    low: int,
    high: int,
    dtype: str,
    out_dtype: str | None = None,
) -> str:
    """Decode by a scale for each index of an axis."""
    scales = _along(ctx, scales, q, axis)
    if zeros is not None:
        q, zeros = _without_zeros_of_8_bits(ctx, q, _along(ctx, zeros, q, axis))
    return _dequantize(ctx, q, scales, zeros, ctx.output.dtype)


@lowers("quantized_decomposed.fake_quant_per_channel.default")
def fake_quant_per_channel(
    ctx: Lowering, x: str, scales: str, zeros: str, axis: int, low: int, high: int
) -> str:
    """Quantize by a scale for each index of an axis, and decode again."""
    scales, zeros = (_along(ctx, each, x, axis) for each in (scales, zeros))
    scales, zeros = ctx.cast(scales, "float32"), ctx.cast(zeros, "int32")
    q = _quantize(ctx, x, scales, zeros, low, high, "int32")
    return _dequantize(ctx, q, scales, zeros, "float32")


@lowers("quantized_decomposed.quantize_per_token.default")
def quantize_per_token(
    ctx: Lowering, x: str, scales: str, zeros: str, low: int, high: int, dtype: str
) -> str:
    """Quantize by a scale for each run of the last axis; zero points are added before rounding."""
    return _quantize_blocks(ctx, x, scales, zeros, _runs(ctx, x), low, high, dtype)


@lowers("quantized_decomposed.dequantize_per_token.default")
def dequantize_per_token(
    ctx: Lowering,
    q: str,
    scales: str,
    zeros: str,
    low: int,
    high: int,
    dtype: str,
    output_dtype: str,
) -> str:
    """Decode by a scale for each run of the last axis."""
    return _dequantize_blocks(ctx, q, scales, zeros, _runs(ctx, q))


@lowers("quantized_decomposed.quantize_per_channel_group.default")
def quantize_per_channel_group(
    ctx: Lowering,
    x: str,
    scales: str,
    zeros: str,
    low: int,
    high: int,
    dtype: str,
    group: int = 128,
) -> str:
    """Quantize by a scale for each group of the last axis, adding zero points before rounding."""
    return _quantize_blocks(ctx, x, scales, zeros, _groups(ctx, x, group), low, high, dtype)


@lowers("quantized_decomposed.dequantize_per_channel_group.default")
def dequantize_per_channel_group(
    ctx: Lowering,
    q: str,
    scales: str,
    zeros: str | None,
    low: int,
    high: int,
    dtype: str,
    group: int = 128,
    output_dtype: str = "float32",
) -> str:
    """Decode by a scale for each group of the last axis."""
    return _dequantize_blocks(ctx, q, scales, zeros, _groups(ctx, q, group))


@lowers(
    "quantized_decomposed.choose_qparams.tensor",
    "quantized_decomposed.choose_qparams_symmetric.tensor",
)
def choose_qparams(
    ctx: Lowering, x: str, low: int, high: int, eps: float, dtype: str
) -> tuple[str, str]:
    """Choose one scale and zero point for all elements: float64 and int64 ``[1]``."""
    mapping = "ASYMMETRIC" if ctx.aten == "choose_qparams" else "SYMMETRIC"
    least, most = _extremes(ctx, x, tuple(range(ctx.rank(x))), False)
    scale, zero = _choose(ctx, least, most, mapping, low, high, eps)
    if mapping == "SYMMETRIC":
        zero = ctx.full((), 128 if dtype == "uint8" else 0, "int64")
    scale, zero = ctx.cast(scale, "float64"), ctx.cast(zero, "int64")
    return ctx.reshape(scale, (1,)), ctx.reshape(zero, (1,))


@lowers("quantized_decomposed.choose_qparams_per_token_asymmetric.default")
def choose_qparams_per_token_asymmetric(ctx: Lowering, x: str, dtype: str) -> tuple[str, str]:
    """Choose a scale and a zero point for each run of the last axis, as XNNPACK does."""
    low, high, last = -128, 127, ctx.rank(x) - 1
    least, most = _extremes(ctx, x, (last,), True)
    of = ctx.dtype(x)
    least = _step(ctx, "MINIMUM", least, 0, dtype=of)
    most = _step(ctx, "MAXIMUM", most, 0, dtype=of)
    scale = _step(ctx, "DIV", _step(ctx, "SUB", most, least, dtype=of), high - low, dtype=of)
    scale = _step(ctx, "MAXIMUM", scale, float(np.finfo(np.float32).eps), dtype=of)
    least, most = (_step(ctx, "DIV", each, scale, dtype=of) for each in (least, most))
    errors = _step(
        ctx,
        "ADD",
        _step(ctx, "ADD", least, low, dtype=of),
        _step(ctx, "ADD", most, high, dtype=of),
        dtype=of,
    )
    is_from_low = ctx.apply("GT", ctx.cast(errors, "float32"), 0, dtype="float32")
    zero = _step(
        ctx,
        "WHERE",
        is_from_low,
        _step(ctx, "SUB", low, least, dtype=of),
        _step(ctx, "SUB", high, most, dtype=of),
        dtype=of,
    )
    zero = _step(ctx, "ROUND", _clamped(ctx, zero, low, high, of), dtype=of)
    return ctx.cast(scale, "float64"), ctx.cast(zero, "int64")


@lowers("quantized_decomposed.convert_element_type.no_fuse")
def convert_element_type(ctx: Lowering, x: str, dtype: str) -> str:
    """Cast."""
    return ctx.cast(x, dtype)


# -- torchao ---------------------------------------------------------------------------------------


@lowers("torchao.quantize_affine.default")
def quantize_affine(
    ctx: Lowering,
    x: str,
    block: Sequence[int],
    scales: str,
    zeros: str | None,
    dtype: str,
    low: float | None = None,
    high: float | None = None,
) -> str:
    """Quantize by a scale for each block of ``block`` elements."""
    shape = _counts(ctx, x, block)
    zeros = None if zeros is None else ctx.reshape(zeros, shape)
    low, high = _range(ctx, dtype, low, high)
    x, scales = _promoted(ctx, x, ctx.reshape(scales, shape))
    return _quantize(ctx, x, scales, zeros, low, high, dtype)


@lowers("torchao.dequantize_affine.default")
def dequantize_affine(
    ctx: Lowering,
    q: str,
    block: Sequence[int],
    scales: str,
    zeros: str | None,
    dtype: str,
    low: float | None = None,
    high: float | None = None,
    output_dtype: str = "float32",
) -> str:
    """Decode by a scale for each block of ``block`` elements."""
    shape = _counts(ctx, q, block)
    zeros = None if zeros is None else ctx.reshape(zeros, shape)
    return _dequantize(ctx, q, ctx.reshape(scales, shape), zeros, ctx.output.dtype)


@lowers("torchao.choose_qparams_affine.default")
def choose_qparams_affine(
    ctx: Lowering,
    x: str,
    mapping: str,
    block: Sequence[int],
    dtype: str,
    low: float | None = None,
    high: float | None = None,
    eps: float | None = None,
    scale_dtype: str | None = None,
    zero_point_dtype: str | None = None,
    keepdim: bool = False,
) -> tuple[str, str]:
    """Choose a scale and a zero point for each block of ``block`` elements."""
    shapes = block_shapes(ctx.shape(x), _counts(ctx, x, block))
    assert shapes is not None
    axes = tuple(axis for axis, count in enumerate(shapes[1]) if count == 1)
    split = ctx.reshape(x, shapes[0])
    least, most = _extremes(ctx, split, axes, False) if axes else (split, split)
    if eps is None:
        eps = 2.0**-14 if ctx.dtype(x) == "float16" else 2.0**-126
    scale, zero = _choose(ctx, least, most, mapping, *_range(ctx, dtype, low, high), eps)
    results = []
    for each, type_ in zip((scale, zero), ctx.outputs, strict=True):
        assert type_ is not None
        results.append(ctx.reshape(ctx.cast(each, type_.dtype), type_.shape))
    return results[0], results[1]


# -- products --------------------------------------------------------------------------------------


@lowers("aten._int_mm.default")
def int_mm(ctx: Lowering, a: str, b: str) -> str:
    """Multiply int8 or uint8 matrices, with sums in int32."""
    return ctx.emit("MATMUL", [a, b], accumulate="int32")


@lowers("aten._weight_int8pack_mm.default")
def weight_int8pack_mm(ctx: Lowering, x: str, weight: str, scales: str) -> str:
    """Compute ``(x @ weight.T) * scales``, with an int8 row and a scale per output column."""
    matrix = ctx.emit("TRANSPOSE", [ctx.cast(weight, ctx.dtype(x))], axis0=0, axis1=1)
    return ctx.emit("MUL", [ctx.emit("MATMUL", [x, matrix]), scales])


#: Ops that pack the parameters of a product, whose handlers return these parameters.
PREPACKS = frozenset({"quantized.linear_prepack_fp16.default"})

_LARGEST_HALF = 65504.0


@lowers("quantized.linear_prepack_fp16.default")
def linear_prepack_fp16(
    ctx: Lowering, weight: str, bias: str | None = None
) -> tuple[str, str | None]:
    """Return the parameters as they are: a plan packs constants once."""
    return weight, bias


@lowers("quantized.linear_dynamic_fp16.default")
def linear_dynamic_fp16(
    ctx: Lowering, x: str, packed: tuple[str, str | None], reduce_range: bool = False
) -> str:
    """Compute ``x @ weight.T + bias`` with the weight rounded to float16, sums in float32."""
    return linear_dynamic_fp16_unpacked_weight(ctx, x, *packed)


@lowers("quantized.linear_relu_dynamic_fp16.default")
def linear_relu_dynamic_fp16(
    ctx: Lowering, x: str, packed: tuple[str, str | None], reduce_range: bool = False
) -> str:
    """Compute :func:`linear_dynamic_fp16` and RELU."""
    return ctx.emit("RELU", [linear_dynamic_fp16_unpacked_weight(ctx, x, *packed)])


@lowers("quantized.linear_dynamic_fp16_unpacked_weight.default")
def linear_dynamic_fp16_unpacked_weight(
    ctx: Lowering, x: str, weight: str, bias: str | None = None
) -> str:
    """Compute :func:`linear_dynamic_fp16` of a weight and a bias.

    A number beyond float16 becomes its largest one, a NaN the least, as in torch.
    """
    is_number = ctx.apply("EQ", weight, weight, dtype="float32")
    weight = ctx.apply("MINIMUM", weight, _LARGEST_HALF, dtype="float32")
    weight = ctx.apply("MAXIMUM", weight, -_LARGEST_HALF, dtype="float32")
    weight = ctx.apply("WHERE", is_number, weight, -_LARGEST_HALF, dtype="float32")
    half = ctx.cast(ctx.cast(weight, "float16"), "float32")
    y = ctx.emit("MATMUL", [x, half], transpose_b=True)
    return y if bias is None else ctx.apply("ADD", y, bias, dtype="float32")


_ZERO = 8  # the int4 value that represents a group's zero point


@lowers("aten._weight_int4pack_mm_for_cpu.default")
def weight_int4pack_mm(
    ctx: Lowering, x: str, weight: str, group: int, scales_and_zeros: str
) -> str:
    """Compute ``x @ w.T`` with ``w = (q - 8) * scale + zero`` per group, from packed q."""
    rows, k = ctx.shape(weight)[0], 2 * ctx.shape(weight)[1]
    dtype = ctx.dtype(x)
    q = ctx.reshape(_unpack(ctx, weight), (rows, k // group, group))
    scales, zeros = (
        ctx.permute(ctx.slice(scales_and_zeros, 2, i, i + 1), (1, 0, 2)) for i in range(2)
    )
    w = ctx.apply("SUB", ctx.cast(q, dtype), _ZERO, dtype=dtype)
    w = ctx.apply("ADD", ctx.apply("MUL", w, scales, dtype=dtype), zeros, dtype=dtype)
    w = ctx.permute(ctx.reshape(w, (rows, k)), (1, 0))
    return ctx.emit("MATMUL", [x, w])


def _unpack(ctx: Lowering, weight: str) -> str:
    """Unpack ``[N, K/2]`` bytes to the integers ``[N, K]``, uint8.

    Blocks of rows follow each other; the last one has the remaining rows. A block has ``[K,
    rows/2]`` bytes.
    """
    rows = ctx.shape(weight)[0]
    try:
        block, are_halves = _packing()
    except ImportError:
        ctx.unsupported("torch says how its int4 weights are packed, and is not installed")
    whole = rows // block * block
    parts = [
        _unpack_blocks(ctx, ctx.slice(weight, 0, start, stop), size, are_halves and size == block)
        for start, stop, size in ((0, whole, block), (whole, rows, rows - whole))
        if start < stop
    ]
    return ctx.emit("CAT", parts, axis=0) if len(parts) > 1 else parts[0]


def _unpack_blocks(ctx: Lowering, weight: str, size: int, are_halves: bool) -> str:
    rows, half = ctx.shape(weight)
    pairs = ctx.reshape(weight, (rows // size, 2 * half, size // 2, 1))
    low = ctx.apply("BITWISE_AND", pairs, 15, dtype="uint8")
    high = ctx.emit("RIGHT_SHIFT", [pairs, ctx.full((), 4, "uint8")])
    apart = ctx.emit("CAT", [low, high], axis=2 if are_halves else 3)
    apart = ctx.reshape(apart, (rows // size, 2 * half, size))
    return ctx.reshape(ctx.permute(apart, (0, 2, 1)), (rows, 2 * half))


def _packing() -> tuple[int, bool]:
    """Find how torch packs on this CPU, by packing an example.

    Returns
    -------
    tuple of int and bool
        The rows of a block, and whether a byte holds one row of the block's first half and one of
        its second half, instead of two neighbouring rows.
    """
    import torch  # noqa: TID251  (no other code knows the order)

    rows, k = 128, 32
    digits = [
        torch.ops.aten._convert_weight_to_int4pack_for_cpu(
            digit.to(torch.int32)[:, None].expand(rows, k).contiguous(), 1
        ).flatten()
        for digit in (torch.arange(rows) % 16, torch.arange(rows) // 16)
    ]
    low, high = (
        [int(row) for row in digits[0] // place % 16 + digits[1] // place % 16 * 16]
        for place in (1, 16)
    )
    return 2 * low.index(0, 1), high[0] != 1


# -- pieces ----------------------------------------------------------------------------------------


def _quantize(
    ctx: Lowering,
    x: str,
    scale: str,
    zero: str | None,
    low: int,
    high: int,
    dtype: str,
    shift_first: bool = False,
) -> str:
    """Emit QUANTIZE, or the steps of 16-bit floats, each of which torch rounds."""
    _check_constants(ctx, scale, zero)
    if ctx.dtype(x) in FLOATS_16_BIT:
        return _quantize_in_steps(ctx, x, scale, zero, low, high, dtype, shift_first)
    inputs = [x, scale] if zero is None else [x, scale, _integers(ctx, zero)]
    attrs = {"shift_first": True} if shift_first else {}
    return ctx.emit("QUANTIZE", inputs, dtype=dtype, low=low, high=high, **attrs)


def _quantize_in_steps(
    ctx: Lowering,
    x: str,
    scale: str,
    zero: str | None,
    low: int,
    high: int,
    dtype: str,
    shift_first: bool,
) -> str:
    """Quantize as QUANTIZE does, with each step rounded to the dtype of x."""
    shape, of = ctx.shape(x), ctx.dtype(x)
    shapes = block_shapes(shape, ctx.shape(scale))
    assert shapes is not None
    x, scale = (ctx.reshape(each, to) for each, to in zip((x, scale), shapes, strict=True))
    y = _step(ctx, "MUL", x, _step(ctx, "DIV", 1.0, scale, dtype=of), dtype=of)
    steps = ["ROUND"]
    if zero is not None:
        steps.insert(0 if shift_first else 1, "ADD")
        zero = ctx.reshape(_integers(ctx, zero), shapes[1])
    for op in steps:
        y = _step(ctx, op, y, *([zero] if op == "ADD" and zero is not None else []), dtype=of)
    y = _clamped(ctx, y, low, high, of)
    return ctx.reshape(ctx.cast(y, dtype), shape)


def _step(ctx: Lowering, op: str, *operands: str | float, dtype: str) -> str:
    """Apply an op in a dtype; in one of 16 bits in float32, rounded."""
    if dtype not in FLOATS_16_BIT:
        return ctx.apply(op, *operands, dtype=dtype)
    return ctx.cast(ctx.apply(op, *operands, dtype="float32"), dtype)


def _clamped(ctx: Lowering, x: str, low: float, high: float, dtype: str) -> str:
    return _step(ctx, "MINIMUM", _step(ctx, "MAXIMUM", x, low, dtype=dtype), high, dtype=dtype)


def _extremes(ctx: Lowering, x: str, axes: tuple[int, ...], keepdim: bool) -> list[str]:
    """Return the least and the greatest elements along axes, in the dtype of x."""
    of = ctx.dtype(x)
    wide = ctx.cast(x, "float32") if of in FLOATS_16_BIT else x
    return [
        ctx.cast(ctx.emit(op, [wide], axes=axes, keepdim=keepdim), of) for op in ("AMIN", "AMAX")
    ]


def _dequantize(ctx: Lowering, q: str, scale: str, zero: str | None, dtype: str) -> str:
    """Emit DEQUANTIZE."""
    _check_constants(ctx, scale, zero)
    inputs = [q, scale] if zero is None else [q, scale, _integers(ctx, zero)]
    return ctx.emit("DEQUANTIZE", inputs, dtype=dtype)


def _integers(ctx: Lowering, zero: str) -> str:
    if ctx.dtype(zero) not in INTS:
        ctx.unsupported(f"expected zero points of an integer dtype, got {ctx.dtype(zero)}", "dtype")
    return zero


def _check_constants(ctx: Lowering, scale: str, zero: str | None) -> None:
    """Refuse scales and zero points that quantize nothing, where they are constants."""
    _check_constant(ctx, scale, "finite scales above 0", lambda x: (x > 0) & (x < math.inf))
    if zero is not None:
        _check_constant(ctx, zero, "zero points of 32 bits", lambda x: abs(x + 0.5) < 2**31)


def _check_constant(
    ctx: Lowering, name: str, expected: str, is_good: Callable[[np.ndarray], np.ndarray]
) -> None:
    producers = ctx.graph.producers
    while name in producers and producers[name].op in ("RESHAPE", "CAST"):
        name = producers[name].inputs[0]
    constant = ctx.graph.constants.get(name)
    values = None if constant is None else visible(constant)
    if values is None:
        return
    wide = cast(values, "float64")
    if not (good := is_good(wide)).all():
        ctx.unsupported(f"expected {expected} in {name}, got {wide[~good].reshape(-1)[0]:g}")


def _scale(ctx: Lowering, scale: float) -> str:
    if not 0 < scale < math.inf:
        ctx.unsupported(f"expected a scale above 0, got {scale}")
    return ctx.full((), scale, "float32")


def _number(ctx: Lowering, zero: int) -> str | None:
    if not -(2**31) <= zero < 2**31:
        ctx.unsupported(f"expected a zero point of 32 bits, got {zero}")
    return ctx.full((), zero, "int32") if zero else None


def _fixed(ctx: Lowering, limit: int | str) -> int:
    """Return a limit that may be a tensor of one element, which must be a constant."""
    if not isinstance(limit, str):
        return limit
    constant = ctx.graph.constants.get(limit)
    value = None if constant is None else visible(constant)
    if value is None:
        ctx.unsupported("expected constants as quant_min and quant_max, got computed tensors")
    return int(value.item())


def _promoted(ctx: Lowering, x: str, scales: str) -> tuple[str, str]:
    """Cast x and its scales to the dtype in which torch multiplies them."""
    dtype = ctx.result_dtype(x, scales)
    return ctx.cast(x, dtype), ctx.cast(scales, dtype)


def _along(ctx: Lowering, parameters: str, x: str, axis: int) -> str:
    """Reshape parameters ``[C]`` of an axis so that they broadcast to x."""
    shape = [1] * ctx.rank(x)
    axis = ctx.axis(x, axis)
    shape[axis] = ctx.shape(x)[axis]
    return ctx.reshape(parameters, shape)


def _quantize_blocks(
    ctx: Lowering,
    x: str,
    scales: str,
    zeros: str,
    shape: Sequence[int],
    low: int,
    high: int,
    dtype: str,
) -> str:
    """Quantize by parameters of this shape; zero points are added before rounding."""
    x, scales = _promoted(ctx, x, ctx.reshape(scales, shape))
    zeros = ctx.reshape(zeros, shape)
    return _quantize(ctx, x, scales, zeros, low, high, dtype, shift_first=True)


def _dequantize_blocks(
    ctx: Lowering, q: str, scales: str, zeros: str | None, shape: Sequence[int]
) -> str:
    """Decode by parameters of this shape."""
    if zeros is not None:
        q, zeros = _without_zeros_of_8_bits(ctx, q, ctx.reshape(zeros, shape))
    return _dequantize(ctx, q, ctx.reshape(scales, shape), zeros, ctx.output.dtype)


def _runs(ctx: Lowering, x: str) -> tuple[int, ...]:
    """Return the shape of the parameters of runs of the last axis."""
    return (*ctx.shape(x)[:-1], 1)


def _groups(ctx: Lowering, x: str, group: int) -> tuple[int, ...]:
    """Return the shape of the parameters of groups of a matrix's last axis."""
    rows, columns = ctx.shape(x)
    return rows, columns // min(group, columns)


def _counts(ctx: Lowering, x: str, block: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of the parameters of blocks: how many blocks each axis has."""
    return tuple(
        size if of == 1 else 1 if of == size else size // of
        for size, of in zip(ctx.shape(x), block, strict=True)
    )


def _range(ctx: Lowering, dtype: str, low: float | None, high: float | None) -> tuple[int, int]:
    """Return the least and the greatest integer: those of the dtype by default."""
    if dtype not in INTS:
        ctx.unsupported(f"expected integers as quantized values, got {dtype}", "dtype")
    limits = np.iinfo(dtype)
    return int(limits.min if low is None else low), int(limits.max if high is None else high)


def _without_zeros_of_8_bits(ctx: Lowering, q: str, zeros: str) -> tuple[str, str | None]:
    """Subtract zero points of 8 bits as torch does: in 8 bits, where the difference may wrap."""
    dtype = ctx.result_dtype(q, zeros)
    if dtype not in ("int8", "uint8"):
        return q, zeros
    shapes = block_shapes(ctx.shape(q), ctx.shape(zeros))
    assert shapes is not None
    blocks = (ctx.reshape(each, shape) for each, shape in zip((q, zeros), shapes, strict=True))
    return ctx.reshape(ctx.apply("SUB", *blocks, dtype=dtype), ctx.shape(q)), None


def _choose(
    ctx: Lowering, least: str, most: str, mapping: str, low: int, high: int, eps: float
) -> tuple[str, str]:
    """Choose scales and zero points, floats, from the least and the greatest values."""
    of = ctx.dtype(least)
    least = _step(ctx, "MINIMUM", least, 0, dtype=of)
    most = _step(ctx, "MAXIMUM", most, 0, dtype=of)
    if mapping == "ASYMMETRIC":
        scale = _step(ctx, "DIV", _step(ctx, "SUB", most, least, dtype=of), high - low, dtype=of)
    elif mapping == "SYMMETRIC":
        largest = _step(ctx, "MAXIMUM", _step(ctx, "NEG", least, dtype=of), most, dtype=of)
        scale = _step(ctx, "DIV", largest, (high - low) / 2, dtype=of)
    elif mapping == "SYMMETRIC_NO_CLIPPING_ERR":
        by_least = _step(ctx, "DIV", least, low, dtype=of)
        scale = _step(ctx, "MAXIMUM", by_least, _step(ctx, "DIV", most, high, dtype=of), dtype=of)
    else:
        ctx.unsupported(f"expected a mapping type that torchao defines, got {mapping}")
    scale = _step(ctx, "MAXIMUM", scale, eps, dtype=of)
    if mapping != "ASYMMETRIC":
        zero = ctx.full(ctx.shape(scale), int((high + low + 1) / 2), of)
        return scale, zero
    zero = _step(ctx, "ROUND", _step(ctx, "DIV", least, scale, dtype=of), dtype=of)
    zero = _step(ctx, "SUB", low, zero, dtype=of)
    return scale, _clamped(ctx, zero, low, high, of)
