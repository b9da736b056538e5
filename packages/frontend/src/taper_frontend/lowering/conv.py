"""Lower convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_frontend.lowering.channels import channels_first, channels_last
from taper_frontend.lowering.handlers import lowers
from taper_runtime.base.sizes import is_static

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.lowering.context import Lowering


#: A depthwise convolution with up to so many outputs per channel repeats its channels, so that all
#: lanes of a vector are used. With more outputs the grouped form fills at least half a vector.
_MOST_REPEATED = 8


@lowers("aten.convolution.default")
def convolution(
    ctx: Lowering,
    x: str,
    weight: str,
    bias: str | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> str:
    """Convolve in 1 to 3 dimensions; transposed if so requested."""
    if not is_static(groups):
        ctx.unsupported(
            f"groups: expected a number that is the same in every run, got {groups}; if each item "
            "of a batch has a weight of its own, [N, O, C, *kernel], leave the items in the batch "
            "and multiply their windows: torch.bmm(weight.flatten(2), F.unfold(x, kernel))",
            "dynamic shape",
        )
    kernel = ctx.shape(weight)[2:]
    n = len(kernel)
    stride, padding, dilation = (per_dim(v, n) for v in (stride, padding, dilation))
    high = [p - extra for p, extra in zip(padding, per_dim(output_padding, n), strict=True)]
    attrs: dict[str, Any] = {
        "kernel": kernel,
        "stride": stride,
        "padding": pairs(padding, high if transposed else padding),
        "dilation": dilation,
        "groups": groups,
    }
    x = channels_last(ctx, x)
    multiplier = ctx.shape(weight)[0] // groups
    if not transposed and groups == ctx.shape(x)[-1] > 1 and 1 < multiplier <= _MOST_REPEATED:
        x = _repeated(ctx, x, multiplier)
        attrs["groups"] = groups * multiplier
    if transposed:
        y = ctx.emit("CONV_TRANSPOSE", [x, _transposed_weight(ctx, weight, groups)], **attrs)
    elif {*kernel, *stride, groups} == {1} and not any(padding):
        matrix = ctx.permute(ctx.reshape(weight, ctx.shape(weight)[:2]), (1, 0))
        y = ctx.emit("MATMUL", [x, matrix])
    else:
        y = ctx.emit("CONV", [x, ctx.permute(weight, (*range(2, 2 + n), 1, 0))], **attrs)
    return channels_first(ctx, y if bias is None else ctx.emit("ADD", [y, bias]))


def _repeated(ctx: Lowering, x: str, times: int) -> str:
    """Repeat each channel of a channels-last tensor ``times`` times."""
    *pixels, channels = ctx.shape(x)
    each = ctx.reshape(x, (*pixels, channels, 1))
    return ctx.reshape(ctx.expand(each, (*pixels, channels, times)), (*pixels, channels * times))


def _transposed_weight(ctx: Lowering, weight: str, groups: int) -> str:
    """Permute ``[C, O/groups, *kernel]`` to ``[*kernel, C/groups, O]``."""
    channels, columns, *kernel = ctx.shape(weight)
    n = len(kernel)
    grouped = ctx.reshape(weight, (groups, channels // groups, columns, *kernel))
    moved = ctx.permute(grouped, (*range(3, 3 + n), 1, 0, 2))
    return ctx.reshape(moved, (*kernel, channels // groups, groups * columns))


def per_dim(values: int | Sequence[int], n: int) -> tuple[int, ...]:
    """Return one value per dimension; torch accepts one for all."""
    values = [values] if isinstance(values, int) else values
    return tuple(values) * (n if len(values) == 1 else 1)


def pairs(low: Sequence[int], high: Sequence[int]) -> tuple[int, ...]:
    """Return the amounts before and after each dimension, as one list."""
    return tuple(width for both in zip(low, high, strict=True) for width in both)
