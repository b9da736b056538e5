"""Say OpenInfer's ops in Taper's: each a formula that gives the same, to the bit for integers.

An op of Taper that a program calls by its own name, ``taper.NAME``, is that node. What stands in no
formula here is refused: nothing is approximated.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from taper_frontend.compiler.graph.constants import derived, literal
from taper_frontend.openinfer.refusal import CannotLower
from taper_runtime.dtypes import DTYPES
from taper_runtime.errors import InternalError
from taper_runtime.openinfer.dtypes import from_taper_name, taper_name
from taper_runtime.openinfer.ops.rules import complete, output_type, reduced_axes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from taper_frontend.openinfer.scope import Scope

#: How programs call an op of Taper.
PREFIX = "taper."

#: What elements are computed in where their own type is for storage.
_NARROW = ("float16", "bfloat16")


class Call(NamedTuple):
    """One call, in a scope.

    Attributes
    ----------
    scope : Scope
    inputs : list of str
        Tensors of one dtype, but for the condition of ``filter``.
    settings : mapping
        All of them, by their first names.
    dtype : str
        Of the first input; one of Taper's.
    result : str
        Of the result.
    """

    scope: Scope
    inputs: list[str]
    settings: Mapping[str, Any]
    dtype: str
    result: str

    @property
    def is_float(self) -> bool:
        """Whether the inputs are floats."""
        return self.dtype.startswith("float")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first input."""
        return self.scope.type(self.inputs[0]).shape


def lower_op(
    scope: Scope, op: str, inputs: Sequence[str], settings: Mapping[str, Any], declared: str
) -> str:
    """Return the tensor that a call gives.

    Parameters
    ----------
    scope : Scope
    op : str
        As the program calls it.
    inputs : sequence of str
        Tensors of the scope.
    settings : mapping
        As the program gives them, with the values of variables in place of their names.
    declared : str
        OpenInfer's dtype of the output.

    Raises
    ------
    CannotLower
        If Taper's ops do not compute the same.
    OpError, NoKernelError
        If the op does not allow these inputs or settings.
    """
    if op.startswith(PREFIX):
        tensor = scope.emit(op.removeprefix(PREFIX), inputs, **settings)
        if scope.type(tensor).dtype != taper_name(declared):
            got = scope.type(tensor).dtype
            raise CannotLower(f"op {op}: expected an output of {declared}, got {got}")
        return tensor
    types = [scope.type(x) for x in inputs]
    dtypes = [from_taper_name(type_.dtype) for type_ in types]
    shapes = [type_.shape for type_ in types]
    dtype, shape = output_type(op, list(zip(dtypes, shapes, strict=True)), settings, declared)
    result = taper_name(dtype)
    if op not in _FORMULAS or result is None:
        raise CannotLower(f"op {op}: no op of a plan computes it of {', '.join(dtypes)}")
    given = complete(op, dtypes, settings)
    if types[0].dtype in _NARROW and op != "cast":
        inputs = [scope.cast(x, "float32") if scope.type(x).dtype in _NARROW else x for x in inputs]
        inner = "float32" if result in _NARROW else result
        tensor = _FORMULAS[op](Call(scope, list(inputs), given, "float32", inner))
        tensor = scope.cast(tensor, result)
    else:
        tensor = _FORMULAS[op](Call(scope, list(inputs), given, types[0].dtype, result))
    if scope.type(tensor)[:2] != (result, shape):
        raise InternalError(f"op {op}: {result} {shape}, its formula gives {scope.type(tensor)}")
    return tensor


def _direct(op: str, of_bools: str = "") -> Callable[[Call], str]:
    """The formula that is one op of Taper; ``acc`` widens first."""

    def formula(call: Call) -> str:
        inputs = call.inputs
        if call.settings.get("acc"):
            inputs = [call.scope.cast(x, call.result) for x in inputs]
        chosen = of_bools if of_bools and call.dtype == "bool" else op
        return call.scope.emit(chosen, inputs)

    return formula


def _by_divisor(op: str) -> Callable[[Call], str]:
    """A quotient, which is the mask where the divisor is 0."""

    def formula(call: Call) -> str:
        scope, (a, b) = call.scope, call.inputs
        mask = call.settings.get("div_by_zero_mask")
        if mask is None and not call.is_float:
            return scope.emit("TRUNC_DIV" if op == "DIV" else op, [a, b])  # 0 by 0
        quotient = scope.emit(op if call.is_float or op != "DIV" else "TRUNC_DIV", [a, b])
        return _where_zero(scope, b, math.nan if mask is None else mask, quotient)

    return formula


def _where_zero(scope: Scope, divisor: str, value: float, otherwise: str) -> str:
    """Return ``value`` where the divisor is 0, else the other tensor."""
    is_zero = scope.binary("EQ", divisor, 0)
    return scope.emit("WHERE", [is_zero, otherwise], scalar=value, scalar_index=1)


