"""Define the functions in torch's sizes, for programs that are read without torch.

torch has sympy classes of the same names and meanings. Here only calls with numbers are evaluated,
and a few forms that are simpler.
"""

from __future__ import annotations

import math
from typing import Any

import sympy


class _OfIntegers(sympy.Function):
    """A function of integers, whose values are integers."""

    is_integer = True
    nargs = 2


class FloorDiv(_OfIntegers):
    """``a // b``, rounded down."""

    @classmethod
    def eval(cls, a: Any, b: Any) -> Any:
        """Evaluate numbers; the quotient by 1 is the dividend."""
        if a.is_Integer and b.is_Integer:
            return sympy.Integer(int(a) // int(b))
        return a if b == 1 else None


class CleanDiv(FloorDiv):
    """``a // b`` where nothing is left over."""


class Mod(_OfIntegers):
    """``a % b`` of numbers of at least 0."""

    @classmethod
    def eval(cls, a: Any, b: Any) -> Any:
        """Evaluate numbers."""
        return sympy.Integer(int(a) % int(b)) if a.is_Integer and b.is_Integer else None


class PythonMod(Mod):
    """``a % b`` with the sign of ``b``."""


class _Rounding(sympy.Function):
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


class ToFloat(sympy.Function):
    """An integer as a float."""

    is_integer = False
    is_real = True
    nargs = 1


class IntTrueDiv(sympy.Function):
    """The quotient of two integers, a float."""

    is_integer = False
    is_real = True
    nargs = 2


class FloatTrueDiv(sympy.Function):
    """The quotient of two floats."""

    is_integer = False
    is_real = True
    nargs = 2


class FloatPow(sympy.Function):
    """A power of floats."""

    is_integer = False
    is_real = True
    nargs = 2


class OpaqueUnaryFn_sqrt(sympy.Function):
    """The square root of a float."""

    is_integer = False
    is_real = True
    nargs = 1


#: By their names, in expressions of torch.
SIZE_FUNCTIONS = {
    function.__name__: function
    for function in (
        CeilToInt, CleanDiv, FloatPow, FloatTrueDiv, FloorDiv, FloorToInt, IntTrueDiv, Mod,
        OpaqueUnaryFn_sqrt, PythonMod, RoundToInt, ToFloat, TruncToInt,
    )
}  # fmt: skip
