"""Define the functions in torch's sizes, for programs that are read without torch.

torch has sympy classes of the same names and meanings. Here only calls with numbers are evaluated,
and quotients by 1.
"""

from __future__ import annotations

import math
from typing import Any

import sympy
from sympy.printing.precedence import PRECEDENCE

#: Everything but names and numbers stands in parentheses.
_ATOM = PRECEDENCE["Atom"] - 0.5


class _SizeFunction(sympy.Function):  # type: ignore[misc]  # sympy has no types
    """A function of sizes, whose values are real."""

    is_real = True


class _IntegerFunction(_SizeFunction):
    """A function of two integers, whose values are integers."""

    is_integer = True
    nargs = 2


class FloorDiv(_IntegerFunction):
    """``a // b``, rounded down."""

    precedence = 35  # below that of sums

    @classmethod
    def eval(cls, a: Any, b: Any) -> Any:
        """Evaluate numbers; the quotient by 1 is the dividend."""
        if a.is_Integer and b.is_Integer:
            return sympy.Integer(int(a) // int(b))
        return a if b == 1 else None

    def _sympystr(self, printer: Any) -> str:
        """Return the text that torch's class has: names of sizes are made of it."""
        above, below = (printer.parenthesize(arg, _ATOM) for arg in self.args)
        return f"({above}//{below})"


class CleanDiv(FloorDiv):
    """``a // b`` where nothing is left over."""


class Mod(_IntegerFunction):
    """``a % b`` of numbers of at least 0."""

    @classmethod
    def eval(cls, a: Any, b: Any) -> Any:
        """Evaluate numbers."""
        return sympy.Integer(int(a) % int(b)) if a.is_Integer and b.is_Integer else None


class PythonMod(Mod):
    """``a % b`` with the sign of ``b``."""


class _Rounding(_SizeFunction):
    """A float as a whole number."""

    is_integer = True
    nargs = 1
    rounds: Any

    @classmethod
    def eval(cls, x: Any) -> Any:
        """Evaluate numbers."""
        return sympy.Integer(cls.rounds(float(x))) if x.is_number else None


class FloorToInt(_Rounding):
    """The largest whole number up to a float."""

    rounds = math.floor


class CeilToInt(_Rounding):
    """The smallest whole number from a float on."""

    rounds = math.ceil


class TruncToInt(_Rounding):
    """A float without its fraction."""

    rounds = math.trunc


class RoundToInt(_Rounding):
    """The whole number next to a float, the even one of two."""

    rounds = round


class _FloatFunction(_SizeFunction):
    """A function whose values are floats."""

    is_integer = False


class ToFloat(_FloatFunction):
    """An integer as a float."""

    nargs = 1


class IntTrueDiv(_FloatFunction):
    """The quotient of two integers."""

    nargs = 2


class FloatTrueDiv(_FloatFunction):
    """The quotient of two floats."""

    nargs = 2


class FloatPow(_FloatFunction):
    """A power of floats."""

    nargs = 2


class OpaqueUnaryFn_sqrt(_FloatFunction):
    """The square root of a float."""

    nargs = 1


#: By their names, in expressions of torch.
SIZE_FUNCTIONS = {
    function.__name__: function
    for function in (
        CeilToInt, CleanDiv, FloatPow, FloatTrueDiv, FloorDiv, FloorToInt, IntTrueDiv, Mod,
        OpaqueUnaryFn_sqrt, PythonMod, RoundToInt, ToFloat, TruncToInt,
    )
}  # fmt: skip
