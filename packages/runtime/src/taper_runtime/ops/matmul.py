"""MATMUL: torch's matmul with absorbed transpose, scale, packing and an epilogue program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.errors import OpError
from taper_runtime.ops.elementwise import contiguous
from taper_runtime.ops.map import evaluate_program, infer_program, program_attrs
from taper_runtime.ops.opdef import ALL_INPUTS, Attr, Attrs, Cost, OpDef, Sample, TensorType
from taper_runtime.ops.rules import REALS, broadcast, check_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Columns of one panel of a packed operand; one cache line of float32.
PANEL = 16
MAX_EXTRAS = 15


def pack(b: np.ndarray) -> np.ndarray:
    """Pack [K, N] float32 as [ceil(N/16), K, 16], zero beyond N."""
    k, n = b.shape
    panels = -(-n // PANEL)
    padded = np.zeros((k, panels * PANEL), np.float32)
    padded[:, :n] = b
    return np.ascontiguousarray(padded.reshape(k, panels, PANEL).transpose(1, 0, 2))


def unpack(packed: np.ndarray, columns: int) -> np.ndarray:
    """The [K, N] matrix that was packed; the inverse of :func:`pack`."""
    panels, k, width = packed.shape
    return packed.transpose(1, 0, 2).reshape(k, panels * width)[:, :columns]


def product_type(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    """Type of alpha * (a @ b), before the epilogue."""
    a, b = inputs[0], inputs[1]
    check_dtype("MATMUL", "a", a.dtype, REALS)
    check_dtype("MATMUL", "b", b.dtype, (a.dtype,))
    if attrs["alpha"] != 1.0:
        check_dtype("MATMUL", "a, with alpha", a.dtype, ("float32", "float64", "float16"))
    shape = b.shape
    if attrs["columns"]:
        n = attrs["columns"]
        if len(shape) != 3 or n < 0 or shape[0] != -(-n // PANEL) or shape[2] != PANEL:
            raise OpError(
                f"MATMUL: b: expected {n} columns packed as [{-(-n // PANEL)}, K, {PANEL}], "
                f"got {list(shape)}"
            )
        check_dtype("MATMUL", "packed b", b.dtype, ("float32",))
        if attrs["transpose_b"]:
            raise OpError("MATMUL: expected transpose_b=False with a packed b")
        shape = (shape[1], n)
    if not a.shape or not shape:
        raise OpError("MATMUL: expected operands of rank 1 or more, got a 0-d tensor")
    if attrs["transpose_b"]:
        if len(shape) < 2:
            raise OpError("MATMUL: transpose_b: expected b of rank 2 or more, got rank 1")
        shape = (*shape[:-2], shape[-1], shape[-2])
    rows = a.shape[-2:-1]
    cols = shape[-1:] if len(shape) > 1 else ()
    inner = shape[-2] if len(shape) > 1 else shape[0]
    if a.shape[-1] != inner:
        raise OpError(
            f"MATMUL: expected equal inner sizes, got {a.shape[-1]} of a {list(a.shape)} and "
            f"{inner} of b {list(shape)}"
        )
    return TensorType(a.dtype, (*broadcast("MATMUL", [a.shape[:-2], shape[:-2]]), *rows, *cols))


def _infer(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    product = product_type(inputs, attrs)
    if not attrs["code"]:
        if len(inputs) > 2 or attrs["args"] or attrs["scalars"]:
            raise OpError("MATMUL: expected no extras, args or scalars without an epilogue")
        return product
    result = infer_program("MATMUL", [product, *inputs[2:]], attrs)
    if result != product:
        raise OpError(f"MATMUL: expected an epilogue that keeps {product}, got {result}")
    return result


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    a, b = inputs[0], inputs[1]
    if attrs["columns"]:
        b = unpack(b, attrs["columns"])
    if attrs["transpose_b"]:
        b = b.swapaxes(-1, -2)
    with np.errstate(all="ignore"):
        product = np.asarray(np.matmul(a, b))
        if attrs["alpha"] != 1.0:
            product = product * a.dtype.type(attrs["alpha"])
    if not attrs["code"]:
        return contiguous(product, product.shape)
    return evaluate_program([product, *inputs[2:]], attrs)


def _cost(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    inner = inputs[0].shape[-1]
    nbytes = output.nbytes + sum(t.nbytes for t in inputs)
    return Cost(output.size * (2 * inner + len(attrs["code"])), nbytes)


def _samples() -> Iterator[Sample]:
    rng = np.random.default_rng(1)

    def floats(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    shapes = [
        ((5, 7), (7, 9)),
        ((1, 64), (64, 33)),
        ((7,), (7,)),
        ((7,), (7, 3)),
        ((2, 4, 7), (7,)),
        ((2, 3, 4, 5), (5, 6)),
        ((2, 1, 4, 5), (3, 5, 6)),
        ((17, 40), (40, 50)),
        ((3, 0), (0, 4)),
        ((0, 3), (3, 4)),
        ((2, 3), (3, 0)),
    ]
    for a, b in shapes:
        yield Sample([floats(*a), floats(*b)])
    yield Sample([floats(5, 7), floats(9, 7)], {"transpose_b": True, "alpha": 0.125})
    yield Sample([floats(2, 3, 5, 7), floats(2, 3, 9, 7)], {"transpose_b": True})
    for m, k, n in ((1, 20, 33), (6, 20, 33), (13, 5, 16), (3, 0, 5)):
        yield Sample([floats(m, k), pack(floats(k, n))], {"columns": n})
    bias_gelu = {"code": ["ADD", "GELU"], "args": [0, 1, 2]}
    yield Sample([floats(2, 5, 7), floats(7, 9), floats(9)], bias_gelu)
    packed = [floats(2, 5, 7), pack(floats(7, 9)), floats(9), floats(2, 5, 9)]
    residual = {"code": ["ADD", "ADD"], "args": [0, 1, 3, 2], "columns": 9}
    yield Sample(packed, residual)
    scaled = {"code": ["MUL", "RELU"], "args": [0, -1, 1], "scalars": [0.5]}
    yield Sample([floats(3, 4), floats(4, 5)], scaled)
    yield Sample([rng.integers(-9, 9, (3, 4)), rng.integers(-9, 9, (4, 5))], {}, native=False)


MATMUL = OpDef(
    name="MATMUL",
    doc="alpha * (a @ b) with torch's rank and batch rules, then an epilogue tile program whose "
    "value 0 is the product and whose other inputs are the extras. b may be stored transposed "
    "or, with `columns`, packed as [ceil(columns/16), K, 16].",
    inputs=(2, 2 + MAX_EXTRAS),
    infer=_infer,
    evaluate=_evaluate,
    samples=_samples,
    attrs={
        "alpha": Attr("float", 1.0),
        "transpose_b": Attr("bool", False),
        "columns": Attr("int", 0),
        **program_attrs(required=False),
    },
    strided=(ALL_INPUTS,),
    cost=_cost,
)
