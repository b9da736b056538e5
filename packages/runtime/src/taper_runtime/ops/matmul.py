"""Define MATMUL: torch's matmul with absorbed transposes, scale and epilogue."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.sizes import is_static, largest
from taper_runtime.formats import PLAIN
from taper_runtime.formats.panels import computed_columns, whole_panels
from taper_runtime.ops.convert import NARROW, cast
from taper_runtime.ops.map import (
    EPILOGUE,
    EXTRAS,
    MAX_EXTRAS,
    epilogue_functions,
    epilogue_regions,
    evaluate_epilogue,
    infer_epilogue,
)
from taper_runtime.ops.opdef import ALL_INPUTS, Attr, Attrs, Cost, OpDef, TensorType
from taper_runtime.ops.region import WHOLE, Region, Same, all_of, broadcast_region
from taper_runtime.ops.type_rules import (
    FLOATS,
    REALS,
    broadcast,
    check_accumulator,
    check_dtype,
    check_same_dtype,
    fail,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


def _logical_b(b: TensorType, attrs: Attrs) -> TensorType:
    """Return the type of b in torch.matmul's form: ``[K]`` or ``[..., K, N]``.

    A narrow dtype counts as widened, which kernels do in every format except plain.
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
    """Return the type of ``alpha * (a @ b)``, which is value 0 of the epilogue.

    Raises
    ------
    OpError
    """
    logical_b = _logical_b(inputs[1], attrs)
    if attrs["activation_group"]:
        _check_group(inputs[0], attrs)
    if attrs["activation_dtype"]:
        _check_activations(inputs, attrs)
    if attrs["accumulate"]:
        dtype = check_accumulator("MATMUL", inputs[:2], attrs)
        if attrs["alpha"] != 1:
            fail("MATMUL", "alpha 1 where sums are int32", attrs["alpha"])
    else:
        dtype = check_same_dtype("MATMUL", (inputs[0], logical_b))
        check_dtype("MATMUL", "a and b", dtype, REALS if attrs["alpha"] == 1 else FLOATS)
    a, b = inputs[0].shape, logical_b.shape
    if not a or not b:
        fail("MATMUL", "a and b of rank 1 or more", [list(a), list(b)])
    if a[-1] != b[-2:][0]:  # b of rank 1 has only rows
        fail("MATMUL", "as many columns of a as rows of b", [list(a), list(b)])
    batch = broadcast("MATMUL", [a[:-2], b[:-2]])
    return TensorType(dtype, (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ())))


def _check_group(a: TensorType, attrs: Attrs) -> None:
    group = attrs["activation_group"]
    if a.dtype != "float32" or attrs["accumulate"]:
        fail("MATMUL", "float32 activations in groups, without accumulate", a.dtype)
    k = a.shape[-1] if a.shape else 1
    if group < 0 or not is_static(k) or k % group:
        fail("MATMUL", f"rows of whole groups of {group} activations", k)


def _check_activations(inputs: Sequence[TensorType], attrs: Attrs) -> None:
    dtype = attrs["activation_dtype"]
    if dtype != "bfloat16":
        fail("MATMUL", "activation_dtype '' or 'bfloat16'", dtype)
    if inputs[0].dtype != "float32" or inputs[1].dtype != dtype or attrs["activation_group"]:
        fail(
            "MATMUL",
            f"float32 activations, not in groups, beside {dtype} where they are rounded to that",
            [inputs[0].dtype, inputs[1].dtype],
        )


#: Groups whose numbers are all smaller count as zero: the inverse of their scale might overflow.
_LEAST = np.float32(2.0**-100)


