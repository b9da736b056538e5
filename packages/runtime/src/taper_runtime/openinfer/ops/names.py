"""Settings that a program gives by a name: of a variable, or of a size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from taper_runtime.openinfer.graph import Name
from taper_runtime.openinfer.ops import taper
from taper_runtime.openinfer.ops.rules import fail, find, setting_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def meaning(op: str, setting: str) -> Literal["variable", "size", "word"]:
    """Return what a bare name means as a setting's value.

    Returns
    -------
    str
        "word" where the setting is a word or an element type, so that the name is the value; "size"
        for a sizevar, or a product of dims; "variable" for a scalar constant variable.

    Raises
    ------
    OpError
        If there is no such op or no such setting.
    """
    if not taper.is_taper(op):
        kind = find(op).settings[setting_name(op, setting)].type
        return "word" if kind in ("word", "dtype") else "size" if kind == "axes" else "variable"
    attrs = taper.definition(op).attrs
    if setting not in attrs:
        if setting == taper.OUTPUT:
            return "variable"
        fail(op, f"settings of {', '.join(attrs) or 'no name, for it has none'}", repr(setting))
    attr = attrs[setting]
    if attr.type.startswith("string"):
        return "word"
    return "size" if attr.sized or attr.type.endswith("s") else "variable"


def resolve(
    op: str,
    settings: Mapping[str, Any],
    variable: Callable[[str], Any],
    size: Callable[[str], int],
) -> dict[str, Any]:
    """Put values in the place of names.

    Parameters
    ----------
    op : str
    settings : mapping
        As a node of a graph has them. A name is a :class:`Name`, also within a list.
    variable : callable
        The value of the scalar constant variable of a name; raises if there is none.
    size : callable
        What a dim stands for: a sizevar's name, or a product; raises if it stands for none.

    Returns
    -------
    dict
        What :func:`output_type` and :func:`evaluate` take.

    Raises
    ------
    OpError
        If there is no such op or no such setting, or names stand where sizes cannot.
    """
    found = {}
    for key, value in settings.items():
        if isinstance(value, (list, tuple)) and any(isinstance(item, Name) for item in value):
            if meaning(op, key) != "size":
                fail(op, f"{key} without names in a list", list(value))
            value = tuple(size(item) if isinstance(item, Name) else item for item in value)
        elif isinstance(value, Name):
            what = meaning(op, key)
            value = str(value) if what == "word" else (size if what == "size" else variable)(value)
        found[key] = value
    return found
