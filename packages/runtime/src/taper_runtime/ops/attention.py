"""Define ATTENTION, scaled dot-product attention as one node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.sizes import largest, smallest
from taper_runtime.formats.panels import computed_columns
from taper_runtime.ops.convert import FLOATS_16_BIT, cast
from taper_runtime.ops.opdef import ALL_INPUTS, Attr, Attrs, Cost, OpDef, TensorType
from taper_runtime.ops.region import BROADCAST, WHOLE, Region, Relation, Same, Window
from taper_runtime.ops.type_rules import (
    FLOATS,
    check_broadcasts_to,
    check_dtype,
    check_same_dtype,
    fail,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


#: The dtypes of keys and values beside such queries.
_STORED = {"float32": ("float32", *FLOATS_16_BIT, "int8")}

#: The inputs of a node whose keys and values are int8: with a mask, and with their scales.
_SCALED = 6


def _infer(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    """Check q, k, v and the mask; return the type of the result."""
    dtype = check_dtype("ATTENTION", "q", inputs[0].dtype, FLOATS)
    stored = check_same_dtype("ATTENTION", inputs[1:3])
    check_dtype("ATTENTION", "k and v", stored, _STORED.get(dtype, (dtype,)))
    q, k, v = (t.shape for t in inputs[:3])
    rank = len(q)
    if rank not in (3, 4) or len(k) != rank or len(v) != rank:
        fail("ATTENTION", "q, k and v all of rank 3 or of rank 4", [rank, len(k), len(v)])
    if q[0] != k[0] or k[:-1] != v[:-1] or q[-1] != k[-1]:
        expected = "q [B, (H,) Lq, D], k [B, (Hkv,) Lk, D], v [B, (Hkv,) Lk, Dv]"
        fail("ATTENTION", expected, [list(q), list(k), list(v)])
    heads, kv_heads = (q[1], k[1]) if rank == 4 else (1, 1)
    if heads != kv_heads and (not kv_heads or heads < kv_heads or heads % kv_heads):
        fail("ATTENTION", "H to be a multiple of Hkv", [heads, kv_heads])
    if len(inputs) not in (3, 4, _SCALED) or (stored == "int8") != (len(inputs) == _SCALED):
        expected = "3 or 4 inputs, or 6 if k and v are int8"
        fail("ATTENTION", expected, f"{len(inputs)} and {stored}")
    if len(inputs) == _SCALED:
        _check_scales(inputs[1], inputs[4:])
    if len(inputs) > 3:
        mask = inputs[3]
        check_dtype("ATTENTION", "a mask", mask.dtype, ("bool", dtype))
        check_broadcasts_to("ATTENTION", "a mask", mask.shape, (*q[:-1], k[-2]))
    if not attrs["transpose_output"]:
        return TensorType(dtype, (*q[:-1], v[-1]))
    if rank != 4:
        fail("ATTENTION", "rank 4 with transpose_output", rank)
    return TensorType(dtype, (q[0], q[2], q[1], v[-1]))


def _check_scales(k: TensorType, scales: Sequence[TensorType]) -> None:
    """Check the scales of keys and values."""
    expected = (*k.shape[:-1], 1)
    for scale in scales:
        if len(k.shape) != 4 or scale.dtype != "float32" or scale.shape != expected:
            got = [len(k.shape), scale.dtype, list(scale.shape)]
            fail("ATTENTION", "rank 4, and scales of float32 [B, Hkv, Lk, 1]", got)


def _widened(inputs: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield keys and values in float64."""
    for place in (1, 2):
        stored = inputs[place]
        if stored.dtype == np.int8:  # as the kernel multiplies
            yield (stored.astype(np.float32) * inputs[place + 3]).astype(np.float64)
        else:
            same = stored.dtype == inputs[0].dtype
            yield (stored if same else cast(stored, "float32")).astype(np.float64)


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    """Compute attention in float64; add a float mask in the mask's dtype."""
    q = inputs[0].astype(np.float64)
    k, v = _widened(inputs)
    if q.ndim == 4 and k.shape[1]:
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat(group, axis=1), v.repeat(group, axis=1)
    with np.errstate(all="ignore"):
        scores = np.matmul(q, k.swapaxes(-1, -2)) * attrs["scale"]
        if len(inputs) > 3 and inputs[3].dtype == np.bool_:
            scores = np.where(inputs[3], scores, -np.inf)
        elif len(inputs) > 3:
            # Added in the mask's dtype: adding its most negative number must absorb the score.
            scores = scores.astype(inputs[3].dtype) + inputs[3]
        if attrs["causal"]:
            rows, columns = np.ogrid[: scores.shape[-2], : scores.shape[-1]]
            scores = np.where(columns - rows <= attrs["diagonal"], scores, -np.inf)
        largest = scores.max(-1, keepdims=True, initial=-np.inf)
        masked = (largest == -np.inf) & attrs["safe_softmax"]
        weights = np.exp(scores.astype(np.float64) - np.where(masked, 0, largest))
        weights /= np.where(masked, 1, weights.sum(-1, keepdims=True))
        result = np.matmul(weights, v)
        if attrs["transpose_output"]:
            result = result.swapaxes(1, 2)
        return np.asarray(result, inputs[0].dtype, order="C")