def _recip(call: Call) -> str:
    (x,), mask = call.inputs, call.settings["div_by_zero_mask"]
    quotient = call.scope.emit("RECIPROCAL", [x])
    return _where_zero(call.scope, x, math.nan if mask is None else mask, quotient)


def _fma(call: Call) -> str:
    a, b, c = call.inputs
    return call.scope.emit("ADD", [call.scope.emit("MUL", [a, b]), c])


def _abs(call: Call) -> str:
    x = call.scope.cast(call.inputs[0], call.result)
    return x if call.dtype in ("uint8", "bool") else call.scope.emit("ABS", [x])


def _matmul(call: Call) -> str:
    scope, inputs = call.scope, call.inputs
    if call.dtype == "bool":  # where a count is above 0, which a wider integer holds
        counts = scope.emit("MATMUL", [scope.cast(x, "int64") for x in inputs])
        return scope.binary("GT", counts, 0)
    return scope.emit("MATMUL", [scope.cast(x, call.result) for x in inputs])


def _relu(call: Call) -> str:
    scope, (x,) = call.scope, call.inputs
    alpha, limit = call.settings["alpha"], call.settings["clamp_max"]
    if call.dtype == "bool":
        return x if limit else scope.emit("LOGICAL_AND", [x], scalar=False, scalar_index=1)
    if alpha == 0:
        x = scope.emit("RELU", [x])
    elif alpha != 1:
        is_low = scope.binary("LT", x, 0)
        x = scope.emit("WHERE", [is_low, scope.binary("MUL", x, alpha), x])
    return x if limit == math.inf else _bounded(scope, "MINIMUM", x, limit)


def _bounded(scope: Scope, op: str, x: str, limit: float) -> str:
    """Return ``x`` where it keeps a limit, else that; an infinity of the right sign is none."""
    if limit == (math.inf if op == "MINIMUM" else -math.inf):
        return x
    if math.isinf(limit) and not scope.type(x).dtype.startswith("float"):
        raise CannotLower(f"a limit of {limit} for integers leaves none of them")
    return scope.binary(op, x, limit)


def _clamp(call: Call) -> str:
    low = _bounded(call.scope, "MAXIMUM", call.inputs[0], call.settings["min"])
    return _bounded(call.scope, "MINIMUM", low, call.settings["max"])


def _round(call: Call) -> str:
    return _rounded(call.scope, call.inputs[0], "nearest")


def _rounded(scope: Scope, x: str, mode: str) -> str:
    """Round floats to integers; halves go away from zero where the mode is nearest."""
    if mode != "nearest":
        return scope.emit(mode.upper(), [x])
    whole = scope.emit("TRUNC", [x])
    is_far = scope.binary("GE", scope.emit("ABS", [scope.emit("SUB", [x, whole])]), 0.5)
    beyond = scope.emit("ADD", [whole, scope.emit("SIGN", [x])])
    return scope.emit("WHERE", [is_far, beyond, whole])


def _sign(call: Call) -> str:
    scope, (x,) = call.scope, call.inputs
    above, below = (scope.cast(scope.binary(op, x, 0), "int8") for op in ("GT", "LT"))
    return scope.emit("SUB", [above, below])


def _shift(op: str) -> Callable[[Call], str]:
    def formula(call: Call) -> str:
        scope, (x,), bits = call.scope, call.inputs, call.settings["bits"]
        width = 8 * DTYPES[call.dtype].size
        if bits >= width:
            if op == "LEFT_SHIFT" or call.dtype == "uint8":
                return scope.binary("BITWISE_AND", x, 0)
            bits = width - 1
        return scope.emit(op, [x, scope.constant(bits, call.dtype, "bits")])

    return formula


def _is_finite(call: Call) -> str:
    scope, (x,) = call.scope, call.inputs
    bad = scope.emit("LOGICAL_OR", [scope.emit("ISNAN", [x]), scope.emit("ISINF", [x])])
    good = scope.emit("LOGICAL_NOT", [bad])
    return scope.emit("ALL", [good], axes=tuple(range(len(call.shape))))


def _is_neg(call: Call) -> str:
    return call.scope.binary("LT", call.inputs[0], 0)


def _filter(call: Call) -> str:
    scope, (a, b, cond) = call.scope, call.inputs
    if scope.type(cond).dtype != "bool":
        cond = scope.binary("NE", cond, 0)
    return scope.emit("WHERE", [cond, a, b])


def _reduction(op: str) -> Callable[[Call], str]:
    def formula(call: Call) -> str:
        scope, x = call.scope, call.scope.cast(call.inputs[0], call.result)
        axes = reduced_axes(op, len(call.shape), call.settings)
        if op == "MEAN" and not call.is_float:
            return _mean_of_integers(call, x, axes)
        return scope.emit(op, [x], axes=axes, keepdim=call.settings["keepdims"])

    return formula


