"""Support calls of Taper's own ops in programs: ``op taper.SOFTMAX(x, axis=1) >> y;``.

Any op of Taper's registry that runs no blocks can be called. Its attrs are the settings, its type
rule checks them, and its numpy evaluator computes it. Element types have OpenInfer's names; only
those that Taper has can be used. A call of an op with several outputs returns the first, or the one
whose number is in the setting ``output``.

A list of strings, such as a tile program, is written as one string with commas between; so is a
list of numbers that are not integers. Lists of integers, and integers that may be sizes, can
contain names of sizes, which the linker replaces with numbers
(:mod:`taper_openinfer.check.settings`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taper_openinfer.dtypes import DTYPES, from_taper_name, taper_name
from taper_openinfer.errors import NoKernelError, shown
from taper_runtime.base.errors import OpError
from taper_runtime.base.text import nearest
from taper_runtime.formats import PLAIN
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import TensorType
from taper_runtime.ops.type_rules import fail

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from taper_runtime.ops.opdef import OpDef, Shape

#: The prefix of the names of Taper's ops.
PREFIX = "taper."

#: The setting that chooses one of several outputs.
OUTPUT = "output"


def is_taper(op: str) -> bool:
    """Return whether this is the name of one of Taper's ops."""
    return op.startswith(PREFIX)


def definition(op: str) -> OpDef:
    """Return the definition of ``taper.NAME``.

    Raises
    ------
    OpError
        If the registry has no such op, or the op runs blocks, which programs do not have.
    """
    name = op.removeprefix(PREFIX)
    found: OpDef | None = REGISTRY.get(name)
    if found is None:
        near = nearest(name.upper(), REGISTRY)
        raise OpError(f"no op {shown(op)}" + (f"; do you mean {PREFIX + near!r}?" if near else ""))
    if found.blocks:
        fail(
            op, "an op without blocks, because programs branch and loop by nodes", "one with blocks"
        )
    return found


def attrs_of(op: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attrs that settings give, complete and checked; without ``output``.

    Raises
    ------
    OpError
        If a setting is unknown, missing or of the wrong type.
    """
    found = definition(op)
    attrs = {}
    for name, value in settings.items():
        if name == OUTPUT and OUTPUT not in found.attrs:
            continue
        attr = found.attrs.get(name)
        attrs[name] = value if attr is None else _attr(op, name, attr.type, value)
    return found.complete(attrs)


def _attr(op: str, name: str, type_: str, value: Any) -> Any:
    """Convert a setting from the spelling of programs to an attr."""
    if isinstance(value, str):
        if type_ == "strings":
            return [word.strip() for word in value.split(",") if word.strip()]
        if type_ == "scalars":
            return [_scalar(op, name, word) for word in value.split(",") if word.strip()]
        if name == "dtype" and value in DTYPES:
            return taper_name(value) or str(value)
        return str(value)  # a plain str: the names in programs are a subclass
    return value


def _scalar(op: str, name: str, word: str) -> int | float:
    for convert in (int, float):
        try:
            return convert(word)
        except ValueError:
            continue
    return fail(op, f"{name} of numbers with commas between", shown(word))


def _types(op: str, inputs: Sequence[tuple[str, Shape]], device: str) -> list[TensorType]:
    names = [taper_name(dtype) for dtype, _ in inputs]
    if None in names:
        known = [f"inputs of {', '.join(name for name in DTYPES if taper_name(name))}"]
        raise NoKernelError(op, (*(dtype for dtype, _ in inputs), "any"), device, known)
    return [
        TensorType(name, tuple(shape))
        for name, (_, shape) in zip(names, inputs, strict=True)
        if name
    ]


def output_type(
    op: str,
    inputs: Sequence[tuple[str, Shape]],
    settings: Mapping[str, Any],
    declared: str | None = None,
    device: str = "Cpu",
) -> tuple[str, Shape]:
    """Return the element type and the shape of the result of a call of ``taper.NAME``.

    Raises
    ------
    OpError
        If the op does not accept these inputs or settings.
    NoKernelError
        If Taper lacks these element types, or the result's differs from ``declared``.
    """
    types = _types(op, inputs, device)
    attrs = attrs_of(op, settings)
    outputs = definition(op).infer_types(types, attrs)
    result = outputs[_chosen(op, settings, len(outputs))]
    if result.format != PLAIN:
        fail(op, "an output in format plain, because variables are plain", result.format)
    dtype = from_taper_name(result.dtype)
    if declared not in (None, dtype):
        given = tuple(name for name, _ in inputs)
        known = [f"({', '.join(given)}) -> {dtype}"]
        raise NoKernelError(op, (*given, declared), device, known, suits_inputs=True)
    return dtype, result.shape


def _chosen(op: str, settings: Mapping[str, Any], count: int) -> int:
    """Return the number of the output that a call returns."""
    index = settings.get(OUTPUT, 0)
    if type(index) is not int or not 0 <= index < count:
        fail(op, f"output in [0, {count})", shown(index))
    return index


def prepare(op: str, settings: Mapping[str, Any]) -> Callable[[Sequence[np.ndarray]], np.ndarray]:
    """Return a function that computes a call which :func:`output_type` accepts."""
    found, attrs = definition(op), attrs_of(op, settings)
    index = settings.get(OUTPUT, 0)

    def run(inputs: Sequence[np.ndarray]) -> np.ndarray:
        with np.errstate(all="ignore"):  # infinities and NaN are ordinary values
            result = np.asarray(found.evaluate_all(inputs, attrs)[index], order="C")
        is_view = any(np.may_share_memory(result, array) for array in inputs)
        return result.copy() if is_view else result

    return run
