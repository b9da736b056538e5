"""Check a call of an op and infer its result: settings, element types, shapes."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, NoReturn

from taper_openinfer.dtypes import DTYPES
from taper_openinfer.errors import NoKernelError, shown
from taper_openinfer.ops import taper
from taper_openinfer.ops.table import (
    ACCUMULATORS,
    FLOATS,
    OPS,
    REQUIRED,
    UNPACKED,
    OpSpec,
    Setting,
)
from taper_runtime.base.errors import OpError
from taper_runtime.base.text import counted, nearest
from taper_runtime.ops import REGISTRY, type_rules

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Shape = tuple[int, ...]

#: More elements than any array has.
MAX_BYTES = 1 << 62


def output_type(
    op: str,
    inputs: Sequence[tuple[str, Shape]],
    settings: Mapping[str, Any],
    declared: str | None = None,
    device: str = "Cpu",
) -> tuple[str, Shape]:
    """Return the element type and the shape of a call's result.

    An op ``taper.NAME`` is an op of Taper: :mod:`taper_openinfer.ops.taper`.

    Parameters
    ----------
    op : str
    inputs : sequence of (str, tuple of int)
        Element types and shapes.
    settings : mapping
        The settings in the program; :func:`complete` adds the defaults.
    declared : str, optional
        The element type that the program declares for the output. If it declares none the op's rule
        decides: for most ops it is the first input's.
    device : str
        The device that errors name.

    Raises
    ------
    OpError
        If the op is unknown, or does not accept these inputs, settings or shapes.
    NoKernelError
        If the op lacks these element types, or its result differs from ``declared``.
    """
    if taper.is_taper(op):
        result, shape = taper.output_type(op, inputs, settings, declared, device)
    else:
        result, shape = _output_type(op, inputs, settings, declared, device)
    if math.prod(shape) * DTYPES[result].storage.itemsize >= MAX_BYTES:
        fail(op, f"a result of fewer than {MAX_BYTES} bytes", list(shape))
    return result, shape


def _output_type(
    op: str,
    inputs: Sequence[tuple[str, Shape]],
    settings: Mapping[str, Any],
    declared: str | None,
    device: str,
) -> tuple[str, Shape]:
    spec = find(op)
    if len(inputs) != spec.arity:
        fail(op, f"{counted(spec.arity, 'input')} ({', '.join(spec.operands)})", len(inputs))
    dtypes = tuple(dtype for dtype, _ in inputs)
    settings = complete(op, dtypes, settings)
    result = checked_dtype(op, dtypes, settings, declared, device)
    return result, _shape(op, spec, [tuple(shape) for _, shape in inputs], settings)


def find(op: str) -> OpSpec:
    """Return the table's row of an op.

    Raises
    ------
    OpError
        If the table has no op of this name.
    """
    if op not in OPS:
        known = {**{name.lower(): taper.PREFIX + name for name in REGISTRY}, **{o: o for o in OPS}}
        near = nearest(op.lower(), known, 0.75)
        listed = f"{', '.join(OPS)}, and Taper's as taper.NAME"
        hint = f"; do you mean {known[near]!r}?" if near else f"; there are {listed}"
        raise OpError(f"no op {shown(op)}{hint}")
    return OPS[op]


def result_dtype(op: str, dtypes: Sequence[str], settings: Mapping[str, Any]) -> str | None:
    """Return the element type of the result; None if the op lacks these element types.

    ``settings`` must be complete.
    """
    spec = find(op)
    first = dtypes[0]
    for operand, dtype in zip(spec.operands, dtypes, strict=True):
        if dtype != first and (operand, dtype) != ("cond", "bool"):
            return None
    if first not in spec.dtypes:
        return None
    if spec.result == "to":
        return settings["to"] if settings["to"] in _casts(first) else None
    acc = settings.get("acc")
    if acc is not None:
        return acc if acc in ACCUMULATORS.get(first, ()) else None
    return first if spec.result == "input" else spec.result


def checked_dtype(
    op: str, dtypes: Sequence[str], settings: Mapping[str, Any], declared: str | None, device: str
) -> str:
    """Return the element type of the result; it must be ``declared`` if the program has one.

    Raises
    ------
    NoKernelError
        If the op lacks these element types, or its result differs from ``declared``.
    """
    result = result_dtype(op, dtypes, settings)
    if result is None or declared not in (None, result):
        types = (*dtypes, declared or "any")
        raise NoKernelError(op, types, device, existing(op), suits_inputs=result is not None)
    return result


def _casts(dtype: str) -> tuple[str, ...]:
    """Return the element types that one can be cast to."""
    return UNPACKED if dtype in FLOATS else (*FLOATS, *ACCUMULATORS.get(dtype, ()))


def combinations(op: str) -> list[tuple[tuple[str, ...], str, dict[str, str]]]:
    """List the combinations of element types that exist, with the settings that select them.

    Each is the inputs' types, the output's type, and the settings.
    """
    spec = find(op)
    found: list[tuple[tuple[str, ...], str, dict[str, str]]] = []
    for dtype in spec.dtypes:
        inputs = (dtype,) * spec.arity
        if spec.result == "to":
            found += [(inputs, to, {"to": to}) for to in _casts(dtype)]
            continue
        found.append((inputs, dtype if spec.result == "input" else spec.result, {}))
        if spec.operands[-1] == "cond" and dtype != "bool":
            found.append(((*inputs[:-1], "bool"), dtype, {}))
        if spec.acc:
            found += [(inputs, acc, {"acc": acc}) for acc in ACCUMULATORS.get(dtype, ())]
    return found


def existing(op: str) -> list[str]:
    """Describe the combinations of element types that exist; similar ones share a text."""
    spec = find(op)
    inputs = ["T or bool" if operand == "cond" else "T" for operand in spec.operands]
    if spec.result == "to":
        groups = itertools.groupby(spec.dtypes, _casts)
        return [f"({' or '.join(dtypes)}) -> {' or '.join(targets)}" for targets, dtypes in groups]
    result = "T" if spec.result == "input" else spec.result
    texts = [f"({', '.join(inputs)}) -> {result} with T of {' '.join(spec.dtypes)}"]
    if spec.acc:
        texts.append(f"({', '.join(inputs)}) -> acc with acc a wider integer of T's sign")
    return texts


# -- settings --------------------------------------------------------------------------------------


def complete(op: str, dtypes: Sequence[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of a call, with defaults, by their first names, after checking them.

    Parameters
    ----------
    op : str
    dtypes : sequence of str
        The element types of the inputs; numbers are checked against the first.
    settings : mapping
        Numbers, bools, strings and lists of int, with names of variables replaced by their values.

    Raises
    ------
    OpError
        If a setting is unknown, missing, given twice or of the wrong type.
    """
    spec = find(op)
    given: dict[str, Any] = {}
    for spelling, value in settings.items():
        name = setting_name(op, spelling)
        if name in given:
            fail(op, f"{name} once", "it twice")
        given[name] = _checked(op, name, spec.settings[name], dtypes[0], value)
    for name, setting in spec.settings.items():
        if name not in given:
            if setting.default is REQUIRED:
                fail(op, f"the setting {name}, {_TYPES[setting.type]}", "none")
            given[name] = setting.default
    return given