def _mean_of_integers(call: Call, x: str, axes: tuple[int, ...]) -> str:
    """The exact mean rounded toward zero; the sum of integers of 64 bits could pass their range."""
    if call.dtype == "int64":
        raise CannotLower("op mean_axis: its sum of i64 may be wider than any integer of a plan")
    count = math.prod(call.shape[axis] for axis in axes)
    wide = call.scope.cast(x, "int64")
    total = call.scope.emit("SUM", [wide], axes=axes, keepdim=call.settings["keepdims"])
    mean = call.scope.binary("TRUNC_DIV", total, count or 1)
    return call.scope.cast(mean, call.result)


def _search(op: str) -> Callable[[Call], str]:
    """Where the extreme is; the last of equals is the first of the reversed elements."""

    def formula(call: Call) -> str:
        scope, (x,) = call.scope, call.inputs
        keepdim = call.settings["keepdims"]
        (axis,) = reduced_axes(op, len(call.shape), call.settings)
        first = scope.emit(op, [x], axis=axis, keepdim=keepdim)
        if call.settings["select_first"]:
            return first
        turned = scope.emit(op, [scope.emit("FLIP", [x], axes=(axis,))], axis=axis, keepdim=keepdim)
        last = scope.emit("SUB", [turned], scalar=call.shape[axis] - 1, scalar_index=0)
        if not call.is_float:
            return last
        is_nan = scope.emit("ANY", [scope.emit("ISNAN", [x])], axes=(axis,), keepdim=keepdim)
        return scope.emit("WHERE", [is_nan, first, last])  # of NaN the first, in either case

    return formula


def _cast(call: Call) -> str:
    scope, (x,), to = call.scope, call.inputs, call.result
    source = DTYPES[call.dtype].storage.kind if call.dtype != "bfloat16" else "f"
    if source != "f" or to == "bfloat16" or to.startswith("float"):
        return scope.cast(x, to)
    if not call.settings["saturate"]:
        raise CannotLower("op cast: what integers beyond the range become without saturate")
    if call.dtype in _NARROW:
        x = scope.cast(x, "float32")
    x = _rounded(scope, x, call.settings["rounding_mode"])
    limits = np.iinfo(to)
    above = scope.binary("GE", x, float(limits.max + 1))
    below = scope.binary("LT", x, float(limits.min))
    outside = scope.emit(
        "LOGICAL_OR", [scope.emit("LOGICAL_OR", [above, below]), scope.emit("ISNAN", [x])]
    )
    safe = scope.emit("WHERE", [outside, x], scalar=0.0, scalar_index=1)
    inside = scope.cast(safe, to)
    capped = scope.emit("WHERE", [above, inside], scalar=int(limits.max), scalar_index=1)
    return scope.emit("WHERE", [below, capped], scalar=int(limits.min), scalar_index=1)


def _fill(call: Call) -> str:
    one = literal(np.asarray(call.settings["value"], DTYPES[call.dtype].storage), call.dtype)
    value = derived("EXPAND", [one], {"shape": call.shape}) if call.shape else one
    return call.scope.graph.add_constant("fill", value)


_FORMULAS: Mapping[str, Callable[[Call], str]] = {
    "add": _direct("ADD"),
    "mul": _direct("MUL"),
    "sub": _direct("SUB"),
    "div": _by_divisor("DIV"),
    "floor_div": _by_divisor("FLOOR_DIV"),
    "rem": _direct("FMOD"),
    "fma": _fma,
    "recip": _recip,
    "neg": _direct("NEG"),
    "abs": _abs,
    "matmul": _matmul,
    "relu": _relu,
    "floor": _direct("FLOOR"),
    "ceil": _direct("CEIL"),
    "round": _round,
    "trunc": _direct("TRUNC"),
    "clamp": _clamp,
    "min": _direct("MINIMUM"),
    "max": _direct("MAXIMUM"),
    "sign": _sign,
    "and": _direct("BITWISE_AND", "LOGICAL_AND"),
    "or": _direct("BITWISE_OR", "LOGICAL_OR"),
    "xor": _direct("BITWISE_XOR", "LOGICAL_XOR"),
    "not": _direct("BITWISE_NOT", "LOGICAL_NOT"),
    "shl": _shift("LEFT_SHIFT"),
    "shr": _shift("RIGHT_SHIFT"),
    "eq": _direct("EQ"),
    "ne": _direct("NE"),
    "lt": _direct("LT"),
    "le": _direct("LE"),
    "gt": _direct("GT"),
    "ge": _direct("GE"),
    "is_finite": _is_finite,
    "is_nan": _direct("ISNAN"),
    "is_inf": _direct("ISINF"),
    "is_neg": _is_neg,
    "filter": _filter,
    "sum_axis": _reduction("SUM"),
    "mean_axis": _reduction("MEAN"),
    "prod_axis": _reduction("PROD"),
    "max_axis": _reduction("AMAX"),
    "min_axis": _reduction("AMIN"),
    "argmax_axis": _search("ARGMAX"),
    "argmin_axis": _search("ARGMIN"),
    "cast": _cast,
    "fill": _fill,
}
