"""Lower random numbers; docs/random-numbers.md describes how torch draws them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_frontend.lowering.elementwise import is_float
from taper_frontend.lowering.handlers import lowers
from taper_frontend.lowering.representation import Pairs
from taper_runtime.ops.convert import FLOATS_16_BIT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.lowering.context import Lowering, Operand

#: Up to this number, the dtype can represent every integer.
_WHOLE = {"float16": 2**11, "bfloat16": 2**8, "float32": 2**24, "float64": 2**53}


@lowers(
    "aten.rand.default", "aten.rand.generator", "aten.rand_like.default", "aten.rand_like.generator"
)
def rand(ctx: Lowering, *args: Any, **kwargs: Any) -> str:
    """Draw from [0, 1)."""
    if ctx.output.dtype == "complex64":
        return _pairs(ctx, "uniform")
    return ctx.cast(_draw(ctx, "uniform", _real(ctx)), ctx.output.dtype)


@lowers("aten.uniform.default")
def uniform(ctx: Lowering, x: str, low: float = 0, high: float = 1, **kwargs: Any) -> str:
    """Draw from [low, high)."""
    return _scaled(ctx, _draw(ctx, "uniform", _real(ctx)), high - low, low)


@lowers(
    "aten.randn.default",
    "aten.randn.generator",
    "aten.randn_like.default",
    "aten.randn_like.generator",
)
def randn(ctx: Lowering, *args: Any, **kwargs: Any) -> str:
    """Draw standard normals; for complex numbers, each part has variance 1/2."""
    if ctx.output.dtype == "complex64":
        return Pairs(ctx.apply("MUL", str(_pairs(ctx, "normal")), 0.5**0.5, dtype="float32"))
    return _normal(ctx, 0, 1)


@lowers("aten.normal_functional.default")
def normal_functional(ctx: Lowering, x: str, mean: float = 0, std: float = 1, **kwargs: Any) -> str:
    """Draw normals."""
    return _normal(ctx, mean, std)


@lowers(
    "aten.normal.float_float",
    "aten.normal.Tensor_float",
    "aten.normal.float_Tensor",
    "aten.normal.Tensor_Tensor",
)
def normal(ctx: Lowering, mean: Operand, std: Operand = 1, *args: Any, **kwargs: Any) -> str:
    """Draw normals, each with its own mean and deviation."""
    return _normal(ctx, mean, std)


def _normal(ctx: Lowering, mean: Operand, std: Operand) -> str:
    law = "normal"
    if not _is_row_major(ctx):
        law = "serial_normal"
    elif ctx.output.dtype in FLOATS_16_BIT:
        law = "half_normal"
    return _scaled(ctx, _draw(ctx, law, _real(ctx)), std, mean)


@lowers("aten.log_normal.default")
def log_normal(ctx: Lowering, x: str, mean: float = 1, std: float = 2, **kwargs: Any) -> str:
    """Draw numbers whose logarithms are normal."""
    drawn = _draw(ctx, "serial_normal", "float64")
    drawn = _linear(ctx, drawn, std, mean)
    return ctx.cast(ctx.emit("EXP", [drawn]), ctx.output.dtype)


@lowers("aten.exponential.default")
def exponential(ctx: Lowering, x: str, lambd: float = 1, **kwargs: Any) -> str:
    """Draw waiting times: ``-log(1 - u) / lambd``."""
    return ctx.cast(_exponential(ctx, ctx.output.shape, lambd), ctx.output.dtype)


def _exponential(ctx: Lowering, shape: Sequence[int], lambd: float) -> str:
    drawn = ctx.emit("LOG1P", [ctx.emit("NEG", [_draw(ctx, "uniform", "float64", shape)])])
    return ctx.apply("DIV", drawn, -float(lambd), dtype="float64")


@lowers("aten.geometric.default")
def geometric(ctx: Lowering, x: str, p: float, **kwargs: Any) -> str:
    """Draw numbers of trials up to the first success: ``ceil(log(u) / log(1 - p))``."""
    drawn = ctx.emit("LOG", [_draw(ctx, "uniform", "float64")])
    drawn = ctx.apply("DIV", drawn, math.log1p(-p), dtype="float64")
    return ctx.cast(ctx.emit("CEIL", [drawn]), ctx.output.dtype)


@lowers("aten.cauchy.default")
def cauchy(ctx: Lowering, x: str, median: float = 0, sigma: float = 1, **kwargs: Any) -> str:
    """Draw ``median + sigma * tan(pi * (u - 1 / 2))``."""
    drawn = _linear(ctx, _draw(ctx, "uniform", "float64"), math.pi, -math.pi / 2)
    return ctx.cast(_linear(ctx, ctx.emit("TAN", [drawn]), sigma, median), ctx.output.dtype)


@lowers("aten.randint.default", "aten.randint.generator")
def randint(ctx: Lowering, high: int, size: Sequence[int], *args: Any, **kwargs: Any) -> str:
    """Draw integers from [0, high)."""
    return _integers(ctx, 0, high)


@lowers("aten.randint.low", "aten.randint.low_generator")
def randint_low(
    ctx: Lowering, low: int, high: int, size: Sequence[int], *args: Any, **kwargs: Any
) -> str:
    """Draw integers from [low, high)."""
    return _integers(ctx, low, high)


@lowers("aten.randint_like.default", "aten.random.to")
def randint_like(ctx: Lowering, x: str, high: int, *args: Any, **kwargs: Any) -> str:
    """Draw integers from [0, high)."""
    return _integers(ctx, 0, high)


@lowers("aten.randint_like.low_dtype", "aten.random.from")
def randint_like_low(
    ctx: Lowering, x: str, low: int, high: int | None, *args: Any, **kwargs: Any
) -> str:
    """Draw integers from [low, high)."""
    if high is None:
        ctx.unsupported("expected an upper limit of the integers, got None")
    return _integers(ctx, low, high)


@lowers("aten.random.default")
def random(ctx: Lowering, x: str, **kwargs: Any) -> str:
    """Draw integers from the whole range of the dtype, without negative ones."""
    dtype = ctx.output.dtype
    if dtype == "int64":
        return ctx.apply("BITWISE_AND", _draw(ctx, "integer", "int64"), 2**63 - 1, dtype="int64")
    # torch uses 32 bits here, although it uses 64 for as many integers elsewhere
    if dtype == "int32":
        ctx.unsupported("expected an upper limit of the integers, got None", "dtype")
    if dtype == "bool":
        return _integers(ctx, 0, 2)
    largest = _WHOLE[dtype] if dtype in _WHOLE else np.iinfo(dtype).max
    return _integers(ctx, 0, largest + 1)


def _integers(ctx: Lowering, low: int, high: int) -> str:
    drawn = _draw(ctx, "integer", "int64", limit=high - low)
    return ctx.cast(_linear(ctx, drawn, 1, low), ctx.output.dtype)


@lowers("aten.randperm.default", "aten.randperm.generator")
def randperm(ctx: Lowering, n: int, *args: Any, **kwargs: Any) -> str:
    """Shuffle 0, 1, 2..."""
    return ctx.cast(ctx.random("permutation", (n,), "int64"), ctx.output.dtype)


@lowers("aten.bernoulli.default", "aten.bernoulli.Tensor")
def bernoulli(ctx: Lowering, x: str, p: str | None = None, **kwargs: Any) -> str:
    """Draw ones, each with its own probability."""
    p = p or x
    real = "float64" if ctx.dtype(p) == "float64" else "float32"
    return _ones(ctx, ctx.expand(p, ctx.output.shape), real)


@lowers("aten.bernoulli.p")
def bernoulli_p(ctx: Lowering, x: str, p: float, **kwargs: Any) -> str:
    """Draw ones, all with the same probability."""
    return _ones(ctx, p, "float64")


def _ones(ctx: Lowering, p: Operand, real: str) -> str:
    drawn = ctx.apply("LT", _draw(ctx, "uniform", real), p, dtype=real)
    return ctx.cast(drawn, ctx.output.dtype)


@lowers("aten.native_dropout.default")
def native_dropout(ctx: Lowering, x: str, p: float, train: bool | None) -> tuple[str, str]:
    """Drop elements with probability ``p`` and scale the others; also return the mask."""
    if train is False:
        return x, ctx.full(ctx.shape(x), True, "bool")
    return _drop(ctx, x, p, _draw(ctx, "uniform", "float64"))


def dropped(ctx: Lowering, x: str, p: float) -> str:
    """Apply the dropout inside an op to a tensor in row-major order."""
    return _drop(ctx, x, p, _draw(ctx, "uniform", "float64", ctx.shape(x)))[0]


def _drop(ctx: Lowering, x: str, p: float, drawn: str) -> tuple[str, str]:
    keep = 1 - p
    dtype = ctx.dtype(x)
    kept = ctx.apply("LT", drawn, keep, dtype="float64")
    scale = ctx.apply("MUL", ctx.cast(kept, dtype), 1 / keep if keep else 0, dtype=dtype)
    return ctx.apply("MUL", x, scale, dtype=dtype), kept


@lowers("aten.rrelu.default")
def rrelu(
    ctx: Lowering,
    x: str,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: object = None,
) -> str:
    """Compute LEAKY_RELU; in training, with a random slope for each element of at most 0.

    The n-th of these elements uses the n-th number drawn. One number is drawn for every element.
    """
    dtype, shape = ctx.output.dtype, ctx.output.shape
    if not training:
        return ctx.apply("LEAKY_RELU", x, (lower + upper) / 2, dtype=dtype)
    drawn = _draw(ctx, "uniform", "float64", (ctx.output.size,))
    slope = ctx.cast(_linear(ctx, drawn, upper - lower, lower), dtype)
    sloped = ctx.apply("LE", x, 0, dtype=dtype)
    number = ctx.emit("CUMSUM", [ctx.cast(ctx.flat(sloped), "int64")], axis=0)
    number = ctx.apply("MAXIMUM", ctx.apply("SUB", number, 1, dtype="int64"), 0, dtype="int64")
    slope = ctx.reshape(ctx.emit("INDEX_SELECT", [slope, number], axis=0), shape)
    scaled = ctx.apply("MUL", x, slope, dtype=dtype)
    return ctx.apply("WHERE", sloped, scaled, x, dtype=dtype)


@lowers("aten.multinomial.default")
def multinomial(
    ctx: Lowering, p: str, num_samples: int, replacement: bool = False, **kwargs: Any
) -> str:
    """Draw indices with the probabilities in each row."""
    dtype, (*rows, categories), _ = ctx.type(p)
    axis = len(rows)
    if replacement and num_samples > 1:
        sums = ctx.emit("CUMSUM", [p], axis=axis)
        total = ctx.slice(sums, axis, categories - 1, categories)
        drawn = _draw(ctx, "uniform", "float64", (*rows, num_samples))
        sums = ctx.cast(ctx.apply("DIV", sums, total, dtype=dtype), "float64")
        return ctx.emit("SEARCHSORTED", [sums, drawn])
    times = ctx.cast(_exponential(ctx, (*rows, categories), 1), dtype)
    # the smallest waiting time, negated and inverted
    order = ctx.apply("DIV", p, times, dtype=dtype)
    order = ctx.emit("ARGSORT", [order], axis=axis, descending=True)
    return ctx.slice(order, axis, 0, num_samples)


def _pairs(ctx: Lowering, law: str) -> Pairs:
    """Draw real and imaginary parts one after the other, as torch does."""
    if not _is_row_major(ctx):
        ctx.unsupported(
            "expected a row-major tensor of complex numbers, got other strides", "dtype"
        )
    return Pairs(ctx.random(law, [*ctx.output.shape, 2], "float32", 0))


def _draw(
    ctx: Lowering, law: str, dtype: str, shape: Sequence[int] | None = None, limit: int = 0
) -> str:
    """Draw a number for each element of the result, in torch's memory order."""
    if shape is not None:
        return ctx.random(law, shape, dtype, limit)
    shape, order = ctx.output.shape, _memory_order(ctx)
    drawn = ctx.random(law, [shape[axis] for axis in order], dtype, limit)
    return ctx.permute(drawn, [order.index(axis) for axis in range(len(shape))])


