"""ATTENTION: scaled dot-product attention as one node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.errors import OpError
from taper_runtime.ops.opdef import ALL_INPUTS, Attr, Attrs, Cost, OpDef, Sample, TensorType
from taper_runtime.ops.rules import FLOATS, broadcast, check_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def _infer(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    q, k, v = inputs[:3]
    rank = len(q.shape)
    if rank not in (3, 4) or len(k.shape) != rank or len(v.shape) != rank:
        ranks = [len(t.shape) for t in inputs[:3]]
        raise OpError(f"ATTENTION: expected q, k, v of rank 3 or 4 alike, got ranks {ranks}")
    for name, t in zip("qkv", inputs, strict=False):
        check_dtype("ATTENTION", name, t.dtype, (q.dtype,))
    check_dtype("ATTENTION", "q", q.dtype, FLOATS)
    heads, kv_heads = (q.shape[1], k.shape[1]) if rank == 4 else (1, 1)
    if q.shape[0] != k.shape[0] or k.shape[:-1] != v.shape[:-1] or q.shape[-1] != k.shape[-1]:
        raise OpError(
            "ATTENTION: expected q [.., H, Lq, D], k [.., Hkv, Lk, D], v [.., Hkv, Lk, Dv], got "
            f"{[list(t.shape) for t in inputs[:3]]}"
        )
    if (heads % kv_heads if kv_heads else heads) != 0:
        raise OpError(f"ATTENTION: expected H a multiple of Hkv, got {heads} and {kv_heads}")
    if len(inputs) == 4:
        mask = inputs[3]
        check_dtype("ATTENTION", "mask", mask.dtype, ("bool", q.dtype))
        scores = (*q.shape[:-1], k.shape[-2])
        if broadcast("ATTENTION", [mask.shape, scores]) != scores:
            raise OpError(
                f"ATTENTION: mask: expected to broadcast to {list(scores)}, got {list(mask.shape)}"
            )
    if attrs["transpose_output"]:
        if rank != 4:
            raise OpError(f"ATTENTION: transpose_output: expected rank 4, got {rank}")
        batch, heads, length, _ = q.shape
        return TensorType(q.dtype, (batch, length, heads, v.shape[-1]))
    return TensorType(q.dtype, (*q.shape[:-1], v.shape[-1]))


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    q, k, v = inputs[:3]
    if q.ndim == 4 and k.shape[1] and q.shape[1] != k.shape[1]:
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat(group, 1), v.repeat(group, 1)
    scores = np.matmul(q, k.swapaxes(-1, -2)) * q.dtype.type(attrs["scale"])
    if len(inputs) == 4:
        mask = inputs[3]
        scores = np.where(mask, scores, -np.inf) if mask.dtype == np.bool_ else scores + mask
    if attrs["causal"]:
        rows, columns = np.ogrid[: scores.shape[-2], : scores.shape[-1]]
        scores = np.where(columns <= rows + attrs["diagonal"], scores, -np.inf)
    scores = scores.astype(q.dtype)
    with np.errstate(all="ignore"):
        largest = scores.max(-1, keepdims=True, initial=-np.inf)
        if attrs["safe_softmax"] or scores.shape[-1] == 0:
            # a row with every key masked: all weights 0
            dead = largest == -np.inf
            weights = np.exp(scores - np.where(dead, 0, largest))
            total = weights.sum(-1, keepdims=True)
            weights = weights / np.where(dead, 1, total)
        else:
            weights = np.exp(scores - largest)
            weights = weights / weights.sum(-1, keepdims=True)
    out = np.matmul(weights.astype(q.dtype), v)
    return np.ascontiguousarray(out.swapaxes(1, 2) if attrs["transpose_output"] else out)


def _cost(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    q, k, v = inputs[:3]
    scores = q.size // max(q.shape[-1], 1) * k.shape[-2]
    flops = scores * (2 * q.shape[-1] + 2 * v.shape[-1] + 4)
    return Cost(flops, output.nbytes + sum(t.nbytes for t in inputs))


def _samples() -> Iterator[Sample]:
    rng = np.random.default_rng(2)

    def qkv(b: int, h: int, hkv: int, lq: int, lk: int, d: int, dv: int) -> list[np.ndarray]:
        shapes = ((b, h, lq, d), (b, hkv, lk, d), (b, hkv, lk, dv))
        return [rng.standard_normal(s).astype(np.float32) for s in shapes]

    base = {"scale": 0.25}
    yield Sample(qkv(2, 3, 3, 5, 7, 8, 8), base)
    yield Sample([x[:, 0] for x in qkv(2, 3, 3, 5, 7, 8, 6)], base)
    yield Sample(qkv(1, 4, 2, 6, 6, 9, 5), {**base, "causal": True})
    yield Sample(qkv(1, 2, 2, 4, 9, 8, 8), {**base, "causal": True, "diagonal": 5})
    yield Sample(qkv(1, 2, 2, 9, 4, 8, 8), {**base, "causal": True})
    yield Sample(qkv(1, 2, 1, 9, 4, 8, 8), {**base, "causal": True, "diagonal": -3})
    yield Sample(qkv(2, 4, 4, 5, 7, 8, 8), {**base, "transpose_output": True})
    yield Sample(qkv(2, 4, 4, 5, 0, 8, 8), base)
    yield Sample(qkv(0, 4, 4, 5, 3, 8, 8), base)
    yield Sample(qkv(1, 2, 2, 70, 300, 32, 32), {"scale": 0.2})
    for shape in ((5, 7), (2, 1, 1, 7), (1, 3, 5, 7)):
        yield Sample([*qkv(2, 3, 3, 5, 7, 8, 8), rng.random(shape) < 0.7], base)
        mask = np.where(rng.random(shape) < 0.7, 0, -1e4).astype(np.float32)
        yield Sample([*qkv(2, 3, 3, 5, 7, 8, 8), mask], base)
    masked = np.ones((5, 7), bool)
    masked[2] = False
    yield Sample([*qkv(1, 1, 1, 5, 7, 8, 8), masked], base)
    yield Sample([*qkv(1, 1, 1, 5, 7, 8, 8), masked], {**base, "safe_softmax": False})


ATTENTION = OpDef(
    name="ATTENTION",
    doc="softmax(scale * q k^T + mask) v for q [.., H, Lq, D], k and v [.., Hkv, Lk, D or Dv]; "
    "query head h reads key head h // (H / Hkv). A bool mask keeps where true, a float one is "
    "added. With `causal`, query i attends key j iff j <= i + diagonal. `safe_softmax` gives 0 for "
    "a row with every key masked, NaN otherwise. `transpose_output` gives [.., Lq, H, Dv].",
    inputs=(3, 4),
    infer=_infer,
    evaluate=_evaluate,
    samples=_samples,
    attrs={
        "scale": Attr("float"),
        "causal": Attr("bool", False),
        "diagonal": Attr("int", 0),
        "safe_softmax": Attr("bool", True),
        "transpose_output": Attr("bool", False),
    },
    strided=(ALL_INPUTS,),
    cost=_cost,
)
