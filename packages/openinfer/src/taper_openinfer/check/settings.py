"""Replace names in the settings of ops by what they mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_openinfer.check.check_context import describe_variable
from taper_openinfer.dtypes import DTYPES, to_float32
from taper_openinfer.errors import OpenInferError, shown
from taper_openinfer.language.graph import CONSTANT, Name, Op
from taper_openinfer.ops import call_rules, taper
from taper_openinfer.ops.taper import is_taper

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from taper_openinfer.check.check_context import LinkedVariable
    from taper_openinfer.oinf.reader import Model

#: Types of settings of OpenInfer's ops, and of attrs of Taper's, that are texts or words.
_WORDS = ("dtype", "word", "string", "strings", "scalars")


def settings_of(
    op: Op, model: Model, variables: Mapping[str, LinkedVariable], loops: Container[str] = ()
) -> dict[str, Any]:
    """Return the settings of an op as numbers, bools, texts and tuples of int.

    A name stands for a sizevar where a setting takes sizes; where it takes a word for that, or for
    a string of the file's metadata; else for the value of a constant with one element. ``loops``
    are the variables of the loops around, which no setting may name.

    Raises
    ------
    OpenInferError
        If a name means nothing, or something else.
    OpError
        If the op, or one of its settings, does not exist.
    """
    found: dict[str, Any] = {}
    for name, value in op.settings.items():
        kind, takes_sizes = _type(op.op, name)
        if isinstance(value, tuple):
            found[name] = tuple(_item(name, item, model, loops) for item in value)
        elif not isinstance(value, Name):
            found[name] = value
        elif kind in _WORDS:
            found[name] = _word(op.op, name, value, model)
        elif takes_sizes and value in model.sizevars:
            found[name] = model.sizevars[value]
        else:
            found[name] = _constant(name, str(value), model, variables, loops)
    return found


def _word(op: str, setting: str, value: Name, model: Model) -> str:
    """Return a word: itself where the setting has it, else the string of metadata it names."""
    words: Container[str] = ()
    if not is_taper(op):
        found = call_rules.find(op).settings[call_rules.setting_name(op, setting)]
        words = DTYPES if found.type == "dtype" else found.words
    if value in words or value not in model.metadata:
        return value
    metadata = model.metadata.typed(value)
    return metadata if isinstance(metadata, str) else value


def _type(op: str, name: str) -> tuple[str, bool]:
    """Return the type of a setting, and whether it takes sizes."""
    if not is_taper(op):
        return call_rules.find(op).settings[call_rules.setting_name(op, name)].type, False
    definition = taper.definition(op)
    attr = definition.attrs.get(name)
    if attr is None:
        return ("int" if name == taper.OUTPUT else "string"), False  # which the op's rule refuses
    return attr.type, attr.sized


def _item(setting: str, item: object, model: Model, loops: Container[str]) -> object:
    """An integer of a list: itself, or a size."""
    if not isinstance(item, str):
        return item
    if item in loops and item not in model.sizevars:
        raise _of_loop(setting, item)
    try:
        return model.resolve_dim_value(item)
    except OpenInferError as error:
        raise OpenInferError(f"setting {shown(setting)}: {error}") from None


#: What to do where a setting cannot be given by what only a run knows.
_BY_INPUT = "taper.INDEX_SELECT takes positions as an input"


def _of_loop(setting: str, name: str) -> OpenInferError:
    return OpenInferError(
        f"setting {shown(setting)}: expected what is known before the program runs, got "
        f"{shown(name)}, the variable of a loop; {_BY_INPUT}"
    )


def _constant(
    setting: str,
    name: str,
    model: Model,
    variables: Mapping[str, LinkedVariable],
    loops: Container[str],
) -> int | float | bool | None:
    """Return the value of a constant with one element; None of one that has none, an error."""
    linked = variables.get(name)
    if linked is None and name in loops:
        raise _of_loop(setting, name)
    is_constant = linked is not None and linked.declaration.kind == CONSTANT
    if linked is None or not is_constant or linked.declaration.dims or linked.declaration.pattern:
        raise OpenInferError(
            f"setting {shown(setting)}: expected a value, or the name of a constant without dims, "
            f"got {shown(name)}"
            + (f", {describe_variable(linked)}; {_BY_INPUT}" if linked and not is_constant else "")
        )
    if linked.tensor is None:
        return linked.init
    array = model.read(linked.tensor)
    if DTYPES[linked.dtype].kind == "float" and array.dtype.kind != "f":
        array = to_float32(linked.dtype, array)
    value: int | float | bool = array.item()
    return value