def _memory_order(ctx: Lowering) -> list[int]:
    """Return the result's axes, outermost in memory first; axes of size 1 keep their places."""
    value = ctx.node.value
    value = value[0] if ctx.node.has_several_results else value
    strides = list(map(ctx.sizes.hint, value.strides))
    long = [axis for axis, size in enumerate(ctx.output.shape) if size != 1]
    moved = iter(sorted(long, key=lambda axis: -strides[axis]))
    return [next(moved) if axis in long else axis for axis in range(len(strides))]


def _is_row_major(ctx: Lowering) -> bool:
    order = _memory_order(ctx)
    return order == sorted(order)


def _real(ctx: Lowering) -> str:
    """Return the dtype in which floats are drawn; 16-bit floats are rounded afterwards."""
    dtype = ctx.output.dtype
    if not is_float(dtype):
        ctx.unsupported(f"expected floats, got {dtype}", "dtype")
    return "float64" if dtype == "float64" else "float32"


def _scaled(ctx: Lowering, drawn: str, factor: Operand, addend: Operand) -> str:
    return ctx.cast(_linear(ctx, drawn, factor, addend), ctx.output.dtype)


def _linear(ctx: Lowering, x: str, factor: Operand, addend: Operand) -> str:
    """Compute ``x * factor + addend`` in the dtype of ``x``."""
    dtype = ctx.dtype(x)
    if isinstance(factor, str) or factor != 1:
        x = ctx.apply("MUL", x, factor, dtype=dtype)
    if isinstance(addend, str) or addend != 0:
        x = ctx.apply("ADD", x, addend, dtype=dtype)
    return x
