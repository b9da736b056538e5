"""MATMUL: torch's matmul with absorbed transpose and scale, and an epilogue."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.formats import PLAIN, family
from taper_runtime.ops.convert import NARROW, cast, to_bfloat16
from taper_runtime.ops.map import (
    EPILOGUE,
    MAX_EXTRAS,
    epilogue_regions,
    evaluate_epilogue,
    infer_epilogue,
)
from taper_runtime.ops.opdef import ALL_INPUTS, Attr, Attrs, Cost, OpDef, Sample, TensorType
from taper_runtime.ops.region import WHOLE, Region, Same, all_of, broadcast_region
from taper_runtime.ops.rules import FLOATS, REALS, broadcast, check_dtype, check_same_dtype, fail

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def _logical_b(b: TensorType, attrs: Attrs) -> TensorType:
    """Type of b as torch.matmul takes it: ``[K]`` or ``[..., K, N]``.

    A narrow dtype is widened, which kernels do in all formats but plain.
    """
    dtype, shape = b.dtype, b.shape
    if b.format != PLAIN and dtype in NARROW:
        dtype = "float32"
    if not attrs["transpose_b"]:
        return TensorType(dtype, shape)
    if len(shape) < 2:
        fail("MATMUL", "b of rank 2 or more with transpose_b", list(shape))
    return TensorType(dtype, (*shape[:-2], shape[-1], shape[-2]))


def product_type(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    """Type of ``alpha * (a @ b)``, value 0 of the epilogue.

    Raises
    ------
    OpError
    """
    logical_b = _logical_b(inputs[1], attrs)
    dtype = check_same_dtype("MATMUL", (inputs[0], logical_b))
    check_dtype("MATMUL", "a and b", dtype, REALS if attrs["alpha"] == 1 else FLOATS)
    a, b = inputs[0].shape, logical_b.shape
    if not a or not b:
        fail("MATMUL", "a and b of rank 1 or more", [list(a), list(b)])
    if a[-1] != b[-2:][0]:  # of rank 1, b has only rows
        fail("MATMUL", "as many columns of a as rows of b", [list(a), list(b)])
    batch = broadcast("MATMUL", [a[:-2], b[:-2]])
    return TensorType(dtype, (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ())))


def _infer(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    return infer_epilogue("MATMUL", product_type(inputs, attrs), inputs[2:], attrs)


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    a, b = inputs[0], inputs[1]
    if b.dtype != a.dtype:
        b = cast(b, "float32")
    if attrs["transpose_b"]:
        b = b.swapaxes(-1, -2)
    with np.errstate(all="ignore"):
        if a.dtype.kind in "iu" and _is_exact_in_float64(a, b):  # which numpy multiplies sooner
            product = np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(np.int64)
        else:
            product = np.matmul(a, b)
        if attrs["alpha"] != 1:
            product = product * a.dtype.type(attrs["alpha"])
        product = np.asarray(product, a.dtype, order="C")
    return evaluate_epilogue(product, inputs[2:], attrs)


#: Elements from which it pays to look at them all before they are multiplied.
_MANY = 4096


def _is_exact_in_float64(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether a product of integers has many elements and no sum beyond 2 ** 53."""
    if max(a.size, b.size) < _MANY or not min(a.size, b.size):
        return False
    largest = [max(int(x.max()), -int(x.min())) for x in (a, b)]
    return math.prod(largest) * a.shape[-1] <= 2**53


def _packing(weight: TensorType, attrs: Attrs) -> str | None:
    if len(weight.shape) != 2 or weight.dtype not in ("float32", *NARROW):
        return None
    return "panels.0" if attrs["transpose_b"] else "panels.1"


