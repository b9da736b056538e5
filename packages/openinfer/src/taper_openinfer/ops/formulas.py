"""Define each of OpenInfer's ops as a formula of Taper's ops, in one table, :data:`FORMULAS`.

A formula is a list of nodes, written for the element type that a call is computed in. It is used in
three ways. The numpy evaluators of Taper's ops compute it (:meth:`Formula.evaluate`). The simulator
runs it as one node with a kernel (:func:`native_node`). A compiled program adds its nodes to its
graph (:func:`formula_of_plan`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_openinfer.dtypes import DTYPES, taper_name
from taper_openinfer.ops import taper
from taper_openinfer.ops.call_rules import complete, reduced_axes
from taper_openinfer.ops.table import FLOATS
from taper_runtime.base.records import NamedTuple
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.elementwise import MICROOPS, evaluate_micro

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Node = tuple[str, dict[str, Any]]
    Shape = tuple[int, ...]

#: The types that plans compute narrow types in. Results are converted back; integers wrap.
_WIDER = {"f16": "f32", "bf16": "f32", "i8": "i32", "i16": "i32", "u8": "i32"}


class Given(NamedTuple):
    """The call that a formula is written for.

    Attributes
    ----------
    dtype : str
        The element type of the computation: floats are f32 or f64.
    dtypes : sequence of str
        The element types of the inputs in the program.
    shape : tuple of int
        The shape of the first input.
    settings : mapping
        All settings of the call, by their first names.
    """

    dtype: str
    dtypes: Sequence[str]
    shape: Shape
    settings: Mapping[str, Any]

    @property
    def is_float(self) -> bool:
        """Return whether the computation uses floats."""
        return self.dtype in FLOATS


class FormulaNode(NamedTuple):
    """One node of a formula.

    Attributes
    ----------
    op : str
        An op of Taper's registry.
    operands : tuple of int
        ``v >= 0`` is a value: the inputs are numbered first, then the nodes' results. ``v < 0`` is
        the number ``scalars[-1 - v]``, which takes the type of the other operands.
    attrs : dict
        The op's attrs; the ``dtype`` of a CAST is an element type of OpenInfer's.
    """

    op: str
    operands: tuple[int, ...]
    attrs: dict[str, Any]


class Formula:
    """Nodes of Taper's ops that compute a call. Values are identified by numbers.

    Attributes
    ----------
    nodes : list of FormulaNode
    scalars : list of number
    result : int
        The value that is the call's result; it may be an input.
    """

    def __init__(self, count: int) -> None:
        self.nodes: list[FormulaNode] = []
        self.scalars: list[Any] = []
        self.result = 0
        self._count = count

    def add(self, op: str, *operands: int, **attrs: Any) -> int:
        """Add a node; return the number of its value."""
        self.nodes.append(FormulaNode(op, operands, attrs))
        return self._count + len(self.nodes) - 1

    def cast(self, value: int, dtype: str) -> int:
        """Add a conversion to an element type of OpenInfer's; return the number of its value."""
        return self.add("CAST", value, dtype=dtype)

    def scalar(self, value: float) -> int:
        """Add a scalar; return its number, which is negative."""
        self.scalars.append(value)
        return -len(self.scalars)

    def evaluate(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """Compute the formula in numpy, also in element types that plans lack."""
        values = list(inputs)
        for op, operands, attrs in self.nodes:
            given = [values[v] if v >= 0 else self.scalars[-1 - v] for v in operands]
            values.append(_evaluate_node(op, given, attrs))
        return values[self.result]

    def node(self) -> Node | None:
        """Return the formula as one node of its inputs in order: an op, or a tile program (MAP).

        Return None if one node cannot compute it.
        """
        if self.result < self._count:
            return "COPY", {}
        if len(self.nodes) == 1 and self.nodes[0].operands == tuple(range(self._count)):
            op, _, attrs = self.nodes[0]
            return op, {**attrs, "dtype": taper_name(attrs["dtype"])} if op == "CAST" else attrs
        if any(op not in MICROOPS and op != "CAST" for op, _, _ in self.nodes):
            return None
        code = [
            f"CAST:{taper_name(attrs['dtype'])}" if op == "CAST" else op
            for op, _, attrs in self.nodes
        ]
        args = [operand for node in self.nodes for operand in node.operands]
        return "MAP", {"code": code, "args": args, "scalars": self.scalars}


def _evaluate_node(op: str, given: Sequence[Any], attrs: Mapping[str, Any]) -> np.ndarray:
    if op == "CAST":  # Taper's evaluator takes uint16 as bfloat16, which no formula computes in
        return np.asarray(given[0]).astype(DTYPES[attrs["dtype"]].storage)
    if op in MICROOPS:
        return evaluate_micro(op, given)
    arrays = [np.asarray(value, given[0].dtype) for value in given]
    definition = REGISTRY[op]
    return np.asarray(definition.evaluate(arrays, definition.complete(attrs)))


def write(op: str, given: Given) -> Formula | None:
    """Write the formula of a call whose inputs are in the element type of the computation.

    Return None if the op has no formula for it.
    """
    row = FORMULAS.get(op)
    if row is None:
        return None
    formula = Formula(len(given.dtypes))
    formula.result = row.write(formula, given, *range(len(given.dtypes)))
    return formula


def formula_of_plan(
    op: str, dtypes: Sequence[str], shape: Shape, settings: Mapping[str, Any], result: str
) -> Formula | None:
    """Write the formula of a call for a plan, from its stored inputs to its stored result.

    Narrow element types are computed in wider ones. All element types must exist in plans.

    Parameters
    ----------
    op : str
    dtypes : sequence of str
    shape : tuple of int
        The shape of the first input.
    settings : mapping
        All of the call.
    result : str

    Returns
    -------
    Formula or None
        None if no ops of a plan compute the same result.
    """
    row = FORMULAS.get(op)
    if row is None:
        return None
    formula, dtype = Formula(len(dtypes)), _computed(dtypes, settings)
    values = [
        value if own in (dtype, "bool") else formula.cast(value, dtype)
        for value, own in enumerate(dtypes)
    ]
    last = row.write(formula, Given(dtype, dtypes, shape, settings), *values)
    formula.result = formula.cast(last, result) if result in _WIDER else last
    casts = (attrs["dtype"] for name, _, attrs in formula.nodes if name == "CAST")
    return formula if all(map(taper_name, casts)) else None


def _computed(dtypes: Sequence[str], settings: Mapping[str, Any]) -> str:
    dtype: str = settings.get("acc") or dtypes[0]
    return _WIDER.get(dtype, dtype)


def native_node(
    op: str,
    dtypes: Sequence[str],
    shapes: Sequence[Shape],
    settings: Mapping[str, Any],
    out: tuple[str, Shape],
) -> Node | None:
    """Return the Taper op that computes a call, and its attrs.

    Parameters
    ----------
    op : str
    dtypes, shapes : sequence
        The element types and the shapes of the inputs.
    settings : mapping
        The settings in the program.
    out : (str, tuple of int)
        The result of :func:`output_type`.

    Returns
    -------
    (str, dict) or None
        The op takes the call's inputs in order. None if no kernel computes the same result.
    """
    if taper.is_taper(op):
        if settings.get(taper.OUTPUT, 0) or not taper.definition(op).native:
            return None
        return op.removeprefix(taper.PREFIX), taper.attrs_of(op, settings)
    if any(taper_name(dtype) is None for dtype in (*dtypes, out[0])):
        return None
    full = complete(op, dtypes, settings)
    if op not in FORMULAS or _computed(dtypes, full) not in FORMULAS[op].kernels:
        return None
    formula = formula_of_plan(op, dtypes, shapes[0], full, out[0])
    return None if formula is None else formula.node()


# -- what is more than one node --------------------------------------------------------------------


def _same(op: str) -> Callable[..., int]:
    """Return a formula that is the elementwise op of that name."""
    return lambda f, given, *values: f.add(op, *values)


def _where_zero(f: Formula, given: Given, divisor: int, rule: float | None, quotient: int) -> int:
    """Select the quotient, or what the rule gives if the divisor is 0.

    A rule of None keeps the quotient.
    """
    mask = given.settings["div_by_zero_mask"]
    value = rule if mask is None else mask
    if value is None:
        return quotient
    return f.add("WHERE", f.add("EQ", divisor, f.scalar(0)), f.scalar(value), quotient)


def _div(f: Formula, given: Given, a: int, b: int) -> int:
    if given.is_float:
        return _where_zero(f, given, b, math.nan, f.add("DIV", a, b))
    return _where_zero(f, given, b, None, f.add("TRUNC_DIV", a, b))  # 0 by 0


def _floor_div(f: Formula, given: Given, a: int, b: int) -> int:
    return _where_zero(f, given, b, None, f.add("FLOOR_DIV", a, b))


def _recip(f: Formula, given: Given, x: int) -> int:
    return _where_zero(f, given, x, math.nan, f.add("RECIPROCAL", x))


def _fma(f: Formula, given: Given, a: int, b: int, c: int) -> int:
    return f.add("ADD", f.add("MUL", a, b), c)


def _abs(f: Formula, given: Given, x: int) -> int:
    return f.add("ABS", x) if DTYPES[given.dtype].low < 0 else x


def _relu(f: Formula, given: Given, x: int) -> int:
    alpha = given.settings["alpha"]
    if given.dtype == "bool":
        pass
    elif alpha == 0:
        x = f.add("RELU", x)
    else:
        is_low = f.add("LT", x, f.scalar(0))
        x = f.add("WHERE", is_low, f.add("MUL", x, f.scalar(alpha)), x)
    return _bounded(f, "MINIMUM", x, given.settings["clamp_max"], math.inf)


def _bounded(f: Formula, op: str, x: int, bound: float, none: float) -> int:
    """Clamp by a bound; ``none`` is the value that has no effect."""
    return x if bound == none else f.add(op, x, f.scalar(bound))


def _clamp(f: Formula, given: Given, x: int) -> int:
    low = _bounded(f, "MAXIMUM", x, given.settings["min"], -math.inf)
    return _bounded(f, "MINIMUM", low, given.settings["max"], math.inf)


def _round(f: Formula, given: Given, x: int) -> int:
    """Round halves away from zero; ROUND rounds them to even."""
    whole = f.add("TRUNC", x)
    part = f.add("ABS", f.add("SUB", x, whole))
    is_far = f.add("GE", part, f.scalar(0.5))
    return f.add("WHERE", is_far, f.add("ADD", whole, f.add("SIGN", x)), whole)


def _shift(op: str) -> Callable[..., int]:
    """Return a formula of a shift by a constant; 64 or more bits shift out everything."""
    return lambda f, given, x: f.add(op, x, f.scalar(min(given.settings["bits"], 64)))


def _is_finite(f: Formula, given: Given, x: int) -> int:
    good = f.add("LOGICAL_NOT", f.add("LOGICAL_OR", f.add("ISNAN", x), f.add("ISINF", x)))
    return f.add("ALL", good, axes=tuple(range(len(given.shape))))


def _is_neg(f: Formula, given: Given, x: int) -> int:
    return f.add("LT", x, f.scalar(0))


def _filter(f: Formula, given: Given, a: int, b: int, condition: int) -> int:
    if given.dtypes[-1] != "bool":
        condition = f.add("NE", condition, f.scalar(0))
    return f.add("WHERE", condition, a, b)


def _fill(f: Formula, given: Given, x: int) -> int:
    """Fill a tensor with a number; the input gives only the shape.

    A comparison of x with itself is the condition; both choices are constants.
    """
    value = f.scalar(given.settings["value"])
    once = f.add("WHERE", f.add("EQ", x, x), value, x)
    if not given.is_float:
        return once
    return f.add("WHERE", f.add("EQ", x, x), once, value)  # if x is NaN


def _cast(f: Formula, given: Given, x: int) -> int:
    """Convert between element types, with the rounding and the saturation of the settings."""
    to = given.settings["to"]
    target = _WIDER.get(to, to)
    if DTYPES[to].kind == "float" or not given.is_float:
        target = "f32" if to == "f8" else target  # it is rounded from float32
        return x if target == given.dtype else f.cast(x, target)
    mode = given.settings["rounding_mode"]
    x = _round(f, given, x) if mode == "nearest" else f.add(mode.upper(), x)
    if not given.settings["saturate"]:
        return _lowest_bits(f, x, to)
    low, high = DTYPES[to].low, DTYPES[to].high
    beyond = f.add("GE", x, f.scalar(float(high + 1)))
    below = f.add("LT", x, f.scalar(float(low)))
    outside = f.add("LOGICAL_OR", f.add("LOGICAL_OR", beyond, below), f.add("ISNAN", x))
    whole = f.cast(f.add("WHERE", outside, f.scalar(0.0), x), target)
    whole = f.add("WHERE", beyond, f.scalar(int(high)), whole)
    return f.add("WHERE", below, f.scalar(int(low)), whole)


def _lowest_bits(f: Formula, whole: int, to: str) -> int:
    """Return the low bits of a float that is a whole number, through u64, which plans lack."""
    low = f.add("FMOD", f.add("ABS", f.cast(whole, "f64")), f.scalar(2.0**64))
    bits = f.cast(f.add("WHERE", f.add("ISNAN", low), f.scalar(0.0), low), "u64")
    is_low = f.add("LT", whole, f.scalar(0))
    return f.cast(f.add("WHERE", is_low, f.add("NEG", bits), bits), to)


def _matmul(f: Formula, given: Given, a: int, b: int) -> int:
    if given.dtype != "bool":
        return f.add("MATMUL", a, b)
    counts = f.add("MATMUL", f.cast(a, "i64"), f.cast(b, "i64"))
    return f.add("GT", counts, f.scalar(0))


def _reduction(op: str) -> Callable[..., int]:
    return lambda f, given, x: f.add(op, x, **_reduced(op, given))


def _reduced(op: str, given: Given) -> dict[str, Any]:
    axes = reduced_axes(op, len(given.shape), given.settings)
    return {"axes": axes, "keepdim": given.settings["keepdims"]}


def _mean(f: Formula, given: Given, x: int) -> int:
    """Return the mean. For integers it is exact and rounded toward zero; that of nothing is 0."""
    reduced = _reduced("mean_axis", given)
    if given.is_float:
        return f.add("MEAN", x, **reduced)
    count = f.scalar(math.prod(given.shape[axis] for axis in reduced["axes"]) or 1)
    if given.dtypes[0] not in ("i64", "u64"):
        total = f.add("SUM", f.cast(x, "i64"), **reduced)
        return f.cast(f.add("TRUNC_DIV", total, count), given.dtype)
    # The sum may overflow, so quotients and remainders are summed separately, both rounded down.
    wholes, rests = f.add("FLOOR_DIV", x, count), f.add("REMAINDER", x, count)
    wholes, rests = f.add("SUM", wholes, **reduced), f.add("SUM", rests, **reduced)
    mean = f.add("ADD", wholes, f.add("FLOOR_DIV", rests, count))
    is_rest = f.add("NE", f.add("REMAINDER", rests, count), f.scalar(0))
    up = f.add("LOGICAL_AND", f.add("LT", mean, f.scalar(0)), is_rest)
    return f.add("ADD", mean, f.cast(up, given.dtype))


def _search(op: str) -> Callable[..., int]:
    """Return a formula for argmax or argmin; the last of equals is found by reversing the axis."""

    def write_search(f: Formula, given: Given, x: int) -> int:
        (axis,) = reduced_axes(op, len(given.shape), given.settings)
        attrs = {"axis": axis, "keepdim": given.settings["keepdims"]}
        if given.settings["select_first"]:
            return f.add(op, x, **attrs)
        turned = f.add(op, f.add("FLIP", x, axes=(axis,)), **attrs)
        return f.add("SUB", f.scalar(given.shape[axis] - 1), turned)

    return write_search


# -- the table -------------------------------------------------------------------------------------

_F32_F64 = ("f32", "f64")
_I32_I64 = ("i32", "i64")
_REALS = (*_F32_F64, *_I32_I64)
_BITS = (*_I32_I64, "bool")
_ANY = (*_REALS, "bool")
_COMPARED = ("f32", "i32", "i64")


class Row(NamedTuple):
    """An op of OpenInfer, as formulas and kernels of Taper's ops.

    Attributes
    ----------
    write : callable
        Adds nodes to a formula and returns the result's value, in the element type of the
        computation or of the op's result.
    kernels : tuple of str
        The element types of the computation that kernels support.
    """

    write: Callable[..., int]
    kernels: tuple[str, ...] = ()


#: Only popcount is missing: no op of Taper counts bits.
FORMULAS: Mapping[str, Row] = {
    "add": Row(_same("ADD"), _ANY),
    "mul": Row(_same("MUL"), _ANY),
    "sub": Row(_same("SUB"), _REALS),
    "div": Row(_div, _REALS),
    "floor_div": Row(_floor_div, _I32_I64),
    "rem": Row(_same("FMOD"), _I32_I64),
    "fma": Row(_fma, _F32_F64),
    "recip": Row(_recip, _F32_F64),
    "neg": Row(_same("NEG"), _REALS),
    "abs": Row(_abs, _REALS),
    "matmul": Row(_matmul, ("f32",)),
    "relu": Row(_relu, _REALS),
    "floor": Row(_same("FLOOR"), _F32_F64),
    "ceil": Row(_same("CEIL"), _F32_F64),
    "round": Row(_round, _F32_F64),
    "trunc": Row(_same("TRUNC"), _F32_F64),
    "clamp": Row(_clamp, _REALS),
    "min": Row(_same("MINIMUM"), _REALS),
    "max": Row(_same("MAXIMUM"), _REALS),
    "sign": Row(_same("SIGN"), _REALS),
    "and": Row(_same("BITWISE_AND"), _BITS),
    "or": Row(_same("BITWISE_OR"), _BITS),
    "xor": Row(_same("BITWISE_XOR"), _BITS),
    "not": Row(_same("BITWISE_NOT"), _BITS),
    "shl": Row(_shift("LEFT_SHIFT")),
    "shr": Row(_shift("RIGHT_SHIFT")),
    "eq": Row(_same("EQ"), _ANY),
    "ne": Row(_same("NE"), _ANY),
    "lt": Row(_same("LT"), _REALS),
    "le": Row(_same("LE"), _REALS),
    "gt": Row(_same("GT"), _REALS),
    "ge": Row(_same("GE"), _REALS),
    "is_finite": Row(_is_finite),
    "is_nan": Row(_same("ISNAN"), _F32_F64),
    "is_inf": Row(_same("ISINF"), _F32_F64),
    "is_neg": Row(_is_neg, _REALS),
    "filter": Row(_filter, _ANY),
    "sum_axis": Row(_reduction("SUM"), ("f32", "i64")),
    "mean_axis": Row(_mean, ("f32",)),
    "prod_axis": Row(_reduction("PROD"), ("f32", "i64")),
    "max_axis": Row(_reduction("AMAX"), _COMPARED),
    "min_axis": Row(_reduction("AMIN"), _COMPARED),
    "argmax_axis": Row(_search("ARGMAX"), _COMPARED),
    "argmin_axis": Row(_search("ARGMIN"), _COMPARED),
    "cast": Row(_cast, _REALS),
    "fill": Row(_fill, _ANY),
}
