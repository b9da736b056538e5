"""The settings of ops, with names replaced by what they mean in a program."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from taper_runtime.openinfer.dtypes import DTYPES, to_float32
from taper_runtime.openinfer.errors import OpenInferError, shown
from taper_runtime.openinfer.graph import CONSTANT, Op
from taper_runtime.openinfer.ops import resolve

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taper_runtime.openinfer.check.context import LinkedVariable
    from taper_runtime.openinfer.oinf.reader import Model


def settings_of(op: Op, model: Model, variables: Mapping[str, LinkedVariable]) -> dict[str, Any]:
    """Return the settings of an op as numbers, bools, texts and tuples of int.

    Raises
    ------
    OpenInferError
        If a name means nothing, or something else.
    OpError
        If the op, or one of its settings, does not exist.
    """
    constant = partial(_constant, model, variables)
    return resolve(op.op, op.settings, constant, model.resolve_dim_value)


def _constant(
    model: Model, variables: Mapping[str, LinkedVariable], name: str
) -> int | float | bool:
    """Return the value of a constant with one element."""
    linked = variables.get(name)
    is_constant = linked is not None and linked.declaration.kind == CONSTANT
    if linked is None or not is_constant or linked.declaration.dims or linked.declaration.pattern:
        raise OpenInferError(
            f"expected a value as setting, or the name of a constant without dims, "
            f"got {shown(str(name))}"
        )
    if linked.tensor is None:
        return 0 if linked.init is None else linked.init
    array = model.read(linked.tensor)
    if DTYPES[linked.dtype].kind == "float" and array.dtype.kind != "f":
        array = to_float32(linked.dtype, array)
    value: int | float | bool = array.item()
    return value
