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
from taper_runtime.formats.blocks import LEAST_SCALE, LEVELS, floats
from taper_runtime.ops.convert import FLOATS_16_BIT, cast
from taper_runtime.ops.quant import block_shapes
from taper_runtime.ops.type_rules import INTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taper_frontend.compiler.graph.graph import Graph
    from taper_runtime.formats.blocks import Levels
    from taper_runtime.ops.opdef import Shape

#: Levels in an element of a packed tensor of integers.
_MOST_PER_INTEGER = 32 // min(levels.bits for levels in LEVELS.values())

#: Formats have blocks of a multiple of so many rows.
_LEAST_BLOCK = min(levels.rows for levels in LEVELS.values())

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
        integers, or float32 as the others.
    rounded : str
        The 16-bit dtype to which the model rounds the numbers afterwards; empty if it does not.
    table : Constant or None
        A vector: q are positions in it, and its elements stand in place of q.
    """

    q: Constant
    scale: Constant | None = None
    zero: Constant | None = None
    offset: Constant | None = None
    rounded: str = ""
    table: Constant | None = None

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
    """Read one step of a constant and, by it, the steps before."""
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
    if constant.op == "NEG":
        return _read_negated(constant)
    if constant.op == "INDEX_SELECT":
        return _read_look_up(constant)
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


def _read_negated(constant: Derived) -> Quantized | None:
    """Read ``-(q * scale)``."""
    (source,) = constant.inputs
    found = None if source is None else _read(source)
    if found is None or found.scale is None or found.offset is not None or found.rounded:
        return None
    return found._replace(scale=_negated(found.scale))


def _read_look_up(constant: Derived) -> Quantized | None:
    """Read ``table[q]``."""
    table, q = constant.inputs
    if table is None or q is None or len(table.shape) != 1 or table.dtype != "float32":
        return None
    found = _read(q) if q.dtype in INTS else None
    return None if found is None else found._replace(table=table)


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
    return None if q is None else Quantized(q, scale, zero, offset, found.rounded, found.table)


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
    if found.zero is not None or found.table is not None:
        return None
    zero = _integers(second) or _cast(second, "float32")
    return found._replace(zero=zero if constant.op == "SUB" else _negated(zero))


def _integers(constant: Constant) -> Constant | None:
    """Return float numbers as integers, if they are."""
    found = _read(constant)
    if found is not None and not found.parameters and found.table is None:
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
        None if it is no such table, or has codes, offsets or zero points that are no integers.
    """
    if found.scale is None or found.offset is not None or len(found.q.shape) != 2:
        return None
    if found.table is not None:
        return None
    if found.zero is not None and found.zero.dtype not in INTS:
        return None
    whole = [_expanded(x, found.q.shape) for x in found.parameters]
    width = found.q.shape[1]
    size = _block([derived("TRANSPOSE", [x], {"axis0": 0, "axis1": 1}) for x in whole], width)
    every = {"axis": 1, "start": 0, "stop": width, "step": size}
    scale, *zero = (derived("SLICE", [x], every) for x in whole)
    narrow = _narrowest([scale])
    return [found.q, scale if narrow is None else _cast(scale, narrow), *zero]


class PackedBlocks(NamedTuple):
    """A matrix ``[K, N]`` in a format of blocks.

    Attributes
    ----------
    recipe : Constant
    order : numpy.ndarray or None
        int64 ``[K]``: row i of the matrix in blocks is row ``order[i]`` of the model's. None where
        they have the same order.
    """

    recipe: Constant
    order: np.ndarray | None = None


