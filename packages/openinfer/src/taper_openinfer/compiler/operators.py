"""Say OpenInfer's ops in Taper's: what computes the same, to the bit for integers.

:func:`taper_openinfer.ops.native_node` knows that for element types that kernels compute
in. Elementwise it gives a tile program, which becomes one node for each instruction here: passes
look at these, and fuse them again. Narrow types are computed in wider ones, and so are those that
plans lack (:mod:`.carriers`). What is left has formulas
below, and what has none is refused: nothing is approximated.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_openinfer.compiler.carriers import carrier, computed, is_carried, wrapped
from taper_openinfer.compiler.refusal import CannotLower
from taper_openinfer.compiler.scope import filled
from taper_openinfer.dtypes import DTYPES as ELEMENTS
from taper_openinfer.dtypes import from_taper_name, taper_name
from taper_openinfer.ops import complete, native_node, output_type, taper
from taper_openinfer.ops.rules import reduced_axes
from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import InternalError
from taper_runtime.base.records import NamedTuple
from taper_runtime.ops.elementwise import arity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from taper_openinfer.compiler.scope import Scope

#: What elements are computed in where their own type is for storage; exact before it is rounded,
#: or wraps, to their own.
_WIDER = {
    "float16": "float32",
    "bfloat16": "float32",
    "int8": "int32",
    "int16": "int32",
    "uint8": "int32",
}


class Call(NamedTuple):
    """One call, in a scope.

    Attributes
    ----------
    scope : Scope
    inputs : list of str
    settings : mapping
        All of them, by their first names.
    result : str
        Taper's dtype of the result.
    """

    scope: Scope
    inputs: list[str]
    settings: Mapping[str, Any]
    result: str

    @property
    def dtype(self) -> str:
        """Taper's dtype of the first input."""
        return self.scope.type(self.inputs[0]).dtype

    @property
    def is_float(self) -> bool:
        """Whether the first input has floats."""
        return "float" in self.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first input."""
        return self.scope.type(self.inputs[0]).shape


def lower_op(
    scope: Scope,
    op: str,
    inputs: Sequence[str],
    dtypes: Sequence[str],
    settings: Mapping[str, Any],
    declared: str | None,
) -> str:
    """Return the tensor that a call gives.

    Parameters
    ----------
    scope : Scope
    op : str
        As the program calls it.
    inputs : sequence of str
        Tensors of the scope.
    dtypes : sequence of str
        Their element types in the program.
    settings : mapping
        With the values of names in their place.
    declared : str or None
        OpenInfer's dtype of the output; None where the op decides.

    Raises
    ------
    CannotLower
        If Taper's ops do not compute the same.
    OpError, NoKernelError
        If the op does not allow these inputs or settings.
    """
    types = [scope.type(x) for x in inputs]
    shapes = [type_.shape for type_ in types]
    out = output_type(op, list(zip(dtypes, shapes, strict=True)), settings, declared)
    if taper.is_taper(op):
        attrs, name = taper.attrs_of(op, settings), op.removeprefix(taper.PREFIX)
        index: int = settings.get(taper.OUTPUT, 0)
        return scope.graph.add_multi_output(name, inputs, attrs, source=scope.source)[index]
    if is_carried(out[0]) or any(map(is_carried, dtypes)):
        return _carried(scope, op, inputs, dtypes, settings, out[0])
    result = taper_name(out[0]) or ""
    if op in _FORMULAS:
        given = complete(op, dtypes, settings)
        tensor = _FORMULAS[op](Call(scope, list(inputs), given, result))
    else:
        tensor = _native(scope, op, inputs, settings, result)
    if scope.type(tensor)[:2] != (result, out[1]):
        raise InternalError(f"op {op}: {result} {out[1]}, its formula gives {scope.type(tensor)}")
    return tensor


#: What gives elements of u64 that are no larger than those it is given.
_NEVER_LARGER = (
    *("min", "max", "filter", "max_axis", "min_axis", "and", "shr", "div", "floor_div", "rem"),
)


def _carried(
    scope: Scope,
    op: str,
    inputs: Sequence[str],
    dtypes: Sequence[str],
    settings: Mapping[str, Any],
    result: str,
) -> str:
    """Compute a call of element types that plans lack in wider ones, and wrap what it gives."""
    full = complete(op, dtypes, settings)
    if op == "cast" and ELEMENTS[result].kind != "float":
        return _carried_cast(scope, inputs[0], dtypes[0], full, result)
    if result == "f8" or (result == "u64" and op not in _NEVER_LARGER):
        raise CannotLower(f"op {op}: no op of a plan gives {result}")
    full.pop("acc", None)  # what is computed in has room for it
    given = {name: value for name, value in full.items() if value is not None}
    inner = computed(dtypes[0] if is_carried(dtypes[0]) else result, result)
    inners = [dtype if dtype == "bool" else inner for dtype in dtypes]
    casts = [scope.cast(x, carrier(d)) for x, d in zip(inputs, inners, strict=True)]
    tensor = lower_op(scope, op, casts, inners, given, None)
    if is_carried(result):
        return wrapped(scope, tensor, result)
    return scope.cast(tensor, carrier(result))


def _carried_cast(
    scope: Scope, x: str, dtype: str, settings: Mapping[str, Any], result: str
) -> str:
    """Cast to integers: integers keep their values, floats are bounded to those of the result."""
    if ELEMENTS[dtype].kind != "float":
        return scope.cast(x, carrier(result))
    dtype = "f32" if is_carried(dtype) else dtype
    if not is_carried(result):
        return lower_op(scope, "cast", [x], [dtype], settings, result)
    if result == "u64":
        raise CannotLower("op cast: no op of a plan makes u64 of floats")
    wide = lower_op(scope, "cast", [x], [dtype], {**settings, "to": "i64"}, "i64")
    row = ELEMENTS[result]
    capped = scope.binary("MINIMUM", scope.binary("MAXIMUM", wide, row.low), row.high)
    return scope.cast(capped, carrier(result))


def _native(
    scope: Scope, op: str, inputs: Sequence[str], settings: Mapping[str, Any], result: str
) -> str:
    """Compute what kernels serve, in a type that they do."""
    settings = dict(settings)
    if acc := settings.pop("acc", None):
        inputs = [scope.cast(x, taper_name(acc) or "") for x in inputs]
    wide = [_WIDER.get(scope.type(x).dtype, scope.type(x).dtype) for x in inputs]
    inner = result
    if "to" not in settings:
        inputs = [scope.cast(x, dtype) for x, dtype in zip(inputs, wide, strict=True)]
        inner = wide[0] if result in _WIDER else result
    types = [scope.type(x) for x in inputs]
    dtypes = [from_taper_name(type_.dtype) for type_ in types]
    shape = output_type(op, [(d, t.shape) for d, t in zip(dtypes, types, strict=True)], settings)[1]
    shapes = [type_.shape for type_ in types]
    node = native_node(op, dtypes, shapes, settings, (from_taper_name(inner), shape))
    if node is None:
        raise CannotLower(f"op {op}: no op of a plan computes it of {', '.join(dtypes)}")
    return scope.cast(_expanded(scope, inputs, *node), result)


def _expanded(scope: Scope, inputs: Sequence[str], op: str, attrs: Mapping[str, Any]) -> str:
    """Add a node, or one for each instruction of a tile program."""
    if op != "MAP":
        return scope.emit(op, inputs, **attrs)
    values, args = list(inputs), list(attrs["args"])
    for code in attrs["code"]:
        operands, args = args[: arity(code)], args[arity(code) :]
        scalars = [place for place, operand in enumerate(operands) if operand < 0]
        tensors = [values[operand] for operand in operands if operand >= 0]
        name, _, dtype = code.partition(":")
        if dtype:
            values.append(scope.cast(tensors[0], dtype))
        elif scalars:
            (place,) = scalars
            number = attrs["scalars"][-operands[place] - 1]
            values.append(scope.emit(name, tensors, scalar=number, scalar_index=place))
        else:
            values.append(scope.emit(name, tensors))
    return values[-1]


# -- what has no node of that kind -----------------------------------------------------------------


def _abs(call: Call) -> str:
    if call.dtype in ("uint8", "bool"):
        return call.scope.cast(call.inputs[0], call.result)
    return _native(call.scope, "abs", call.inputs, call.settings, call.result)


def _matmul(call: Call) -> str:
    scope, inputs = call.scope, call.inputs
    if call.dtype == "bool":  # where a count is above 0, which a wider integer holds
        counts = scope.emit("MATMUL", [scope.cast(x, "int64") for x in inputs])
        return scope.binary("GT", counts, 0)
    inner = "float32" if call.result in ("float16", "bfloat16") else call.result
    product = scope.emit("MATMUL", [scope.cast(x, inner) for x in inputs])
    return scope.cast(product, call.result)


def _relu(call: Call) -> str:
    (x,) = call.inputs
    if call.dtype == "bool":
        return x if call.settings["clamp_max"] else call.scope.emit("LOGICAL_XOR", [x, x])
    return _native(call.scope, "relu", call.inputs, call.settings, call.result)


def _sign(call: Call) -> str:
    scope, x = call.scope, call.inputs[0]
    x = scope.cast(x, _WIDER.get(call.dtype, call.dtype))
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
    scope, x = call.scope, call.inputs[0]
    x = scope.cast(x, _WIDER.get(call.dtype, call.dtype))
    bad = scope.emit("LOGICAL_OR", [scope.emit("ISNAN", [x]), scope.emit("ISINF", [x])])
    good = scope.emit("LOGICAL_NOT", [bad])
    return scope.emit("ALL", [good], axes=tuple(range(len(call.shape))))


def _reduction(op: str) -> Callable[[Call], str]:
    def formula(call: Call) -> str:
        scope, x = call.scope, call.scope.cast(call.inputs[0], call.result)
        axes = reduced_axes(op, len(call.shape), call.settings)
        if op == "MEAN" and not call.is_float:
            return _mean_of_integers(call, x, axes)
        if call.is_float:
            x = scope.cast(x, _WIDER.get(call.dtype, call.dtype))
        total = scope.emit(op, [x], axes=axes, keepdim=call.settings["keepdims"])
        return scope.cast(total, call.result)

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
        scope, x = call.scope, call.inputs[0]
        keepdim = call.settings["keepdims"]
        (axis,) = reduced_axes(op, len(call.shape), call.settings)
        if call.is_float:
            x = scope.cast(x, _WIDER.get(call.dtype, call.dtype))
        if call.settings["select_first"]:
            return scope.emit(op, [x], axis=axis, keepdim=keepdim)
        turned = scope.emit(op, [scope.emit("FLIP", [x], axes=(axis,))], axis=axis, keepdim=keepdim)
        return scope.emit("SUB", [turned], scalar=call.shape[axis] - 1, scalar_index=0)

    return formula


def _cast(call: Call) -> str:
    scope, x, to = call.scope, call.inputs[0], call.result
    if not call.is_float or "float" in to:
        return scope.cast(x, to)
    if not call.settings["saturate"]:
        raise CannotLower("op cast: what floats beyond the integers become without saturate")
    x = scope.cast(x, _WIDER.get(call.dtype, call.dtype))
    if to not in _WIDER:
        return _native(scope, "cast", [x], call.settings, to)
    wide = _native(scope, "cast", [x], {**call.settings, "to": "i32"}, "int32")
    limits = np.iinfo(to)
    capped = scope.binary("MINIMUM", scope.binary("MAXIMUM", wide, limits.min), limits.max)
    return scope.cast(capped, to)


def _fill(call: Call) -> str:
    inner = _WIDER[call.dtype] if call.is_float and call.dtype in _WIDER else call.dtype
    value = filled(call.settings["value"], inner, call.shape)
    return call.scope.cast(call.scope.graph.add_constant("fill", value), call.dtype)


_FORMULAS: Mapping[str, Callable[[Call], str]] = {
    "abs": _abs,
    "matmul": _matmul,
    "relu": _relu,
    "sign": _sign,
    "shl": _shift("LEFT_SHIFT"),
    "shr": _shift("RIGHT_SHIFT"),
    "is_finite": _is_finite,
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
