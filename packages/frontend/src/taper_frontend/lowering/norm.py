"""Softmax and normalisations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from taper_frontend.lowering.registry import lowers

if TYPE_CHECKING:
    from taper_frontend.lowering.context import Lowering


@lowers("aten._softmax.default")
def softmax(ctx: Lowering, x: str, dim: int, half_to_float: bool) -> str:
    """Compute the softmax along one axis, in the dtype of the result."""
    return _softmax(ctx, x, dim, log=False)


@lowers("aten._log_softmax.default")
def log_softmax(ctx: Lowering, x: str, dim: int, half_to_float: bool) -> str:
    """Compute the logarithm of the softmax along one axis."""
    return _softmax(ctx, x, dim, log=True)


def _softmax(ctx: Lowering, x: str, dim: int, log: bool) -> str:
    x = ctx.cast(ctx.at_least_1d(x), ctx.output.dtype)
    y = ctx.emit("SOFTMAX", [x], axis=ctx.axis(x, dim), log=log)
    return ctx.reshape(y, ctx.output.shape)


@lowers("aten.layer_norm.default")
def layer_norm(
    ctx: Lowering,
    x: str,
    normalized_shape: list[int],
    weight: str | None = None,
    bias: str | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> str:
    """Normalise over the last dimensions."""
    return ctx.emit(
        "LAYER_NORM",
        [tensor for tensor in (x, weight, bias) if tensor is not None],
        dims=len(normalized_shape),
        eps=eps,
        has_weight=weight is not None,
        has_bias=bias is not None,
    )


@lowers("aten.native_layer_norm.default")
def native_layer_norm(
    ctx: Lowering,
    x: str,
    normalized_shape: list[int],
    weight: str | None,
    bias: str | None,
    eps: float,
) -> tuple[str, None, None]:
    """Normalise over the last dimensions; mean and deviation are for training only."""
    return layer_norm(ctx, x, normalized_shape, weight, bias, eps), None, None


@lowers("aten.rms_norm.default")
def rms_norm(
    ctx: Lowering,
    x: str,
    normalized_shape: list[int],
    weight: str | None = None,
    eps: float | None = None,
) -> str:
    """Divide by the root mean square; ``eps`` is the dtype's own if not given."""
    if eps is None:
        eps = torch.finfo(getattr(torch, ctx.dtype(x))).eps
    inputs = [x] if weight is None else [x, weight]
    return ctx.emit("RMS_NORM", inputs, dims=len(normalized_shape), eps=eps)


@lowers("aten._native_batch_norm_legit_no_training.default")
def batch_norm(
    ctx: Lowering,
    x: str,
    weight: str | None,
    bias: str | None,
    running_mean: str,
    running_var: str,
    momentum: float,
    eps: float,
) -> tuple[str, None, None]:
    """Normalise each channel with the statistics gathered in training."""
    dtype = ctx.output.dtype
    deviation = ctx.emit("RSQRT", [ctx.apply("ADD", running_var, eps, dtype=dtype)])
    scale = deviation if weight is None else ctx.emit("MUL", [deviation, weight])
    centred = ctx.emit("SUB", [x, _per_channel(ctx, running_mean, x)])
    y = ctx.emit("MUL", [centred, _per_channel(ctx, scale, x)])
    if bias is not None:
        y = ctx.emit("ADD", [y, _per_channel(ctx, bias, x)])
    return y, None, None


@lowers("aten.native_group_norm.default")
def group_norm(
    ctx: Lowering,
    x: str,
    weight: str | None,
    bias: str | None,
    batch: int,
    channels: int,
    positions: int,
    groups: int,
    eps: float,
) -> tuple[str, None, None]:
    """Normalise over each group of channels, then scale and shift each channel."""
    grouped = ctx.reshape(x, (batch, groups, channels // groups * positions))
    y = ctx.emit("LAYER_NORM", [grouped], dims=1, eps=eps, has_weight=False, has_bias=False)
    y = ctx.reshape(y, ctx.shape(x))
    if weight is not None:
        y = ctx.emit("MUL", [y, _per_channel(ctx, weight, x)])
    if bias is not None:
        y = ctx.emit("ADD", [y, _per_channel(ctx, bias, x)])
    return y, None, None


def _per_channel(ctx: Lowering, values: str, x: str) -> str:
    """Return ``values`` in the shape that broadcasts along dimension 1 of ``x``."""
    return ctx.reshape(values, ctx.shape(values) + (1,) * (ctx.rank(x) - 2))