def _attended(queries: int, keys: int, diagonal: int) -> int:
    """Count the pairs (query i, key j) with ``j <= i + diagonal``."""

    def below(end: int) -> int:  # sum over i < end of the keys that a query with diagonal 0 attends
        rising = smallest(largest(end, 0), keys)
        return rising * (rising + 1) // 2 + largest(end - keys, 0) * keys

    return below(queries + diagonal) - below(diagonal)


def _cost(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    """Return the cost of two products over the attended pairs, and of softmax (4 flops a pair).

    Kernels compute whole panels of keys, and of columns of v.
    """
    q, k, v = (t.shape for t in inputs[:3])
    dtype = inputs[0].dtype
    pairs = _attended(q[-2], k[-2], attrs["diagonal"] if attrs["causal"] else k[-2])
    heads = q[0] * (q[1] if len(q) == 4 else 1)
    rows = heads * q[-2]
    pairs, more = heads * pairs, rows * (computed_columns(k[-2]) - k[-2])
    lanes = computed_columns(v[-1])
    computed = pairs + more
    passes = _SOFTMAX_PASSES + 2 * (len(inputs) > 3)
    return Cost(
        pairs * (2 * q[-1] + 2 * v[-1] + 4),
        output.nbytes + sum(t.nbytes for t in inputs),
        padding=more * 2 * (q[-1] + v[-1]) + pairs * 2 * (lanes - v[-1]),
        sums=computed + rows * lanes,
        functions=(("EXP", dtype, computed), ("ADD", dtype, passes * computed)),
        rows=_LOOPS * rows,
    )


#: What softmax of a score does besides its exponential, in passes over elements: the factor, the
#: largest, the difference, the sum and the copies for the second product. And the loops of a row.
_SOFTMAX_PASSES, _LOOPS = 5, 4


def _region(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> list[Region]:
    """Return the regions of q, k, v and the mask.

    Heads are a window where several query heads share a key head: which one depends on the
    position.
    """
    q, k = inputs[0].shape, inputs[1].shape
    rank = len(q)
    # With a diagonal, a query's keys depend on its position.
    query_axis = 1 if attrs["transpose_output"] else rank - 2
    query = Window(query_axis, shifts="diagonal") if attrs["causal"] else Same(query_axis)
    heads: tuple[Relation, ...] = ()
    kv_heads: tuple[Relation, ...] = ()
    if rank == 4:
        axis = 2 if attrs["transpose_output"] else 1
        alike = q[1] == k[1]
        heads, kv_heads = (
            (Same(axis) if alike else Window(axis),),
            (Same(axis) if alike else WHOLE,),
        )
    lead: Region = (Same(0), *heads, query)
    regions = [
        (*lead, WHOLE),
        (Same(0), *kv_heads, WHOLE, WHOLE),
        (Same(0), *kv_heads, WHOLE, Same(rank - 1)),
    ]
    for mask in (t.shape for t in inputs[3:4]):
        aligned = zip(
            mask[:-1], [*q[:-1]][rank - len(mask) :], lead[rank - len(mask) :], strict=True
        )
        given = (BROADCAST if size == 1 != full else relation for size, full, relation in aligned)
        regions.append((*given, WHOLE)[: len(mask)])
    regions += [(Same(0), *kv_heads, WHOLE, WHOLE) for _ in inputs[4:]]
    return regions


ATTENTION = OpDef(
    name="ATTENTION",
    doc="softmax(scale * q @ k^T + mask) @ v for q [B, H, Lq, D], k [B, Hkv, Lk, D] and v [B, Hkv, "
    "Lk, Dv], or all without heads; query head h reads key head h // (H / Hkv). k and v may be "
    "float16 or bfloat16 while q is float32, or int8 with a mask and scales of k and of v, float32 "
    "[B, Hkv, Lk, 1], which multiply them. A bool mask keeps scores where it is true, a float mask "
    "is added. With `causal`, query i attends to "
    "key j where j <= i + diagonal. The result of a query that attends to no key is 0 with "
    "`safe_softmax`, else NaN; if there are no keys it is 0. `transpose_output` gives [B, Lq, "
    "H, Dv].",
    inputs=(3, _SCALED),
    infer=_infer,
    evaluate=_evaluate,
    attrs={
        "scale": Attr("float"),
        "causal": Attr("bool", False),
        "diagonal": Attr("int", 0),
        "safe_softmax": Attr("bool", True),
        "transpose_output": Attr("bool", False),
    },
    region=_region,
    strided=(ALL_INPUTS,),
    cost=_cost,
)

OPS = (ATTENTION,)