def setting_name(op: str, spelling: str) -> str:
    """Return the first name of a setting that may have several.

    Raises
    ------
    OpError
        If the op has no setting of that name.
    """
    settings = find(op).settings
    for name, setting in settings.items():
        if spelling == name or spelling in setting.spellings:
            return name
    return fail(op, f"settings of {', '.join(settings) or 'no name'}", shown(spelling))


_TYPES = {
    "value": "a number",
    "bound": "a number",
    "dtype": "an element type",
    "bool": "true or false",
    "count": "an integer from 0 to 255",
    "axis": "an integer",
    "axes": "a list of integers",
    "word": "a word",
}


def _checked(op: str, name: str, setting: Setting, dtype: str, value: Any) -> Any:
    """Return a setting's value after checking its type."""
    what = f"{name}, {_TYPES[setting.type]}"
    kind = setting.type
    if kind in ("value", "bound"):
        return (
            setting.default
            if _is_no_bound(setting, dtype, value)
            else _number(op, name, dtype, value)
        )
    if kind == "word":
        if not isinstance(value, str) or value not in setting.words:
            fail(op, f"{name} of {', '.join(setting.words)}", shown(value))
        return str(value)  # a plain str: the names in programs are a subclass
    if kind == "dtype":
        if not isinstance(value, str) or value not in DTYPES:
            fail(op, what, shown(value))
        return str(value)
    if kind == "bool":
        if type(value) is not bool:
            fail(op, what, shown(value))
    elif kind == "axes":
        if type(value) not in (list, tuple) or any(type(axis) is not int for axis in value):
            fail(op, what, shown(value))
        return tuple(value)
    elif type(value) is not int or (kind == "count" and not 0 <= value <= 255):
        fail(op, what, shown(value))
    return value


