"""Lower calls of OpenInfer's ops to nodes of Taper's, by their formulas.

The formulas are in :mod:`taper_openinfer.ops`. Their nodes are added one by one, so that passes can
match and fuse them. Element types that plans lack are computed in wider ones (:mod:`.carriers`). A
call without a formula is refused: nothing is approximated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_openinfer.compiler.carriers import carrier, computed, is_carried, wrapped
from taper_openinfer.compiler.refusal import CannotLower
from taper_openinfer.compiler.scope import filled
from taper_openinfer.dtypes import DTYPES as ELEMENTS
from taper_openinfer.dtypes import taper_name
from taper_openinfer.ops import complete, formula_of_plan, output_type, taper
from taper_runtime.base.errors import InternalError
from taper_runtime.ops.convert import FLOATS_16_BIT
from taper_runtime.ops.elementwise import MICROOPS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taper_openinfer.compiler.scope import Scope
    from taper_openinfer.ops.formulas import Formula
    from taper_runtime.ops.opdef import Shape


def lower_op(
    scope: Scope,
    op: str,
    inputs: Sequence[str],
    dtypes: Sequence[str],
    settings: Mapping[str, Any],
    declared: str | None,
) -> str:
    """Return the tensor that holds a call's result.

    Parameters
    ----------
    scope : Scope
    op : str
        The op's name in the program.
    inputs : sequence of str
        Tensors of the scope.
    dtypes : sequence of str
        Their element types in the program.
    settings : mapping
        The settings, with names replaced by their values.
    declared : str or None
        The declared element type of the output; None if the op decides it.

    Raises
    ------
    CannotLower
        If Taper's ops cannot compute the same result.
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
    full = complete(op, dtypes, settings)
    if op == "fill":
        tensor = _filled(scope, full["value"], result, out[1])
    else:
        formula = formula_of_plan(op, dtypes, shapes[0], full, out[0])
        if formula is None:
            why = f"no op of a plan computes it for {', '.join(dtypes)}"
            raise CannotLower(f"op {op}: {_WHY.get(op, why)}")
        tensor = _emitted(scope, inputs, formula)
    if scope.type(tensor)[:2] != (result, out[1]):
        raise InternalError(
            f"op {op}: expected {result} {out[1]}, got {scope.type(tensor)} from its formula"
        )
    return tensor


#: Why calls of an op with certain settings cannot be lowered.
_WHY = {
    "cast": "without saturate, no op of a plan converts floats beyond the range of the integers"
}

#: Ops whose results in u64 are no larger than their inputs.
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
    """Compute a call on carried element types in a wider type, and wrap the result."""
    full = complete(op, dtypes, settings)
    if op == "cast" and ELEMENTS[result].kind != "float":
        return _carried_cast(scope, inputs[0], dtypes[0], full, result)
    if result == "f8" or (result == "u64" and op not in _NEVER_LARGER):
        raise CannotLower(f"op {op}: no op of a plan has results of {result}")
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
    """Cast to a carried integer type: integers wrap, floats are clamped to its range."""
    if ELEMENTS[dtype].kind != "float":
        return scope.cast(x, carrier(result))
    dtype = "f32" if is_carried(dtype) else dtype
    if not is_carried(result):
        return lower_op(scope, "cast", [x], [dtype], settings, result)
    if result == "u64":
        raise CannotLower("op cast: no op of a plan converts floats to u64")
    wide = lower_op(scope, "cast", [x], [dtype], {**settings, "to": "i64"}, "i64")
    row = ELEMENTS[result]
    capped = scope.binary("MINIMUM", scope.binary("MAXIMUM", wide, row.low), row.high)
    return scope.cast(capped, carrier(result))


def _filled(scope: Scope, value: object, dtype: str, shape: Shape) -> str:
    """Return a constant of one number: the compiler can use it better than the formula."""
    inner = "float32" if dtype in FLOATS_16_BIT else dtype
    return scope.cast(scope.graph.add_constant("fill", filled(value, inner, shape)), dtype)


def _emitted(scope: Scope, inputs: Sequence[str], formula: Formula) -> str:
    """Add the nodes of a formula; return the tensor of its result."""
    values = list(inputs)
    for op, operands, attrs in formula.nodes:
        scalars = {place: -1 - v for place, v in enumerate(operands) if v < 0}
        tensors = [values[v] for v in operands if v >= 0]
        if op == "CAST":
            values.append(scope.cast(tensors[0], taper_name(attrs["dtype"]) or ""))
            continue
        for place, index in scalars.items():
            number = formula.scalars[index]
            if op in MICROOPS:
                attrs = {**attrs, "scalar": number, "scalar_index": place}
            else:
                tensors.insert(place, scope.constant(number, scope.type(tensors[0]).dtype))
        values.append(scope.emit(op, tensors, **attrs))
    return values[formula.result]
