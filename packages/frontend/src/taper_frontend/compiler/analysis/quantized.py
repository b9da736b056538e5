"""Read from the steps of a constant how a model computes it from integers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from taper_frontend.compiler.analysis.product import is_product
from taper_frontend.compiler.analysis.static import static_constants
from taper_frontend.compiler.graph.constants import (
    Constant,
    Derived,
    Parameter,
    derived,
    literal,
    steps,
)
from taper_runtime.base.records import NamedTuple
from taper_runtime.formats.blocks import BITS, LEAST_SCALE
from taper_runtime.ops.convert import FLOATS_16_BIT, cast
from taper_runtime.ops.quant import block_shapes
from taper_runtime.ops.rules import INTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taper_frontend.compiler.graph.graph import Graph
    from taper_runtime.ops.opdef import Shape

_MOST_PER_INTEGER = 32 // min(BITS)  # levels in an element of a packed tensor of integers

#: Ops that only move elements, and so move integers and their scales alike.
_MOVES = frozenset({"RESHAPE", "TRANSPOSE", "PERMUTE", "SLICE", "EXPAND", "COPY"})


class Quantized(NamedTuple):
    """A float tensor that is computed from integers: ``(q - zero) * scale + offset``.

    Attributes
    ----------
    q : Constant
        Integers, of the tensor's shape.
    scale, zero, offset : Constant or None
        Of shapes that broadcast to that of q; None where the model has none. Zero points are
        integers, the others are float32.
    rounded : str
        The 16-bit dtype to which the model rounds the numbers afterwards; empty if it does not.
    """

    q: Constant
    scale: Constant | None = None
    zero: Constant | None = None
    offset: Constant | None = None
    rounded: str = ""

    @property
    def parameters(self) -> list[Constant]:
        """Return what belongs to the integers and is present."""
        return [x for x in (self.scale, self.zero, self.offset) if x is not None]


def read_quantized(constant: Constant) -> Quantized | None:
    """Return the integers and the parameters of a float constant; None if it has other steps."""
    found = _read(constant)
    return None if found is None or found.scale is None else found


def is_quantized(constant: Constant) -> bool:
    """Return whether arithmetic computes a constant from a parameter of about as many integers.

    A CAST alone does not count: it decodes a format that kernels may read.
    """
    if not isinstance(constant, Derived) or constant.op == "CAST" or constant.dtype in INTS:
        return False
    least = constant.type.size / _MOST_PER_INTEGER
    return any(
        leaf.dtype in INTS and leaf.type.size >= least
        for leaf in steps(constant)
        if isinstance(leaf, Parameter)
    )


def rounded_weights(graph: Graph) -> dict[str, str]:
    """Return the dtypes to which a model rounds decoded weights of products, by the weights."""
    constants = static_constants(graph)
    found: dict[str, str] = {}
    for node in graph.order():
        weight = node.inputs[1] if node.op == "MATMUL" else None
        constant = constants.get(weight) if weight else None
        quantized = None if constant is None or constant.is_open else read_quantized(constant)
        if quantized is not None and quantized.rounded:
            name = next((n for n in _names(quantized.q)), weight)
            found[str(name)] = quantized.rounded
    return found


def _names(constant: Constant) -> Iterator[str]:
    """Yield names of the parameters that a constant is made of."""
    for leaf in steps(constant):
        if isinstance(leaf, Parameter):
            yield leaf.names[0]


def unserved_weights(graph: Graph) -> list[str]:
    """Return quantized weights that products read as floats, by the names of their parameters."""
    constants = static_constants(graph)
    found: dict[str, None] = {}
    for node in graph.order():
        weight = node.inputs[node.definition.weights[0]] if is_product(node) else None
        constant = constants.get(weight) if weight else None
        if not isinstance(constant, Derived) or constant.is_open:
            continue
        source = constant.inputs[0] if constant.op == "PACK" else constant
        if source is not None and is_quantized(source):
            found[next(_names(source), "a constant")] = None
    return [*found]


def _read(constant: Constant) -> Quantized | None:
    if constant.dtype in INTS:
        return Quantized(constant)
    if not isinstance(constant, Derived):
        return None
    if constant.op == "CAST":
        return _read_cast(constant)
    if constant.op == "DEQUANTIZE":
        return _read_dequantize(constant)
    if constant.op in ("SUB", "ADD", "MUL"):
        return _read_arithmetic(constant)
    if constant.op in _MOVES and len(constant.inputs) == 1:
        return _read_move(constant)
    return None


def _read_cast(constant: Derived) -> Quantized | None:
    found = None if constant.inputs[0] is None else _read(constant.inputs[0])
    if found is None or constant.dtype not in (*FLOATS_16_BIT, "float32"):
        return None
    if constant.dtype in FLOATS_16_BIT and found.scale is not None:
        found = found._replace(rounded=constant.dtype)
    return found


def _read_dequantize(constant: Derived) -> Quantized | None:
    q, scale, *zero = (x for x in constant.inputs if x is not None)
    shapes = block_shapes(q.shape, scale.shape)
    if shapes is None or scale.dtype == "float64" or constant.dtype == "float64":
        return None
    scale, *zero = (
        _reshaped(_expanded(_reshaped(x, shapes[1]), shapes[0]), q.shape) for x in (scale, *zero)
    )
    return Quantized(
        q,
        _cast(scale, "float32"),
        zero[0] if zero else None,
        rounded=constant.dtype if constant.dtype in FLOATS_16_BIT else "",
    )


def _read_move(constant: Derived) -> Quantized | None:
    (source,) = constant.inputs
    found = None if source is None else _read(source)
    if found is None:
        return None

    def moved(x: Constant | None) -> Constant | None:
        if x is None:
            return None
        return derived(constant.op, [_expanded(x, found.q.shape)], constant.attrs)

    q, scale, zero, offset = (moved(x) for x in found[:4])
    return None if q is None else Quantized(q, scale, zero, offset, found.rounded)


def _read_arithmetic(constant: Derived) -> Quantized | None:
    """Read ``q - zero``, ``x * scale``, ``x + offset`` and ``x - offset``."""
    if constant.dtype != "float32":
        return None
    operands: list[Constant | None] = list(constant.inputs)
    if "scalar" in constant.attrs:
        number = literal(np.array(constant.attrs["scalar"], np.float32))
        operands.insert(constant.attrs["scalar_index"], number)
    first, second = operands
    if first is None or second is None:
        return None
    if constant.op != "SUB" and first.shape != constant.shape:
        first, second = second, first
    found = _read(first)
    if found is None or found.q.shape != constant.shape:
        if constant.op == "SUB":
            return None
        first, second = second, first
        found = _read(first)
    if found is None or found.q.shape != constant.shape or found.rounded:
        return None
    if constant.op == "MUL":
        if found.scale is not None or found.offset is not None:
            return None
        return found._replace(scale=second)
    if found.scale is not None:
        if found.offset is not None:
            return None
        return found._replace(offset=second if constant.op == "ADD" else _negated(second))
    zero = _integers(second)
    if zero is None or found.zero is not None:
        return None
    return found._replace(zero=zero if constant.op == "SUB" else _negated(zero))


def _integers(constant: Constant) -> Constant | None:
    """Return float numbers as integers, if they are."""
    found = _read(constant)
    if found is not None and not found.parameters:
        return _cast(found.q, "int32")
    value = constant.value()
    is_whole = np.isfinite(value).all() and (np.rint(value) == value).all()
    return _cast(constant, "int32") if is_whole and np.abs(value).max(initial=0) < 2**20 else None


def _reshaped(constant: Constant, shape: Shape) -> Constant:
    return constant if constant.shape == shape else derived("RESHAPE", [constant], {"shape": shape})


def _expanded(constant: Constant, shape: Shape) -> Constant:
    return constant if constant.shape == shape else derived("EXPAND", [constant], {"shape": shape})


def _negated(constant: Constant) -> Constant:
    return derived("NEG", [constant])


def _cast(constant: Constant, dtype: str) -> Constant:
    return constant if constant.dtype == dtype else derived("CAST", [constant], {"dtype": dtype})


# -- as the kernels read it ------------------------------------------------------------------------


def rows_of_table(found: Quantized) -> list[Constant] | None:
    """Return levels ``[V, D]``, scales ``[V, n]`` and perhaps zero points, which share blocks.

    Returns
    -------
    list of Constant or None
        None if it is no such table, or has offsets.
    """
    if found.scale is None or found.offset is not None or len(found.q.shape) != 2:
        return None
    whole = [_expanded(x, found.q.shape) for x in found.parameters]
    width = found.q.shape[1]
    size = _block([derived("TRANSPOSE", [x], {"axis0": 0, "axis1": 1}) for x in whole], width)
    every = {"axis": 1, "start": 0, "stop": width, "step": size}
    scale, *zero = (derived("SLICE", [x], every) for x in whole)
    narrow = _narrowest([scale])
    return [found.q, scale if narrow is None else _cast(scale, narrow), *zero]


def packed(found: Quantized, is_transposed: bool) -> Constant | None:
    """Return a quantized matrix in the smallest format of blocks; None if none can hold it.

    Parameters
    ----------
    found : Quantized
        A matrix ``[K, N]``.
    is_transposed : bool
        Whether it is ``[N, K]`` instead.
    """
    if found.scale is None:
        return None
    shape = found.q.shape
    q, *parameters = (_in_columns(x, shape, is_transposed) for x in (found.q, *found.parameters))
    size = _block(parameters, q.shape[0])
    if size % 8:
        return None
    every = {"axis": 0, "start": 0, "stop": q.shape[0], "step": size}
    parameters = [derived("SLICE", [x], every) for x in parameters]
    scale, *shifts = parameters
    zero = shifts.pop(0) if found.zero is not None else None
    narrow = _narrowest([scale, *shifts])
    if narrow is None:
        return None
    for bits in sorted(BITS):
        levels, zeros = _within(bits, q, zero, scale.shape)
        if levels is None:
            continue
        if zeros is not None and shifts:
            return None
        beside = [zeros] if zeros is not None else [_cast(x, narrow) for x in shifts]
        shift = "zeros" if zeros is not None else "offsets" if shifts else "symmetric"
        name = f"blocks.{bits}.{size}.{narrow}.{shift}"
        return derived("PACK", [levels, _cast(scale, narrow), *beside], {"format": name})
    return None


def _in_columns(constant: Constant, shape: Shape, is_transposed: bool) -> Constant:
    whole = _expanded(constant, shape)
    return derived("TRANSPOSE", [whole], {"axis0": 0, "axis1": 1}) if is_transposed else whole


def _block(parameters: Sequence[Constant], rows: int) -> int:
    """Return how many rows of a matrix have equal parameters, everywhere."""
    size = rows
    for constant in parameters:
        value = constant.value()
        size = math.gcd(size, *(1 + np.flatnonzero((value[1:] != value[:-1]).any(1))).tolist())
    return size


def _narrowest(constants: Sequence[Constant]) -> str | None:
    """Return the dtype in which the model has scales and offsets; None if kernels take none."""
    values = [x.value() for x in constants]
    least = np.abs(values[0][values[0] != 0]).min(initial=1)
    if not all(np.isfinite(value).all() for value in values) or least < LEAST_SCALE:
        return None
    dtypes = {leaf.dtype for x in constants for leaf in steps(x)}
    for dtype in FLOATS_16_BIT:
        if dtype in dtypes and all(
            np.array_equal(cast(cast(value, dtype), "float32"), value) for value in values
        ):
            return dtype
    return "float32"


def _within(
    bits: int, q: Constant, zero: Constant | None, shape: Shape
) -> tuple[Constant | None, Constant | None]:
    """Return integers and zero points ``shape`` as signed integers of some bits.

    Zero points that are all 0 are left out. There are no integers if they need more bits.
    """
    limit = 2 ** (bits - 1)
    whole, beside = q.value(), 0 if zero is None else zero.value()
    low = min(int(np.min(x, initial=0)) for x in (whole, beside))
    high = max(int(np.max(x, initial=0)) for x in (whole, beside))
    if low >= -limit and high < limit:
        by = 0
    elif low >= 0 and high < 2 * limit:
        by = limit
    else:
        return None, None
    if np.all(beside == by):
        return _lowered(q, by), None
    if zero is None:
        zero = _expanded(literal(np.zeros((), np.int32)), shape)
    return _lowered(q, by), _lowered(zero, by)


def _lowered(constant: Constant, by: int) -> Constant:
    """Subtract a number from integers; return int8."""
    if by:
        wide = _cast(constant, "int16")
        constant = derived("SUB", [wide], {"scalar": by, "scalar_index": 1})
    return _cast(constant, "int8")
