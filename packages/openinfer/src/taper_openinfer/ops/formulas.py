"""Which op of Taper's computes the same as one of OpenInfer's: bit-equal for integers.

Elementwise ops become one op of Taper's or a tile program (MAP), so that a run of them is one pass
over memory. A type that is not here is computed in numpy.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from taper_openinfer.dtypes import DTYPES, taper_name
from taper_openinfer.ops import taper
from taper_openinfer.ops.rules import complete, reduced_axes
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Node = tuple[str, dict[str, Any]]
    Shape = tuple[int, ...]

_FLOATS = ("f32", "f64")
_INTS = ("i32", "i64")
#: What tile programs compute in.
_REALS = (*_FLOATS, *_INTS)
#: What a tile program widens narrow types to; results are narrowed again, integers wrap then.
_WIDER = {"f16": "f32", "bf16": "f32", "i8": "i32", "i16": "i32", "u8": "i32"}


def native_node(
    op: str,
    dtypes: Sequence[str],
    shapes: Sequence[Shape],
    settings: Mapping[str, Any],
    out: tuple[str, Shape],
) -> Node | None:
    """Return the op of Taper's registry that computes a call, and its attrs.

    Parameters
    ----------
    op : str
    dtypes, shapes : sequence
        Of the inputs.
    settings : mapping
        As programs give them.
    out : (str, tuple of int)
        What :func:`output_type` says.

    Returns
    -------
    (str, dict) or None
        It takes the call's inputs in their order. None where no kernel computes the same.
    """
    if taper.is_taper(op):
        if settings.get(taper.OUTPUT, 0) or not taper.definition(op).native:
            return None
        return op.removeprefix(taper.PREFIX), taper.attrs_of(op, settings)
    if any(taper_name(dtype) is None for dtype in (*dtypes, out[0])):
        return None
    full = complete(op, dtypes, settings)
    if op in _WHOLE:
        return _WHOLE[op](op, dtypes[0], shapes, full)
    rule = _PROGRAMS.get(op)
    return None if rule is None else _program(rule, dtypes, full, out[0])


class _Call(NamedTuple):
    """A call whose tile program is being written."""

    program: Program
    dtype: str  # that is computed in
    settings: Mapping[str, Any]
    has_bool_condition: bool  # whether the last input is bool


class Program:
    """A tile program; values are numbers as in :func:`taper_runtime.ops.map.infer_program`."""

    def __init__(self, count: int) -> None:
        self._values = count
        self._code: list[str] = []
        self._args: list[int] = []
        self._scalars: list[float] = []

    def add(self, code: str, *operands: int) -> int:
        """Add an instruction; return the number of its value."""
        self._code.append(code)
        self._args += operands
        self._values += 1
        return self._values - 1

    def scalar(self, value: float) -> int:
        """Return the number of a scalar."""
        self._scalars.append(value)
        return -len(self._scalars)

    def node(self, inputs: int, result: int) -> Node:
        """Return the op whose value is ``result``, the last one; a copy if that is an input."""
        if result < inputs:
            return "COPY", {}
        if len(self._code) == 1 and self._args == list(range(inputs)):
            name, _, dtype = self._code[0].partition(":")
            return name, {"dtype": dtype} if dtype else {}
        return "MAP", {"code": self._code, "args": self._args, "scalars": self._scalars}


def _program(
    rule: tuple[tuple[str, ...], Callable[..., int | None]],
    dtypes: Sequence[str],
    settings: Mapping[str, Any],
    result: str,
) -> Node | None:
    """Write the tile program of an elementwise op; None for types that none serves."""
    allowed, write = rule
    dtype = settings.get("acc") or dtypes[0]
    dtype = _WIDER.get(dtype, dtype)
    if dtype not in allowed:
        return None
    program = Program(len(dtypes))
    values = [
        value if given in (dtype, "bool") else program.add(f"CAST:{taper_name(dtype)}", value)
        for value, given in enumerate(dtypes)
    ]
    last = write(_Call(program, dtype, settings, dtypes[-1] == "bool"), *values)
    if last is not None and result in _WIDER:
        last = program.add(f"CAST:{taper_name(result)}", last)
    return None if last is None else program.node(len(dtypes), last)


def _direct(code: str) -> Callable[..., int]:
    """The micro-op of that name."""
    return lambda call, *values: call.program.add(code, *values)


def _where_zero(call: _Call, divisor: int, rule: float | None, quotient: int) -> int:
    """Put the mask, or what the rule says, where the divisor is 0; None leaves the quotient."""
    mask = call.settings["div_by_zero_mask"]
    value = rule if mask is None else mask
    if value is None:
        return quotient
    is_zero = call.program.add("EQ", divisor, call.program.scalar(0))
    return call.program.add("WHERE", is_zero, call.program.scalar(value), quotient)


def _div(call: _Call, a: int, b: int) -> int:
    if call.dtype in _FLOATS:
        return _where_zero(call, b, math.nan, call.program.add("DIV", a, b))
    return _where_zero(call, b, None, call.program.add("TRUNC_DIV", a, b))  # 0 by 0


def _floor_div(call: _Call, a: int, b: int) -> int:
    return _where_zero(call, b, None, call.program.add("FLOOR_DIV", a, b))


def _recip(call: _Call, x: int) -> int:
    return _where_zero(call, x, math.nan, call.program.add("RECIPROCAL", x))


def _fma(call: _Call, a: int, b: int, c: int) -> int:
    return call.program.add("ADD", call.program.add("MUL", a, b), c)


def _relu(call: _Call, x: int) -> int:
    program, alpha = call.program, call.settings["alpha"]
    if alpha == 0:
        x = program.add("RELU", x)
    else:
        is_low = program.add("LT", x, program.scalar(0))
        x = program.add("WHERE", is_low, program.add("MUL", x, program.scalar(alpha)), x)
    return _bounded(call, "MINIMUM", x, call.settings["clamp_max"], math.inf)


def _bounded(call: _Call, code: str, x: int, bound: float, none: float) -> int:
    """Keep a bound; ``none`` is the one that bounds nothing."""
    if bound == none:
        return x
    return call.program.add(code, x, call.program.scalar(bound))


def _clamp(call: _Call, x: int) -> int:
    low = _bounded(call, "MAXIMUM", x, call.settings["min"], -math.inf)
    return _bounded(call, "MINIMUM", low, call.settings["max"], math.inf)


def _round(call: _Call, x: int) -> int:
    program = call.program
    whole = program.add("TRUNC", x)
    part = program.add("ABS", program.add("SUB", x, whole))
    is_far = program.add("GE", part, program.scalar(0.5))
    return program.add("WHERE", is_far, program.add("ADD", whole, program.add("SIGN", x)), whole)


def _is_neg(call: _Call, x: int) -> int:
    return call.program.add("LT", x, call.program.scalar(0))


def _filter(call: _Call, a: int, b: int, condition: int) -> int:
    if not call.has_bool_condition:
        condition = call.program.add("NE", condition, call.program.scalar(0))
    return call.program.add("WHERE", condition, a, b)


def _fill(call: _Call, x: int) -> int:
    """A comparison of x with itself is a condition; what is chosen where, says nothing of x."""
    program, value = call.program, call.program.scalar(call.settings["value"])
    once = program.add("WHERE", program.add("EQ", x, x), value, x)
    if call.dtype not in _FLOATS:
        return once
    return program.add("WHERE", program.add("EQ", x, x), once, value)  # where x is NaN


def _cast(call: _Call, x: int) -> int | None:
    program, to = call.program, call.settings["to"]
    target = _WIDER.get(to, to)
    if DTYPES[to].kind == "float":
        if target not in _FLOATS:
            return None
        return x if target == call.dtype else program.add(f"CAST:{taper_name(target)}", x)
    if call.dtype in _INTS:
        return x if target == call.dtype else program.add(f"CAST:{taper_name(target)}", x)
    if not call.settings["saturate"]:
        return None
    mode = call.settings["rounding_mode"]
    x = _round(call, x) if mode == "nearest" else program.add(mode.upper(), x)
    low, high = DTYPES[to].low, DTYPES[to].high
    beyond = program.add("GE", x, program.scalar(float(high + 1)))
    below = program.add("LT", x, program.scalar(float(low)))
    outside = program.add(
        "LOGICAL_OR", program.add("LOGICAL_OR", beyond, below), program.add("ISNAN", x)
    )
    inside = program.add("WHERE", outside, program.scalar(0.0), x)
    whole = program.add(f"CAST:{taper_name(target)}", inside)
    whole = program.add("WHERE", beyond, program.scalar(int(high)), whole)
    return program.add("WHERE", below, program.scalar(int(low)), whole)


_BITS = (*_INTS, "bool")
_ANY = (*_REALS, "bool")

#: Element types that are computed in, and what writes the tile program.
_PROGRAMS: dict[str, tuple[tuple[str, ...], Callable[..., int | None]]] = {
    "add": (_ANY, _direct("ADD")),
    "mul": (_ANY, _direct("MUL")),
    "sub": (_REALS, _direct("SUB")),
    "div": (_REALS, _div),
    "floor_div": (_INTS, _floor_div),
    "rem": (_INTS, _direct("FMOD")),
    "fma": (_FLOATS, _fma),
    "recip": (_FLOATS, _recip),
    "neg": (_REALS, _direct("NEG")),
    "abs": (_REALS, _direct("ABS")),
    "relu": (_REALS, _relu),
    "floor": (_FLOATS, _direct("FLOOR")),
    "ceil": (_FLOATS, _direct("CEIL")),
    "round": (_FLOATS, _round),
    "trunc": (_FLOATS, _direct("TRUNC")),
    "clamp": (_REALS, _clamp),
    "sign": (_REALS, _direct("SIGN")),
    "min": (_REALS, _direct("MINIMUM")),
    "max": (_REALS, _direct("MAXIMUM")),
    "and": (_BITS, _direct("BITWISE_AND")),
    "or": (_BITS, _direct("BITWISE_OR")),
    "xor": (_BITS, _direct("BITWISE_XOR")),
    "not": (_BITS, _direct("BITWISE_NOT")),
    "eq": (_ANY, _direct("EQ")),
    "ne": (_ANY, _direct("NE")),
    "lt": (_REALS, _direct("LT")),
    "le": (_REALS, _direct("LE")),
    "gt": (_REALS, _direct("GT")),
    "ge": (_REALS, _direct("GE")),
    "is_nan": (_FLOATS, _direct("ISNAN")),
    "is_inf": (_FLOATS, _direct("ISINF")),
    "is_neg": (_REALS, _is_neg),
    "filter": (_ANY, _filter),
    "cast": (_REALS, _cast),
    "fill": (_ANY, _fill),
}


def _product(
    op: str, dtype: str, shapes: Sequence[Shape], settings: Mapping[str, Any]
) -> Node | None:
    return ("MATMUL", {}) if dtype == "f32" else None


def _reduction(name: str, dtypes: tuple[str, ...]) -> Callable[..., Node | None]:
    """Reduce over axes by the op of that name, in these element types."""

    def node(
        op: str, dtype: str, shapes: Sequence[Shape], settings: Mapping[str, Any]
    ) -> Node | None:
        if dtype not in dtypes or settings.get("acc") or not settings.get("select_first", True):
            return None
        axes = reduced_axes(op, len(shapes[0]), settings)
        where = {"axis": axes[0]} if "axis" in settings else {"axes": axes}
        return name, {**where, "keepdim": settings["keepdims"]}

    return node


_COMPARED = ("f32", "i32", "i64")

_WHOLE: dict[str, Callable[..., Node | None]] = {
    "matmul": _product,
    "sum_axis": _reduction("SUM", ("f32", "i64")),
    "mean_axis": _reduction("MEAN", ("f32",)),
    "prod_axis": _reduction("PROD", ("f32", "i64")),
    "max_axis": _reduction("AMAX", _COMPARED),
    "min_axis": _reduction("AMIN", _COMPARED),
    "argmax_axis": _reduction("ARGMAX", _COMPARED),
    "argmin_axis": _reduction("ARGMIN", _COMPARED),
}