def packed(found: Quantized, is_transposed: bool) -> PackedBlocks | None:
    """Return a quantized matrix in the smallest format of blocks; None if none can hold it.

    Rows with equal parameters that do not lie side by side, as a quantizer chose them that begins
    with the largest activations, are brought together.

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
    size, order = _block(parameters, q.shape[0]), None
    if size % _LEAST_BLOCK:
        order = _together(parameters)
        q, *parameters = (_in_order(x, order) for x in (q, *parameters))
        size = _block(parameters, q.shape[0])
    parameters = [_every(size, x) for x in parameters]
    scale, *shifts = parameters
    zero = shifts.pop(0) if found.zero is not None else None
    whole = _Columns(q, scale, zero, shifts, size, found.table)
    split = None if order is not None else _common(found, is_transposed, size)
    # common scales take fewer bits
    for kind, levels in sorted(LEVELS.items(), key=lambda x: (x[1].bits, x[1].factors is None)):
        recipe = None
        if levels.factors is None:
            recipe = _pack(whole, kind, levels)
        elif split is not None and zero is None:
            recipe = _pack_factors(whole, split, kind, levels)
        if recipe is not None:
            return PackedBlocks(recipe, order)
    return None


def _together(parameters: Sequence[Constant]) -> np.ndarray:
    """Return an order of rows in which those with equal parameters lie side by side."""
    places: dict[bytes, int] = {}
    values = [x.value() for x in parameters]
    rows = range(len(values[0]))
    groups = [places.setdefault(b"".join(x[i].tobytes() for x in values), i) for i in rows]
    return np.argsort(groups, kind="stable")


def _in_order(constant: Constant, order: np.ndarray) -> Constant:
    return derived("INDEX_SELECT", [constant, literal(order)], {"axis": 0})


class _Columns(NamedTuple):
    """A matrix ``[K, N]`` with parameters for each block of ``size`` rows."""

    q: Constant
    scale: Constant
    zero: Constant | None
    offsets: list[Constant]
    size: int
    table: Constant | None


def _pack(of: _Columns, kind: int | str, levels: Levels) -> Constant | None:
    """Return the matrix in a format of such levels; None if they cannot hold it."""
    if of.size % levels.rows or not _is_code(of.table, levels.code) or not _are_finite(of):
        return None
    if of.zero is not None and of.zero.dtype not in INTS:
        shifted = _with_offsets(of, levels)
        if shifted is None:
            return None
        of = shifted
    if levels.shifts == ("offsets",) and not of.offsets:
        return None
    q, zeros = _within(levels, of.q, of.zero, of.scale.shape, bool(of.offsets))
    shift = "zeros" if zeros is not None else "offsets" if of.offsets else "symmetric"
    narrow = _narrowest([of.scale, *of.offsets])
    if q is None or shift not in levels.shifts or narrow is None:
        return None
    if zeros is not None and of.offsets:
        return None
    exponents = _exponents(of.scale) if shift == "symmetric" else None
    if exponents is not None:
        name = f"blocks.{kind}.{of.size}.e8m0.symmetric"
        return derived("PACK", [q, exponents], {"format": name})
    beside = [zeros] if zeros is not None else [_cast(x, narrow) for x in of.offsets]
    name = f"blocks.{kind}.{of.size}.{narrow}.{shift}"
    return derived("PACK", [q, _cast(of.scale, narrow), *beside], {"format": name})


def _with_offsets(of: _Columns, levels: Levels) -> _Columns | None:
    """Return a matrix with offsets in place of zero points that are no integers.

    None unless ``q * scale + offset``, rounded once, is the rounded product of ``q - zero`` and the
    scale: that difference and the offset must need no more bits than float32 has.
    """
    assert of.zero is not None
    by = None if of.offsets or levels.code else _lowering(levels, of.q.value())
    if by is None:
        return None
    q, zero = _lowered(of.q, by), of.zero
    if by:
        zero = derived("SUB", [zero], {"scalar": by, "scalar_index": 1})
    exact = of.zero.value().astype(np.float64) - by
    offsets = exact * of.scale.value()
    if not np.isfinite(offsets).all() or not np.array_equal(offsets.astype(np.float32), offsets):
        return None
    high = levels.low + 2**levels.bits
    most = max(high - exact.min(initial=0), exact.max(initial=0) - levels.low, 1)
    fraction = np.ldexp(exact, np.finfo(np.float32).nmant + 1 - math.ceil(math.log2(most)))
    if not np.array_equal(np.rint(fraction), fraction):
        return None
    offset = _negated(derived("MUL", [zero, of.scale]))
    return of._replace(q=q, zero=None, offsets=[offset])


def _lowering(levels: Levels, *values: np.ndarray) -> int | None:
    """Return what to subtract from integers so that the levels hold them; None if nothing does."""
    low = min(int(np.min(x, initial=0)) for x in values)
    high = max(int(np.max(x, initial=0)) for x in values)
    if low >= levels.low and high < levels.low + 2**levels.bits:
        return 0
    return -levels.low if low >= 0 and high < 2**levels.bits else None


def _common(found: Quantized, is_transposed: bool, size: int) -> list[_Columns] | None:
    """Read a scale, and an offset if there is one, as factors of common ones."""
    parts = []
    for constant in (found.scale, found.offset):
        inner = None if constant is None else _read(constant)
        if constant is None:
            continue
        if inner is None or inner.scale is None or inner.zero or inner.offset or inner.rounded:
            return None
        shape = found.q.shape
        q, scale = (_in_columns(_expanded(x, inner.q.shape), shape, is_transposed)
                    for x in (inner.q, inner.scale))  # fmt: skip
        rows = _block([scale], q.shape[0])
        parts.append(_Columns(_every(size, q), scale, None, [], rows, inner.table))
    return parts


def _pack_factors(
    of: _Columns, split: list[_Columns], kind: int | str, levels: Levels
) -> Constant | None:
    """Return the matrix in a format whose blocks have factors of common scales and offsets."""
    factors = levels.factors
    assert factors is not None
    rows = factors.rows or of.q.shape[0]
    if (
        of.size % levels.rows
        or rows % of.size
        or of.q.shape[0] % rows
        or len(split) != 1 + (factors.shift == "offsets")
        or not _is_code(of.table, levels.code)
        or not _are_finite(of)
    ):
        return None
    q, _ = _within(levels, of.q, None, of.scale.shape, bool(of.offsets))
    scales = [_every(rows, x.scale) for x in split]
    if q is None or _narrowest(scales) is None:
        return None
    for part, scale in zip(split, scales, strict=True):
        codes, value = part.q.value(), scale.value()
        if (
            part.size % rows
            or not _is_code(part.table, (4, 3) if factors.name == "e4m3" else ())
            or not factors.low <= codes.min() <= codes.max() <= factors.high
            or not np.array_equal(cast(cast(value, factors.scales), "float32"), value)
        ):
            return None
    if np.abs(of.scale.value()[of.scale.value() != 0]).min(initial=1) < LEAST_SCALE:
        return None
    narrow = [_cast(x, factors.scales) for x in scales]
    codes_of = [_cast(x.q, "int8" if factors.low < 0 else "uint8") for x in split]
    name = f"blocks.{kind}.{of.size}.{factors.scales}.{factors.shift}"
    return derived("PACK", [q, *narrow, *codes_of], {"format": name})


def _every(size: int, constant: Constant) -> Constant:
    """Return every row number ``size``."""
    rows = {"axis": 0, "start": 0, "stop": constant.shape[0], "step": size}
    return derived("SLICE", [constant], rows)


def _is_code(table: Constant | None, code: tuple[int, ...]) -> bool:
    """Return whether a table has the numbers of a float of such bits; no table, of integers."""
    if table is None or not code:
        return table is None and not code
    numbers, value = floats(*code), table.value()
    if value.shape != numbers.shape:
        return False
    finite = np.isfinite(value)
    return np.array_equal(value[finite], numbers[finite])


def _are_finite(of: _Columns) -> bool:
    """Return whether no level is the code of an infinity or NaN, which formats do not have."""
    if of.table is None:
        return True
    return bool(np.isfinite(of.table.value())[of.q.value()].all())


def _exponents(scale: Constant) -> Constant | None:
    """Return scales that are powers of 2 by a table of all of them as their exponents."""
    found = _read(scale)
    if found is None or found.parameters or found.table is None:
        return None
    table = found.table.value()
    if len(table) != 256:
        return None
    powers = np.ldexp(np.float32(1), np.arange(255) - 127)
    return _cast(found.q, "uint8") if np.array_equal(table[:255], powers) else None


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
    levels: Levels, q: Constant, zero: Constant | None, shape: Shape, is_shifted: bool
) -> tuple[Constant | None, Constant | None]:
    """Return levels as they are stored, and zero points ``shape``.

    Zero points that are all 0 are left out. There are no levels if they need more bits, or if
    offsets, which belong to the levels that the model has, would need others.
    """
    if levels.code:
        return (_cast(q, "uint8"), None) if zero is None else (None, None)
    beside = np.array(0) if zero is None else zero.value()
    by = _lowering(levels, q.value(), beside)
    if by is None:
        return None, None
    if np.all(beside == by):
        return _lowered(q, by), None
    if by and is_shifted:
        return None, None
    if zero is None:
        zero = _expanded(literal(np.zeros((), np.int32)), shape)
    return _lowered(q, by), _lowered(zero, by)


def _lowered(constant: Constant, by: int) -> Constant:
    """Subtract a number from integers; return int8."""
    if by:
        wide = _cast(constant, "int16")
        constant = derived("SUB", [wide], {"scalar": by, "scalar_index": 1})
    return _cast(constant, "int8")
