"""Lower softmax and normalisations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.lowering.channels import per_channel
from taper_frontend.lowering.handlers import lowers
from taper_frontend.lowering.representation import resolution

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
    return ctx.emit("LAYER_NORM", [x, weight, bias], dims=len(normalized_shape), eps=eps)


@lowers("aten.native_layer_norm.default")
def native_layer_norm(
    ctx: Lowering,
    x: str,
    normalized_shape: list[int],
    weight: str | None,
    bias: str | None,
    eps: float,
) -> tuple[str, str | None, str | None]:
    """Normalise over the last dimensions; also return mean and inverse deviation."""
    y = layer_norm(ctx, x, normalized_shape, weight, bias, eps)
    if not (ctx.reads(1) or ctx.reads(2)):
        return y, None, None
    return y, *_statistics(ctx, x, range(ctx.rank(x) - len(normalized_shape), ctx.rank(x)), eps)


@lowers("aten.rms_norm.default")
def rms_norm(
    ctx: Lowering,
    x: str,
    normalized_shape: list[int],
    weight: str | None = None,
    eps: float | None = None,
) -> str:
    """Divide by the root mean square; the default ``eps`` is that of the dtype."""
    if eps is None:
        eps = resolution(ctx.dtype(x))
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
) -> tuple[str, str, str]:
    """Normalise each channel with the training statistics, as one factor and one summand."""
    dtype = ctx.output.dtype
    scale = ctx.emit("RSQRT", [ctx.apply("ADD", running_var, eps, dtype=dtype)])
    if weight is not None:
        scale = ctx.apply("MUL", scale, weight, dtype=dtype)
    shift = ctx.apply("MUL", running_mean, scale, dtype=dtype)
    shift = ctx.apply("SUB", 0 if bias is None else bias, shift, dtype=dtype)
    nothing = ctx.full((0,), 0, dtype)  # torch's results for statistics that are not computed
    return _scale_and_shift(ctx, x, scale, shift), nothing, nothing


@lowers("aten._native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    ctx: Lowering,
    x: str,
    weight: str | None,
    bias: str | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[str, ...]:
    """Normalise each channel with the statistics of the batch, and return those too."""
    statistics = _statistics(ctx, x, (0, *range(2, ctx.rank(x))), eps)
    y = _scale_and_shift(ctx, _normalise(ctx, x, *statistics), weight, bias)
    return y, *(ctx.flat(values) for values in statistics)


@lowers("aten._native_batch_norm_legit_functional.default")
def batch_norm_functional(
    ctx: Lowering,
    x: str,
    weight: str | None,
    bias: str | None,
    running_mean: str,
    running_var: str,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[str, ...]:
    """Normalise; in training, move the running statistics towards those of the batch."""
    if not training:
        results = batch_norm(ctx, x, weight, bias, running_mean, running_var, momentum, eps)
        return *results, running_mean, running_var
    axes = (0, *range(2, ctx.rank(x)))
    y, mean, inverse = batch_norm_no_stats(ctx, x, weight, bias, training, momentum, eps)
    variance = ctx.emit("VAR", [x], axes=axes, keepdim=False, correction=1.0)
    moved = (
        _towards(ctx, gathered, seen, momentum)
        for gathered, seen in ((running_mean, mean), (running_var, variance))
    )
    return y, mean, inverse, *moved


@lowers("aten.instance_norm.default")
def instance_norm(
    ctx: Lowering,
    x: str,
    weight: str | None,
    bias: str | None,
    running_mean: str | None,
    running_var: str | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> str:
    """Normalise each channel of each sample, or use the running statistics."""
    if not use_input_stats and running_mean is not None and running_var is not None:
        y, *_ = batch_norm(ctx, x, weight, bias, running_mean, running_var, momentum, eps)
        return y
    y = _normalise(ctx, x, *_statistics(ctx, x, range(2, ctx.rank(x)), eps))
    return _scale_and_shift(ctx, y, weight, bias)


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
) -> tuple[str, ...]:
    """Normalise over each group of channels, then scale and shift each channel."""
    shape = ctx.shape(x)
    grouped = (shape[0], groups, channels // groups)
    spatial = range(2, ctx.rank(x))
    if groups in (1, channels) or not spatial:
        rows = ctx.reshape(x, (*grouped, *shape[2:]))
        mean, inverse = _statistics(ctx, rows, range(2, ctx.rank(rows)), eps)
        y = ctx.reshape(_normalise(ctx, rows, mean, inverse), shape)
        y = _scale_and_shift(ctx, y, weight, bias)
    else:
        mean, inverse = _statistics_of_groups(ctx, x, spatial, grouped, eps)
        scale, shift = inverse, None if bias is None else ctx.reshape(bias, grouped[1:])
        if weight is not None:
            scale = ctx.emit("MUL", [inverse, ctx.reshape(weight, grouped[1:])])
        moved = ctx.emit("MUL", [mean, scale])
        shift = ctx.emit("SUB", [shift, moved]) if shift else ctx.emit("NEG", [moved])
        each = (shape[0], channels, *(1 for _ in spatial))
        scale, shift = (ctx.reshape(ctx.expand(values, grouped), each) for values in (scale, shift))
        y = ctx.emit("ADD", [ctx.emit("MUL", [x, scale]), shift])
    return y, *(ctx.reshape(values, (shape[0], groups)) for values in (mean, inverse))


def _statistics_of_groups(
    ctx: Lowering, x: str, spatial: Iterable[int], grouped: Sequence[int], eps: float
) -> tuple[str, str]:
    """Return mean and inverse deviation of groups of channels, both [N, groups, 1].

    They are computed from those of each channel: a group's variance is the mean of its channels'
    variances plus the variance of their means. So no sum runs over pixels and some of their
    channels, which are not adjacent in any layout.
    """
    axes = {"axes": tuple(spatial), "keepdim": False}
    means = ctx.reshape(ctx.emit("MEAN", [x], **axes), grouped)
    variances = ctx.reshape(ctx.emit("VAR", [x], correction=0.0, **axes), grouped)
    channels = {"axes": (2,), "keepdim": True}
    within = ctx.emit("MEAN", [variances], **channels)
    between = ctx.emit("VAR", [means], correction=0.0, **channels)
    return ctx.emit("MEAN", [means], **channels), _inverse(
        ctx, ctx.emit("ADD", [within, between]), eps
    )


def _towards(ctx: Lowering, start: str, end: str, step: float) -> str:
    """Interpolate linearly between two tensors."""
    dtype = ctx.dtype(start)
    kept = ctx.apply("MUL", start, 1 - step, dtype=dtype)
    return ctx.apply("ADD", kept, ctx.apply("MUL", end, step, dtype=dtype), dtype=dtype)


def _statistics(ctx: Lowering, x: str, axes: Iterable[int], eps: float) -> tuple[str, str]:
    """Return the mean over ``axes``, kept with size 1, and the inverse deviation."""
    attrs = {"axes": tuple(axes), "keepdim": True}
    variance = ctx.emit("VAR", [x], correction=0.0, **attrs)
    return ctx.emit("MEAN", [x], **attrs), _inverse(ctx, variance, eps)


def _inverse(ctx: Lowering, variance: str, eps: float) -> str:
    """Return the inverse deviation."""
    return ctx.emit("RSQRT", [ctx.apply("ADD", variance, eps, dtype=ctx.dtype(variance))])


def _normalise(ctx: Lowering, x: str, mean: str, inverse: str) -> str:
    """Subtract the mean and divide by the deviation.

    This form is valid in every layout. If the statistics are over the last axes, a pass replaces it
    by a LAYER_NORM.
    """
    return ctx.emit("MUL", [ctx.emit("SUB", [x, mean]), inverse])


def _scale_and_shift(ctx: Lowering, x: str, scale: str | None, shift: str | None) -> str:
    """Multiply and add per channel, or per group and channel."""
    dtype = ctx.dtype(x)
    if scale is not None:
        x = ctx.apply("MUL", x, per_channel(ctx, scale, x), dtype=dtype)
    if shift is not None:
        x = ctx.apply("ADD", x, per_channel(ctx, shift, x), dtype=dtype)
    return x
