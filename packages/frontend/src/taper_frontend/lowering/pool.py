"""Lower pooling."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_frontend.lowering.channels import channels_first, channels_last
from taper_frontend.lowering.conv import pairs, per_dim
from taper_frontend.lowering.elementwise import is_float
from taper_frontend.lowering.handlers import lowers
from taper_runtime.base.sizes import is_static

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.lowering.context import Lowering
    from taper_frontend.lowering.handlers import Handler

Sizes = int | list[int]


def _max_pool(n: int) -> Handler:
    """Return the handler of max pooling over ``n`` dimensions."""

    def max_pool(
        ctx: Lowering,
        x: str,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        ceil_mode: bool = False,
    ) -> tuple[str, str | None]:
        """Return the largest element of each window and its position."""
        steps = per_dim(dilation, n)
        attrs = _window(ctx, x, n, kernel_size, stride, padding, steps) | {"dilation": steps}
        y = _on_batch(ctx, x, n, "MAX_POOL", **attrs)
        if not ctx.reads(1):
            return y, None
        return y, _on_batch(ctx, x, n, "ARGMAX_POOL", **attrs)

    return max_pool


def _avg_pool(n: int) -> Handler:
    """Return the handler of average pooling over ``n`` dimensions."""

    def avg_pool(
        ctx: Lowering,
        x: str,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> str:
        """Average each window; elements that ceil_mode adds beyond the padding do not count.

        For integers the quotient is rounded toward zero.
        """
        attrs = _window(ctx, x, n, kernel_size, stride, padding, (1,) * n)
        if divisor_override is None and _is_whole(ctx, x, attrs):
            return _over_all(ctx, "MEAN", x, n)
        counted = per_dim(padding, n) if count_include_pad else (0,) * n
        attrs |= {"counted": pairs(counted, counted), "divisor": divisor_override or 0}
        dtype = ctx.dtype(x)
        x = x if is_float(dtype) else ctx.cast(x, "float64")
        return ctx.cast(_on_batch(ctx, x, n, "AVG_POOL", **attrs), dtype)

    return avg_pool


def _window(
    ctx: Lowering,
    x: str,
    n: int,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    dilation: Sequence[int],
) -> dict[str, Any]:
    """Return the attrs of a window; elements that ``ceil_mode`` adds are beyond the padding.

    ``ceil_mode`` adds a last window that the padded input does not fill, unless the window would
    begin after the input.
    """
    kernel = per_dim(kernel_size, n)
    steps = per_dim(stride, n) if stride else kernel
    low = per_dim(padding, n)
    high = []
    spatial = ctx.shape(x)[-n:]
    for size, out, *window in zip(
        spatial, ctx.output.shape[-n:], kernel, steps, dilation, low, strict=True
    ):
        taps, step, gap, pad = window
        filled = (size + 2 * pad - gap * (taps - 1) - 1) // step + 1
        high.append(pad if filled == out else pad + step - 1)
    return {"kernel": kernel, "stride": steps, "padding": pairs(low, high)}


def _is_whole(ctx: Lowering, x: str, attrs: dict[str, Any]) -> bool:
    """Return whether there is one window, which covers the whole input."""
    n = len(attrs["kernel"])
    spatial = zip(ctx.shape(x)[-n:], ctx.output.shape[-n:], attrs["kernel"], strict=True)
    starts = attrs["padding"][::2]
    return not any(starts) and all(out == 1 and taps >= size for size, out, taps in spatial)


def _over_all(ctx: Lowering, op: str, x: str, n: int) -> str:
    """Reduce the spatial dimensions to one element each."""
    rank = ctx.rank(x)
    return ctx.emit(op, [x], axes=tuple(range(rank - n, rank)), keepdim=True)


def _adaptive_avg_pool(n: int) -> Handler:
    def adaptive_avg_pool(ctx: Lowering, x: str, output_size: Sizes) -> str:
        """Average over adaptive windows."""
        return _adaptive(ctx, x, n, "AVG", "MEAN", counted=(0,) * (2 * n))

    return adaptive_avg_pool


def _adaptive_max_pool(n: int) -> Handler:
    def adaptive_max_pool(ctx: Lowering, x: str, output_size: Sizes) -> tuple[str, str | None]:
        """Return the largest element of each adaptive window, and its position."""
        y = _adaptive(ctx, x, n, "MAX", "AMAX", dilation=(1,) * n)
        if not ctx.reads(1):
            return y, None
        equal = _equal_windows(ctx, x, n)
        if equal is not None:
            return y, _on_batch(ctx, x, n, "ARGMAX_POOL", dilation=(1,) * n, **equal)
        _refuse_places_in_varying(ctx, x, n)
        return y, _places_of_largest(ctx, x, [_shares(*sizes) for sizes in _sizes(ctx, x, n)])

    return adaptive_max_pool


def _adaptive(ctx: Lowering, x: str, n: int, kind: str, whole: str, **attrs: Any) -> str:
    """Emit adaptive pooling: one window, equal windows, or windows of several sizes."""
    sizes = _sizes(ctx, x, n)
    if all(size == out for size, out in sizes):
        return x
    if all(out == 1 for _, out in sizes):
        return _over_all(ctx, whole, x, n)
    equal = _equal_windows(ctx, x, n)
    if equal is not None:
        return _on_batch(ctx, x, n, f"{kind}_POOL", **attrs, **equal)
    return _on_batch(ctx, x, n, f"ADAPTIVE_{kind}_POOL", sizes=tuple(out for _, out in sizes))


def _equal_windows(ctx: Lowering, x: str, n: int) -> dict[str, Any] | None:
    """Return the attrs of adaptive windows that are all of one size; None where they are not."""
    sizes = _sizes(ctx, x, n)
    if not all(is_static(size) and out and size % out == 0 for size, out in sizes):
        return None
    kernel = tuple(size // out for size, out in sizes)
    return {"kernel": kernel, "stride": kernel, "padding": (0,) * (2 * n)}


def _sizes(ctx: Lowering, x: str, n: int) -> list[tuple[int, int]]:
    """Return each spatial dimension's size before and after."""
    return list(zip(ctx.shape(x)[-n:], ctx.output.shape[-n:], strict=True))


