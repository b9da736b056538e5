"""Name the sizes that vary after the inputs that have them."""

from __future__ import annotations

import re
from itertools import chain, count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import sympy


def name_int(names: dict[str, str], symbol: str, input_name: str, given: str = "") -> None:
    """Name the symbol of a varying int after its input, if the user gave no name."""
    name = given or _identifier(input_name)
    while name in names.values():
        name += "_"
    names.setdefault(symbol, name)


def name_by_place(names: dict[str, str], sizes: Iterable[tuple[str, int, sympy.Expr]]) -> None:
    """Name all other symbols after the first dimension in which they occur.

    Parameters
    ----------
    names : dict of str to str
        torch's symbol -> its name; it is extended.
    sizes : iterable of (str, int, sympy.Expr)
        The input, the axis and the size of each dimension that varies.
    """
    places = [(expr, f"{_identifier(name)}_dim{axis}") for name, axis, expr in sizes]
    for expr, place in sorted(places, key=lambda each: not each[0].is_symbol):
        stem = place if expr.is_symbol else f"{place}_unit"
        for symbol in sorted(map(str, expr.free_symbols)):
            others = (f"{stem}_{number}" for number in count(1))
            free = (name for name in chain([stem], others) if name not in names.values())
            names.setdefault(symbol, next(free))


def _identifier(name: str) -> str:
    """Convert the name of an input to the start of a valid name of a size."""
    text = re.sub(r"\W", "_", name, flags=re.ASCII)[:60]
    return text if text.isidentifier() else f"input_{text}"
