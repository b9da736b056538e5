"""Arrays and settings for calls of OpenInfer's ops."""

import itertools
import math

import numpy as np

import openinfer_reference as reference
from taper_openinfer.dtypes import DTYPES, from_float32
from taper_openinfer.ops import OPS

_FLOATS = [0.0, -0.0, 1.0, -1.5, math.nan, math.inf, -math.inf, 0.5, 2.5, -0.49999997, 3e38, 1e-7]
#: Where floats begin to be beyond integers.
_EDGES = [
    sign * (2.0**bits + more) for bits in (7, 8, 31, 63) for sign in (1, -1) for more in (0, 1)
]
_EDGES += [1.5 * 2.0**63, -1.5 * 2.0**63]
ELEMENTWISE = [op for op, spec in OPS.items() if spec.shape in ("same", "broadcast")]
REDUCTIONS = [op for op, spec in OPS.items() if spec.shape in ("axes", "axis")]


def specials(dtype):
    if dtype in reference.FLOATS:
        return [*_FLOATS, *_EDGES, DTYPES[dtype].high, DTYPES[dtype].low]
    low, high = reference.limits(dtype)
    return sorted({value for value in (low, low + 1, -1, 0, 1, 3, high) if low <= value <= high})


def stored(values, dtype):
    """Numbers as an array in storage form."""
    if dtype in reference.SMALL:
        with np.errstate(all="ignore"):
            return from_float32(dtype, np.array(values, np.float32))
    with np.errstate(all="ignore"):
        return np.array(values, DTYPES[dtype].storage)


def random_values(rng, dtype, count, scale=3.0):
    if dtype in reference.FLOATS:
        return (rng.standard_normal(count) * scale).tolist()
    low, high = reference.limits(dtype)
    return rng.integers(
        low, high, count, np.uint64 if dtype == "u64" else np.int64, endpoint=True
    ).tolist()


def operands(rng, dtypes):
    """Arrays with all pairs of special values, then random ones."""
    first = specials(dtypes[0])
    pairs = list(itertools.product(first, repeat=min(len(dtypes), 2)))
    columns = [list(column) for column in zip(*pairs, strict=True)]
    if len(dtypes) == 3:
        columns.append((specials(dtypes[2]) * len(pairs))[: len(pairs)])
    return [
        stored(column + random_values(rng, dtype, 24), dtype)
        for column, dtype in zip(columns, dtypes, strict=True)
    ]


def variants(op, dtype):
    """Settings that a call of an op can have, beside those that choose its element type."""
    is_float = dtype in reference.FLOATS
    low, high = (-2, 3) if is_float else reference.limits(dtype)
    middle = [value for value in (-1, 0, 2) if low <= value <= high]
    match op:
        case "div" | "floor_div" | "recip":
            return [{}, *({"div_by_zero_mask": value} for value in middle)]
        case "relu":
            found = [{}, *({"alpha": value} for value in middle), {"clamp_max": high}]
            return [*found, {"alpha": 0.25, "clamp_max": 0.5}] if is_float else found
        case "clamp":
            return [{}, {"min": middle[0]}, {"max": middle[-1]}, {"min": low, "max": middle[0]}]
        case "shl" | "shr":
            return [{"bits": bits} for bits in (0, 1, 3, 7, 8, 31, 63, 64, 255)]
        case "fill":
            return [{"value": value} for value in (*middle, high)]
        case "cast" if is_float:
            rounding = ("trunc", "floor", "ceil", "nearest")
            return [
                {"rounding_mode": mode, "saturate": saturate}
                for mode in rounding
                for saturate in (True, False)
            ]
    return [{}]
