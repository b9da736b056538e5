"""Extract what a program asserts about sizes that depend on values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import sympy

from taper_frontend.lowering.aten_program import Node, SymbolicNumber, unbacked
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from taper_frontend.lowering.aten_program import AtenProgram

#: The most words of an expression that the name of a size contains.
_MOST_WORDS = 12

#: The functions that return what is left over by a division.
_REMAINDERS = frozenset({"Mod", "PythonMod"})

_ORDERS = (sympy.Le, sympy.Lt, sympy.Ge, sympy.Gt)


class Relation(NamedTuple):
    """A relation of one symbol to symbols that are known before it.

    Attributes
    ----------
    kind : str
        ``"=="``, ``"<="`` or ``">="`` for its relation to ``side``, or ``"multiple"`` of ``side``.
    side : sympy.Expr
    """

    kind: str
    side: sympy.Expr


def assertions(program: AtenProgram) -> list[sympy.Expr]:
    """Return the conditions of the program's ``torch._check`` calls, in order."""
    found = []
    for node in program.nodes:
        if node.target == "aten._assert_scalar.default":
            condition = node.args[0]
            value = condition.value if isinstance(condition, Node) else None
            if isinstance(value, SymbolicNumber) and unbacked(value.expr.free_symbols):
                found.append(value.expr)
    return found


def related(
    symbol: sympy.Symbol, conditions: Iterable[sympy.Expr], known: Collection[sympy.Symbol]
) -> list[Relation]:
    """Return the relations of a symbol to ``known`` ones in conditions that are linear in it."""
    found = []
    for condition in conditions:
        free = condition.free_symbols
        if symbol in free and all(other in known for other in free - {symbol}):
            relation = solved(symbol, condition)
            if relation is not None:
                found.append(relation)
    return found


def solved(symbol: sympy.Symbol, condition: sympy.Expr) -> Relation | None:
    """Solve a condition for the symbol, whose factor must be 1 or -1; None if that fails."""
    if not isinstance(condition, (sympy.Eq, *_ORDERS)):
        return None
    left, right = condition.args
    if isinstance(condition, sympy.Eq) and type(left).__name__ in _REMAINDERS and right == 0:
        number, step = left.args
        plain = number == symbol and step.is_Integer and step > 1
        return Relation("multiple", step) if plain else None
    difference = sympy.expand(left - right)
    sign = difference.coeff(symbol)
    rest = sympy.expand(difference - sign * symbol)
    if sign not in (1, -1) or symbol in rest.free_symbols or not rest.free_symbols:
        return None
    side = -sign * rest
    if isinstance(condition, sympy.Eq):
        return Relation("==", side)
    # sizes are integers, so a < b is a <= b - 1
    strict = 1 if isinstance(condition, sympy.Lt | sympy.Gt) else 0
    below = isinstance(condition, sympy.Le | sympy.Lt) == (sign == 1)
    return Relation("<=", side - strict) if below else Relation(">=", side + strict)


def difference_name(name: str, side: sympy.Expr) -> str:
    """Return the name of the size variable ``name - side``.

    A sum of many sizes is abbreviated.
    """
    text = str(side).replace("+", " plus ").replace("-", " minus ").replace("*", " times ")
    words = re.findall(r"\w+", text)
    return "_".join([name, "minus", *(words if len(words) <= _MOST_WORDS else ["other", "sizes"])])
