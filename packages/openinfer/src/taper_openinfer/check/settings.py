"""Replace names in the settings of ops by their values."""

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

#: Setting types of OpenInfer's ops, and attr types of Taper's ops, whose values are texts.
_WORDS = ("dtype", "word", "string", "strings", "scalars")


def settings_of(
    op: Op, model: Model, variables: Mapping[str, LinkedVariable], loops: Container[str] = ()
) -> dict[str, Any]:
    """Return the settings of an op as numbers, bools, texts and tuples of int.

    What a name means depends on the setting's type. For sizes it is a sizevar. For words it is the
    word itself, or a string of the file's metadata. For all others it is a constant with one
    element. ``loops`` are the variables of the enclosing loops, which no setting may use.

    Raises
    ------
    OpenInferError
        If a name is unknown, or is not of the kind that the setting takes.
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
    """Return a word setting: the name if it is one of the words, else the metadata it names."""
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
    """Return an integer of a list: the literal, or the value of a size's name."""
    if not isinstance(item, str):
        return item
    if item in loops and item not in model.sizevars:
        raise _of_loop(setting, item)
    try:
        return model.resolve_dim_value(item)
    except OpenInferError as error:
        raise OpenInferError(f"setting {shown(setting)}: {error}") from None


#: The advice of an error about a setting whose value only a run would know.
_BY_INPUT = "taper.INDEX_SELECT takes positions as an input"


def _of_loop(setting: str, name: str) -> OpenInferError:
    return OpenInferError(
        f"setting {shown(setting)}: expected a value that is known before the program runs, got "
        f"{shown(name)}, the variable of a loop; {_BY_INPUT}"
    )


def _constant(
    setting: str,
    name: str,
    model: Model,
    variables: Mapping[str, LinkedVariable],
    loops: Container[str],
) -> int | float | bool | None:
    """Return the value of a constant with one element; None if it was reported as valueless."""
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