def _is_no_bound(setting: Setting, dtype: str, value: Any) -> bool:
    """Return whether a bound has no effect: an infinity, or beyond the element type's range."""
    if setting.type != "bound" or type(value) not in (int, float):
        return False
    beyond = DTYPES[dtype].high < value if setting.default > 0 else value < DTYPES[dtype].low
    return bool(beyond)


def _number(op: str, name: str, dtype: str, value: Any) -> Any:
    """Return a number of an element type; integers may be written as 2.0, bools as 0 or 1."""
    row = DTYPES[dtype]
    if type(value) not in (int, float) and not (type(value) is bool and row.kind == "bool"):
        fail(op, f"{name}, a number of {dtype}", shown(value))
    fits = row.low <= value <= row.high
    if row.kind == "float":
        if not fits and (type(value) is int or math.isfinite(value)):
            fail(op, f"{name} from {row.low} to {row.high}, the range of {dtype}", shown(value))
        return float(value)
    if not fits or value != int(value):
        fail(
            op,
            f"{name}, an integer from {row.low} to {row.high}, the range of {dtype}",
            shown(value),
        )
    return bool(value) if row.kind == "bool" else int(value)


# -- shapes ----------------------------------------------------------------------------------------


def _shape(op: str, spec: OpSpec, shapes: list[Shape], settings: Mapping[str, Any]) -> Shape:
    """Return the shape of the result, or raise OpError if the inputs' shapes do not fit."""
    first = shapes[0]
    if spec.shape == "broadcast":
        return type_rules.broadcast(op, shapes)
    if spec.shape == "matmul":
        return _product_shape(op, *shapes)
    if any(shape != first for shape in shapes):
        fail(op, "inputs of one shape", [list(shape) for shape in shapes])
    if spec.shape == "one":
        return ()
    if spec.shape == "same":
        return first
    axes = reduced_axes(op, len(first), settings)
    if op in _NEVER_EMPTY and any(first[axis] == 0 for axis in axes):
        fail(op, "axes that hold elements", list(first))
    if settings["keepdims"]:
        return tuple(1 if axis in axes else size for axis, size in enumerate(first))
    return tuple(size for axis, size in enumerate(first) if axis not in axes)


#: Reductions that have no value on empty inputs.
_NEVER_EMPTY = ("max_axis", "min_axis", "argmax_axis", "argmin_axis")


def reduced_axes(op: str, rank: int, settings: Mapping[str, Any]) -> Shape:
    """Return the axes of a reduction in increasing order, counted from the front.

    Raises
    ------
    OpError
        If an axis does not exist or occurs twice.
    """
    axes = settings["axes"] if "axes" in settings else (settings["axis"],)
    for axis in axes:
        if not -rank <= axis < rank:
            fail(op, f"axes in [{-rank}, {rank})", axis)
    found = sorted(axis % rank for axis in axes)
    if any(a == b for a, b in itertools.pairwise(found)):
        fail(op, "each axis once", list(axes))
    return tuple(found)


def _product_shape(op: str, a: Shape, b: Shape) -> Shape:
    if not a or not b:
        fail(op, "a and b of rank 1 or more", [list(a), list(b)])
    if a[-1] != b[-2:][0]:  # of rank 1, b has only rows
        fail(op, "as many columns of a as rows of b", [list(a), list(b)])
    batch = type_rules.broadcast(op, [a[:-2], b[:-2]])
    return (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def fail(op: str, expected: str, got: object) -> NoReturn:
    """Raise :class:`OpError`; a long ``got`` is shortened."""
    type_rules.fail(op, expected, got)