def _shares(size: int, count: int) -> np.ndarray:
    """Return the positions that each of ``count`` windows covers, filled up with -1."""
    index = np.arange(count)
    first, stop = index * size // count, -(-(index + 1) * size // count)
    places = first[:, None] + np.arange((stop - first).max(initial=0))
    return np.where(places < stop[:, None], places, -1)


def _on_batch(ctx: Lowering, x: str, n: int, op: str, **attrs: Any) -> str:
    """Emit an op on a batch of channels-last tensors; a single tensor becomes a batch."""
    y = channels_last(ctx, ctx.reshape(x, (1,) * (n + 2 - ctx.rank(x)) + ctx.shape(x)))
    return ctx.reshape(channels_first(ctx, ctx.emit(op, [y], **attrs)), ctx.output.shape)


def _refuse_places_in_varying(ctx: Lowering, x: str, n: int) -> None:
    if not all(map(is_static, ctx.shape(x)[-n:])):
        ctx.unsupported(
            "expected images of fixed size for the indices of the largest elements", "dynamic shape"
        )


def _places_of_largest(ctx: Lowering, x: str, places: Sequence[np.ndarray]) -> str:
    """Return the position of each window's maximum in its flattened spatial dimensions.

    Of equal elements it is the first, but of NaNs the last, as in torch.

    Parameters
    ----------
    places : sequence of numpy.ndarray
        Per dimension, ``[windows, taps]``. A tap outside is replaced by the window's nearest tap
        inside, which changes neither the maximum nor which one is first or last.
    """
    n = len(places)
    spatial = ctx.shape(x)[-n:]
    at = np.zeros((1, 1), np.int64)
    for size, axis in zip(spatial, places, strict=True):
        inside = (axis >= 0) & (axis < size)
        first, last = inside.argmax(1), inside.shape[1] - 1 - inside[:, ::-1].argmax(1)
        taps = np.clip(np.arange(inside.shape[1]), first[:, None], last[:, None])
        axis = np.take_along_axis(axis, taps, 1)
        at = at[:, None, :, None] * size + axis[None, :, None, :]
        at = at.reshape(at.shape[0] * at.shape[1], -1)
    lead = ctx.shape(x)[:-n]
    flat = ctx.reshape(x, (*lead, math.prod(spatial)))
    windows = ctx.emit("INDEX_SELECT", [flat, ctx.constant(at)], axis=len(lead))
    tap = ctx.emit("ARGMAX", [windows], axis=len(lead) + 1)
    if is_float(ctx.dtype(x)):
        is_nan, every = ctx.emit("ISNAN", [windows]), ctx.constant(np.arange(at.shape[1]))
        nans = ctx.apply("WHERE", is_nan, every, -1, dtype="int64")
        last_nan = ctx.emit("AMAX", [nans], axes=(len(lead) + 1,))
        found_nan = ctx.apply("GE", last_nan, 0, dtype="int64")
        tap = ctx.apply("WHERE", found_nan, last_nan, tap, dtype="int64")
    starts = np.arange(at.shape[0]) * at.shape[1]
    where = ctx.emit("ADD", [tap, ctx.constant(starts)])
    found = ctx.emit("INDEX_SELECT", [ctx.constant(at.ravel()), where], axis=0)
    return ctx.reshape(found, ctx.output.shape)


for _n in (2, 3):
    lowers(f"aten.max_pool{_n}d_with_indices.default")(_max_pool(_n))
    lowers(f"aten.avg_pool{_n}d.default")(_avg_pool(_n))
    lowers(f"aten._adaptive_avg_pool{_n}d.default")(_adaptive_avg_pool(_n))
    lowers(f"aten.adaptive_max_pool{_n}d.default")(_adaptive_max_pool(_n))
