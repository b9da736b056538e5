"""Lower attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from taper_frontend.lowering.handlers import lowers
from taper_frontend.lowering.random import dropped
from taper_runtime.ops.type_rules import broadcast

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.lowering.context import Lowering
    from taper_runtime.ops.opdef import Shape


@lowers("aten.scaled_dot_product_attention.default")
def scaled_dot_product_attention(
    ctx: Lowering,
    q: str,
    k: str,
    v: str,
    attn_mask: str | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> str:
    """Compute attention over the last two dimensions; the others are heads and batch.

    Rank 3 is kept; every other rank becomes 4: ``[batch, heads, length, depth]``.
    """
    if dropout_p:
        return _with_dropout(ctx, [q, k, v], attn_mask, dropout_p, is_causal, scale)
    inputs = [q, k, v]
    shapes = [ctx.shape(x) for x in inputs]
    if not (len(shapes[0]) == 3 and len({shape[0] for shape in shapes}) == 1):
        inputs, attn_mask = _as_rank_4(ctx, inputs, attn_mask)
    if attn_mask is not None:
        if ctx.dtype(attn_mask) != "bool":
            attn_mask = ctx.cast(attn_mask, ctx.dtype(q))
        inputs.append(attn_mask)
    if scale is None:
        scale = 1 / math.sqrt(shapes[0][-1])
    y = ctx.emit("ATTENTION", inputs, scale=float(scale), causal=is_causal)
    return ctx.reshape(y, ctx.output.shape)


def _with_dropout(
    ctx: Lowering,
    inputs: Sequence[str],
    mask: str | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> str:
    """Write out attention in the order in which torch computes it with dropout."""
    dtype, depth = ctx.dtype(inputs[0]), ctx.shape(inputs[0])[-1]
    (q, k, v), mask = _as_rank_4(ctx, inputs, mask)
    repeats = ctx.shape(q)[-3] // ctx.shape(k)[-3]
    if repeats > 1:
        k, v = (_repeat_heads(ctx, x, repeats) for x in (k, v))
    # each factor is scaled by the root, to avoid overflow
    root = math.sqrt(1 / math.sqrt(depth) if scale is None else scale)
    q, k = (ctx.apply("MUL", x, root, dtype=dtype) for x in (q, k))
    scores = ctx.emit("MATMUL", [q, k], transpose_b=True)
    if is_causal:
        rows, columns = ctx.shape(scores)[-2:]
        row = ctx.reshape(ctx.emit("ARANGE", [], start=0, stop=rows), (rows, 1))
        mask = ctx.emit("GE", [row, ctx.emit("ARANGE", [], start=0, stop=columns)])
    if mask is not None and ctx.dtype(mask) == "bool":
        scores = ctx.apply("WHERE", mask, scores, -math.inf, dtype=dtype)
    elif mask is not None:
        scores = ctx.apply("ADD", scores, mask, dtype=dtype)
    axis = ctx.rank(scores) - 1
    weights = ctx.emit("SOFTMAX", [scores], axis=axis)
    if mask is not None:  # a row without any key is all zeros
        most = ctx.emit("AMAX", [scores], axes=(axis,), keepdim=True)
        weights = ctx.apply(
            "WHERE", ctx.apply("EQ", most, -math.inf, dtype=dtype), 0.0, weights, dtype=dtype
        )
    y = ctx.emit("MATMUL", [dropped(ctx, weights, dropout_p), v])
    return ctx.reshape(y, ctx.output.shape)


def _repeat_heads(ctx: Lowering, x: str, repeats: int) -> str:
    *batch, heads, length, depth = ctx.shape(x)
    x = ctx.expand(
        ctx.reshape(x, (*batch, heads, 1, length, depth)), (*batch, heads, repeats, length, depth)
    )
    return ctx.reshape(x, (*batch, heads * repeats, length, depth))


def _as_rank_4(
    ctx: Lowering, inputs: Sequence[str], mask: str | None
) -> tuple[list[str], str | None]:
    """Reshape q, k, v and the mask to rank 4; broadcast what the op does not."""
    shapes = [(1,) * (3 - ctx.rank(x)) + ctx.shape(x) for x in inputs]
    batch = broadcast("ATTENTION", [shape[:-3] for shape in shapes])
    heads = [shape[-3] for shape in shapes]
    kv_heads = max(heads[1:])
    if set(heads[1:]) - {1, kv_heads} or (heads[0] % kv_heads and heads[0] != 1):
        ctx.unsupported(f"expected numbers of heads of which one divides the other, got {heads}")
    wanted = [max(heads[0], kv_heads), kv_heads, kv_heads]
    folded = [
        _fold(ctx, x, (*batch, n, *shape[-2:]))
        for x, shape, n in zip(inputs, shapes, wanted, strict=True)
    ]
    if mask is not None and ctx.rank(mask) > 3:
        mask = _fold(ctx, mask, (*batch, *ctx.shape(mask)[-3:]))
    return folded, mask


def _fold(ctx: Lowering, x: str, shape: Shape) -> str:
    """Broadcast to ``shape``, then merge its batch dimensions into one."""
    if ctx.type(x).size != math.prod(shape):
        x = ctx.expand(x, shape)
    return ctx.reshape(x, (math.prod(shape[:-3]), *shape[-3:]))
