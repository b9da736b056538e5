"""Parse the sizes in a PT2 archive, which are sympy's ``srepr`` of expressions.

sympy would evaluate such a text as Python. Here only calls of known functions are read.
"""

from __future__ import annotations

import ast
import sys
from typing import Any

import sympy

from taper_frontend.lowering.size_functions import SIZE_FUNCTIONS

#: The functions that may be called, by their names.
_FUNCTIONS: dict[str, Any] = {
    **SIZE_FUNCTIONS,
    **{
        function.__name__: function
        for function in (
            sympy.Add, sympy.And, sympy.Equality, sympy.GreaterThan, sympy.LessThan, sympy.Max,
            sympy.Min, sympy.Mul, sympy.Not, sympy.Or, sympy.Pow, sympy.StrictGreaterThan,
            sympy.StrictLessThan, sympy.Unequality,
        )
    },
}  # fmt: skip

#: The functions of plain values, such as the text of a float and its precision.
_LEAVES: dict[str, Any] = {
    "Integer": sympy.Integer,
    "Rational": sympy.Rational,
    "Float": sympy.Float,
    "Symbol": sympy.Symbol,
}

_NAMES = {"true": sympy.true, "false": sympy.false}

#: The longest text of one size.
_MAX_CHARS = 10_000

#: The largest exponent, and the most bits of a float: torch writes exponents of 2 and -1, and 53.
_MAX_EXPONENT = 16
_MAX_BITS = 64


def parse_expression(text: str) -> sympy.Expr:
    """Return the expression of a text such as ``Add(Symbol('s0', integer=True), Integer(1))``.

    Raises
    ------
    ValueError
        If it is anything else.
    """
    if len(text) > _MAX_CHARS:
        raise ValueError(f"expected a size of at most {_MAX_CHARS} characters, got {len(text)}")
    try:
        return _read(ast.parse(text, mode="eval").body)
    except (SyntaxError, TypeError, ArithmeticError, RecursionError, MemoryError) as error:
        raise ValueError(f"expected a size, got {text[:80]!r}: {error}") from None


def _read(node: ast.expr) -> Any:
    """Return the value of a name or a call; raises ValueError for anything else."""
    if isinstance(node, ast.Name) and node.id in _NAMES:
        return _NAMES[node.id]
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError(f"expected a call of a known function, got {ast.unparse(node)[:80]!r}")
    name = node.func.id
    if name in _LEAVES:
        options = {each.arg or "": _plain(each.value) for each in node.keywords}
        bits = options.get("precision", 0)
        if not isinstance(bits, int) or bits > _MAX_BITS:
            raise ValueError(f"expected a float of at most {_MAX_BITS} bits, got {bits!r}")
        return _bounded(_LEAVES[name](*map(_plain, node.args), **options))
    if name not in _FUNCTIONS or node.keywords:
        raise ValueError(f"expected one of {', '.join(_FUNCTIONS)}, got {name}")
    args = list(map(_read, node.args))
    if _FUNCTIONS[name] is sympy.Pow:
        exponent = args[-1]
        if not exponent.is_Integer or abs(exponent) > _MAX_EXPONENT:
            raise ValueError(f"expected an exponent of at most {_MAX_EXPONENT}, got {exponent}")
    return _bounded(_FUNCTIONS[name](*args))


def _bounded(value: Any) -> Any:
    """Return a value, unless it is a number that no size is made of.

    sympy computes with numbers of any length, so that a short text could take hours.
    """
    if value.is_Rational and max(abs(value.p), value.q) >= 2**63:
        raise ValueError("expected numbers below 2**63, got a longer one")
    if value.is_Float and not -sys.float_info.max <= value <= sys.float_info.max:
        raise ValueError("expected a finite float, got another")
    return value


def _plain(node: ast.expr) -> Any:
    """Return a number, a text or a bool."""
    value = ast.literal_eval(node)
    if not isinstance(value, bool | int | float | str):
        raise ValueError(f"expected a plain value, got {value!r}")
    return value