def _region(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> list[Region]:
    a, b = inputs[0].shape, inputs[1].shape
    rows, columns = len(a) > 1, len(b) > 1
    batch = output.shape[: len(output.shape) - rows - columns]
    region_a = (*broadcast_region(a[:-2], batch), *([Same(len(batch))] if rows else []), WHOLE)
    if not columns:
        region_b = all_of(b)
    else:
        matrix: Region = (WHOLE, Same(len(output.shape) - 1))
        matrix = matrix[::-1] if attrs["transpose_b"] else matrix
        region_b = (*broadcast_region(b[:-2], batch), *matrix)
    return epilogue_regions([region_a, region_b], inputs[2:], output)


def _cost(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    flops = output.size * (2 * inputs[0].shape[-1] + len(attrs["code"]))
    return Cost(flops, output.nbytes + sum(t.nbytes for t in inputs), sums=output.size)


def _samples() -> Iterator[Sample]:
    rng = np.random.default_rng(1)

    def floats(*shape: int) -> np.ndarray:
        return np.asarray(rng.standard_normal(shape), np.float32)

    for a, b in (
        ((5, 7), (7, 9)),
        ((1, 64), (64, 33)),
        ((7,), (7,)),
        ((7,), (7, 3)),
        ((7,), (2, 7, 3)),
        ((2, 4, 7), (7,)),
        ((2, 3, 4, 5), (5, 6)),
        ((2, 1, 4, 5), (3, 5, 6)),
        ((4, 5), (3, 2, 5, 6)),
        ((2, 1, 1, 1, 3, 4), (1, 2, 1, 2, 4, 5)),
        ((17, 40), (40, 50)),
        ((3, 0), (0, 4)),
        ((0, 3), (3, 4)),
        ((2, 3), (3, 0)),
        ((0, 2, 3), (1, 3, 2)),
    ):
        yield Sample([floats(*a), floats(*b)])
    yield Sample([floats(5, 7), floats(9, 7)], {"transpose_b": True, "alpha": 0.125})
    yield Sample([floats(2, 3, 5, 7), floats(2, 3, 9, 7)], {"transpose_b": True})
    yield Sample([floats(7), floats(3, 9, 7)], {"transpose_b": True})
    packed, transposed = {1: "panels.1"}, {1: "panels.0"}
    for m, k, n in ((1, 20, 33), (6, 20, 33), (13, 5, 16), (3, 0, 5), (0, 4, 5), (2, 3, 0)):
        yield Sample([floats(m, k), floats(k, n)], formats=packed)
        yield Sample([floats(m, k), floats(n, k)], {"transpose_b": True}, formats=transposed)
    yield Sample([floats(7), floats(7, 20)], {"alpha": -2}, formats=packed)
    for m, k, n in ((1, 20, 70), (1, 0, 5), (20, 30, 70)):
        bytes_ = rng.integers(-2, 3, (k, n), np.int8)
        for narrow in (floats(k, n).astype(np.float16), to_bfloat16(floats(k, n)), bytes_):
            yield Sample([floats(m, k), narrow], formats=packed)
    for format in family("blocks").examples:
        for m, n in ((1, 70), (3, 5), (20, 70)):
            levels = np.asarray(rng.integers(0, 16, (96, n)) / 8 - 1, np.float32)
            yield Sample([floats(m, 96), levels], formats={1: format})
    # What is cut along the other axis no kernel reads.
    yield Sample([floats(3, 4), floats(4, 20)], native=False, formats=transposed)
    bias_gelu = {"code": ["ADD", "GELU"], "args": [0, 1, 2]}
    yield Sample([floats(2, 5, 7), floats(7, 9), floats(9)], bias_gelu)
    yield Sample([floats(2, 0), floats(0, 9), floats(9)], bias_gelu)
    operands = [floats(2, 5, 7), floats(7, 9), floats(9), floats(2, 5, 9)]
    bias_residual = {"code": ["ADD", "ADD"], "args": [0, 1, 3, 2]}
    yield Sample(operands, bias_residual, formats=packed)
    # A residual of the output's shape is no bias; neither is a column.
    yield Sample([floats(9, 7), floats(7, 9), floats(9, 9)], {"code": ["ADD"], "args": [0, 1]})
    yield Sample([floats(9, 7), floats(7, 9), floats(9, 1)], {"code": ["ADD"], "args": [0, 1]})
    clamp = {"code": ["MUL", "MAXIMUM"], "args": [-1, 0, 1, -2], "scalars": [2.0, 0.5]}
    yield Sample([floats(4, 7), floats(7, 5)], {**clamp, "alpha": 0.5})
    special = np.array([[1, np.nan], [np.inf, 1], [0, 0]], np.float32)
    yield Sample([special, floats(2, 3)])
    yield Sample([rng.integers(-9, 9, (3, 4)), rng.integers(-9, 9, (4, 5))], native=False)
    yield Sample([floats(3, 4).astype(np.float64), np.ones(4)], {"alpha": 0.1}, native=False)


MATMUL = OpDef(
    name="MATMUL",
    doc="alpha * (a @ b) with torch.matmul's rules of rank and batch, then an epilogue: a tile "
    "program (see MAP) whose value 0 is that product and whose values 1.. are the extras, of the "
    "product's type in the end. b may be stored transposed; in a format other than plain it may be "
    "float16, bfloat16 or int8 beside a float32 a.",
    inputs=(2, 2 + MAX_EXTRAS),
    infer=_infer,
    evaluate=_evaluate,
    samples=_samples,
    attrs={
        "alpha": Attr("float", 1.0),
        "transpose_b": Attr("bool", False),
        **EPILOGUE,
    },
    region=_region,
    weights=(1,),
    packing=_packing,
    strided=(ALL_INPUTS,),
    formatted=(1,),
    cost=_cost,
)

OPS = (MATMUL,)