def rounded_in_groups(x: np.ndarray, group: int) -> np.ndarray:
    """Return float32 numbers rounded to the levels of int8, in groups along the last axis.

    A level is the nearest integer to ``x * (127 / m)``, and stands for ``level * (m / 127)``; m is
    the largest magnitude of the group. A group with an infinity or NaN becomes NaN.
    """
    groups = x.reshape(*x.shape[:-1], x.shape[-1] // group, group)
    most = np.abs(groups).max(-1, keepdims=True, initial=0)
    finite = np.isfinite(most)
    with np.errstate(all="ignore"):
        factor = np.where(most < _LEAST, np.float32(0), np.float32(127) / most)
        levels = np.where(finite, np.rint(groups * factor), np.float32(0))
        scale = np.where(finite, most / np.float32(127), np.float32(np.nan))
        return np.asarray(levels * scale, np.float32).reshape(x.shape)


def _infer(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    return infer_epilogue("MATMUL", product_type(inputs, attrs), inputs[2:], attrs)


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    """Multiply, in float64 if integer sums are exact there; then compute the epilogue."""
    a, b = inputs[0], inputs[1]
    dtype = attrs["accumulate"] or a.dtype
    if attrs["accumulate"]:
        a, b = a.astype(np.int32), b.astype(np.int32)
    elif b.dtype != a.dtype:
        b = cast(b, "float32")
    if attrs["activation_group"]:
        a = rounded_in_groups(a, attrs["activation_group"])
    if attrs["activation_dtype"]:
        a = cast(cast(a, attrs["activation_dtype"]), a.dtype.name)
    if attrs["transpose_b"]:
        b = b.swapaxes(-1, -2)
    with np.errstate(all="ignore"):
        if a.dtype.kind in "iu" and _is_exact_in_float64(a, b):  # numpy multiplies float64 faster
            product = np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(np.int64)
        else:
            product = np.matmul(a, b)
        if attrs["alpha"] != 1:
            product = product * a.dtype.type(attrs["alpha"])
        product = np.asarray(product, dtype, order="C")
    return evaluate_epilogue(product, inputs[2:], attrs)


#: Matrices of at least so many elements are inspected before they are multiplied.
_MANY = 4096


def _is_exact_in_float64(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether a large product of integers has no sum beyond 2 ** 53."""
    if max(a.size, b.size) < _MANY or not min(a.size, b.size):
        return False
    largest = [max(int(x.max()), -int(x.min())) for x in (a, b)]
    return math.prod(largest) * a.shape[-1] <= 2**53


def _packing(weight: TensorType, attrs: Attrs) -> str | None:
    if attrs["accumulate"]:
        plain = len(weight.shape) == 2 and weight.dtype == "int8" and not attrs["transpose_b"]
        return "dots.1" if plain else None
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


#: The loops that put a row of activations, for kernels of bytes.
PUT_ROWS = 2


def put_bytes(activations: int) -> int:
    """Return ``Cost.scratch`` for rearranging byte activations into the kernels' order.

    Whole vectors are converted, without sums: in half the time of Winograd's transforms.
    """
    return activations // 2


#: What widening an element of b to float32 in registers takes, as a pass over elements: 0.05 ns on
#: AVX2, which is that of two multiply-adds.
_WIDEN = ("CAST:int16", "int8")


def _widens(b: TensorType) -> bool:
    """Return whether kernels widen each element of b, once for all rows."""
    return b.format.startswith("blocks.") or (b.format != PLAIN and b.dtype in NARROW)


def _cost(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    """Return the cost of the product, in whole halves of panels or panels, and of the epilogue."""
    product = product_type(inputs, attrs)
    k = inputs[0].shape[-1]
    columns = product.shape[-1] if len(inputs[1].shape) > 1 and product.shape else 1
    rows = product.size // largest(columns, 1)
    whole = inputs[1].dtype != "float32" or inputs[1].format.startswith("blocks.")
    lanes = (whole_panels if whole else computed_columns)(columns)
    puts_bytes = bool(attrs["accumulate"] or attrs["activation_group"])
    widened = ((*_WIDEN, k * lanes),) if _widens(inputs[1]) and not puts_bytes else ()
    return Cost(
        output.size * (2 * k + len(attrs["code"])),
        output.nbytes + sum(t.nbytes for t in inputs),
        padding=2 * k * rows * (lanes - columns),
        sums=rows * lanes,
        scratch=put_bytes(rows * k) if puts_bytes else 0,
        functions=(*epilogue_functions(product, inputs[2:], attrs, output.size), *widened),
        rows=PUT_ROWS * rows if puts_bytes else 0,
    )


MATMUL = OpDef(
    name="MATMUL",
    doc="alpha * (a @ b) with torch.matmul's rules of rank and batch, then an epilogue: a tile "
    "program (see MAP) whose value 0 is that product and whose values 1.. are the extras; its "
    "result has the product's shape. b may be stored transposed; in a format other than plain "
    "it may be float16, bfloat16 or int8 while a is float32. With accumulate int32, a and b are "
    "int8 or uint8, each by itself, and the product is their exact sums modulo 2^32. With "
    "activation_group, each so many consecutive numbers of a row of a, which is float32, are first "
    "rounded to the levels of int8: to the nearest multiple of their largest magnitude / 127. With "
    "activation_dtype bfloat16, which b has, too, the numbers of a, which is float32, are first "
    "rounded to that; kernels may take numbers below 2^-126 for 0.",
    inputs=(2, 2 + MAX_EXTRAS),
    infer=_infer,
    evaluate=_evaluate,
    attrs={
        "alpha": Attr("float", 1.0),
        "transpose_b": Attr("bool", False),
        "accumulate": Attr("string", ""),
        "activation_group": Attr("int", 0),
        "activation_dtype": Attr("string", ""),
        **EPILOGUE,
    },
    region=_region,
    weights=(1,),
    packing=_packing,
    inplace=EXTRAS,
    strided=(ALL_INPUTS,),
    formatted=(1,),
    cost=_cost,
)

OPS = (MATMUL,)
