"""Express sizes that a program computes with floats, as ``floor(1.7 * n)``, in whole numbers.

A float constant stands for the simplest fraction that rounds to it: 1.7 for 17/10. The size is then
``17*n // 10``. This is exact only if the program's doubles round to the same whole number as the
fraction, for every size in range. It is proved as follows:

- a fraction with denominator ``d`` that is not whole differs from whole numbers by 1/d or more. It
  is enough that the doubles differ from it by less;
- where the fraction is whole, the double must not lie on the wrong side. A product ``k * (1 + e)``
  rounds to the double ``k`` if ``|e| <= 2**-54``: half the distance between doubles at ``k`` is
  ``2**-54 * k`` or more. For a larger ``e`` it rounds to ``k`` or to the side of ``e``.

Where that proves nothing, every size of a range that is not too long is computed.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial, reduce
from typing import TYPE_CHECKING

import numpy as np
import sympy

from taper_frontend.lowering.aten_program import Node, SymbolicNumber
from taper_frontend.lowering.size_functions import FloatTrueDiv
from taper_runtime.base.errors import OpError
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.sizes import (
    MAX_SIZE,
    Size,
    bounds,
    is_static,
    largest,
    linear,
    smallest,
    variable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: Functions that make a whole number of a float.
ROUNDINGS = ("CeilToInt", "FloorToInt", "RoundToInt", "TruncToInt")

#: The largest denominator of the fraction that a float constant stands for.
_MAX_DENOMINATOR = 1000

#: The largest denominator of a fraction that doubles hold exactly.
_MAX_EXACT = 2**16

#: The most sizes of a range that are all computed.
_MOST_TRIED = 2**21

#: Doubles hold all whole numbers up to this one.
_WHOLE = 2**53

#: The largest relative distance of a double from the number that is rounded to it.
_EPSILON = Fraction(1, _WHOLE)

#: A product with a relative error up to this is exact where its value is a double of few bits.
_HARMLESS = _EPSILON / 2


class _Unproved(Exception):
    """Doubles may round to another whole number than the fraction."""


class _Unknown(Exception):
    """The expression is not a fraction of whole numbers."""


class _Fraction(NamedTuple):
    """A float that is computed from sizes.

    Attributes
    ----------
    numerator, denominator : size
        The fraction for which it stands. The denominator is 1 or more.
    error : Fraction
        An upper bound of ``|double - fraction| * denominator``; 0 if the double is the fraction.
    below, above : bool
        Whether the double may be below or above the fraction where that is a multiple of a power of
        two which a double holds.
    """

    numerator: int
    denominator: int = 1
    error: Fraction = Fraction(0)
    below: bool = False
    above: bool = False

    def most(self) -> int:
        """Return an upper bound of the absolute value of the numerator.

        A product of sizes is at most ``MAX_SIZE``, as the number of a tensor's elements is.
        """
        if not isinstance(self.numerator, Size):
            return abs(self.numerator)
        return sum(
            abs(factor) * min(math.prod(max(-a.low, a.high) for a in atoms), MAX_SIZE)
            for atoms, factor in self.numerator.terms
        )


def convert_rounding(function: str, expr: sympy.Expr, convert: Callable[[sympy.Expr], int]) -> int:
    """Return a size that is a float rounded to a whole number.

    Parameters
    ----------
    function : str
        One of :data:`ROUNDINGS`.
    expr : sympy.Expr
        The float.
    convert : callable
        Converts the integers inside to sizes.

    Raises
    ------
    OpError
        If it is no fraction of sizes, or doubles do not round as the fraction does. The message
        says what to write.
    """
    leaves: dict[sympy.Expr, int] = {}

    def leaf(integer: sympy.Expr) -> int:
        return leaves.setdefault(integer, convert(integer))

    def text() -> str:
        return f"{_NAMES[function]}({spelled(expr, convert)})"

    try:
        fraction = _read(expr, leaf)
    except _Unknown as error:
        raise OpError(
            f"the size {text()} is computed with floats, {error}; compute it with whole numbers, "
            "or fix the size"
        ) from None
    try:
        return _rounded(function, fraction)
    except _Unproved:
        if not (wrong := _first_wrong(function, expr, leaves)):
            return _rounded(
                function, fraction._replace(error=Fraction(0), below=False, above=False)
            )
    raise OpError(f"the size {text()}: {wrong}")


def floats_as_written(nodes: Iterable[Node]) -> dict[sympy.Expr, dict[sympy.Expr, None]]:
    """Return the floats that a program computes from sizes, in the order in which it does.

    Keys are torch's expressions, which join constants: 7.0*n for ``n * 0.7 * 10.0``, where doubles
    are rounded twice. Values are the expressions without that, each once.
    """
    written: dict[sympy.Expr, dict[sympy.Expr, None]] = {}
    exprs: dict[str, sympy.Expr] = {}
    for node in nodes:
        value = node.value
        if not isinstance(value, SymbolicNumber) or value.kind == "bool":
            continue
        expr = exprs[node.name] = value.expr
        if node.op == "call_function" and value.kind == "float":
            if node.target in _WRITTEN and _name(expr) != "IntTrueDiv":
                args = [
                    exprs[arg.name] if isinstance(arg, Node) else sympy.sympify(arg)
                    for arg in node.args
                ]
                exprs[node.name] = _WRITTEN[node.target](*args)
            written.setdefault(expr, {})[exprs[node.name]] = None
    return written


_WRITTEN: dict[str, Callable[..., sympy.Expr]] = {
    "operator.add": partial(sympy.Add, evaluate=False),
    "operator.sub": lambda a, b: sympy.Add(a, sympy.Mul(-1, b, evaluate=False), evaluate=False),
    "operator.mul": partial(sympy.Mul, evaluate=False),
    "operator.truediv": partial(FloatTrueDiv, evaluate=False),
}


def _name(expr: sympy.Expr) -> str:
    """Return the name of the function of an expression: torch's classes and ours have one name."""
    return type(expr).__name__


def _read(expr: sympy.Expr, leaf: Callable[[sympy.Expr], int]) -> _Fraction:
    """Return the fraction for which an expression stands, with the error of doubles."""
    if expr.is_Float or expr.is_Integer or expr.is_Rational:
        value = Fraction(float(expr))
        simple = simplest(value)
        if simple == value:
            return _Fraction(value.numerator, value.denominator)
        error = abs(value - simple) * simple.denominator
        return _Fraction(simple.numerator, simple.denominator, error, True, True)
    match _name(expr):
        case "ToFloat":
            return _Fraction(leaf(expr.args[0]))
        case "IntTrueDiv":
            above, below = map(leaf, expr.args)
            if is_static(below) and below > 0:
                return _scaled(_Fraction(above), Fraction(1, below), Fraction(1, below))
            if bounds(below)[0] < 1:
                raise _Unknown("with a divisor that may be 0")
            quotient = _Fraction(above, below)
            # rounded to nearest: a whole number stays one
            return quotient._replace(error=quotient.most() * _EPSILON)
        case "FloatTrueDiv":
            dividend, divisor = expr.args
            if (number := _constant(divisor)) is not None and number > 0:
                return _scaled(_read(dividend, leaf), 1 / simplest(number), 1 / number)
            raise _Unknown("with a divisor that varies")
        case "Mul":
            constants = [c for arg in expr.args if (c := _constant(arg)) is not None]
            others = [_read(arg, leaf) for arg in expr.args if _constant(arg) is None]
            if len(others) != 1 or len(constants) != len(expr.args) - 1:
                raise _Unknown("with a product of two of them")
            return reduce(lambda x, c: _scaled(x, simplest(c), c), constants, others[0])
        case "Add":
            return reduce(_add, [_read(arg, leaf) for arg in expr.args])
        case "FloatPow":
            raise _Unknown("with a power")
    if expr.is_integer:
        return _Fraction(leaf(expr))
    raise _Unknown(f"with {_name(expr)}")


def _constant(expr: sympy.Expr) -> Fraction | None:
    """Return the value of a constant; None for another expression."""
    return Fraction(float(expr)) if expr.is_number else None


def simplest(value: Fraction) -> Fraction:
    """Return the fraction for which a float stands: the simplest one that is rounded to it.

    A fraction without a small denominator, such as the square root of 2, stands for itself.
    """
    if value.denominator <= _MAX_EXACT:
        return value
    simple = value.limit_denominator(_MAX_DENOMINATOR)
    return simple if float(simple) == float(value) else value


def _scaled(x: _Fraction, factor: Fraction, actual: Fraction) -> _Fraction:
    """Return ``x`` times the fraction ``factor``, for which a double computes with ``actual``.

    ``actual`` is a double or the inverse of one.
    """
    if factor == 0:
        raise _Unknown("with a factor of 0")
    if not is_static(x.denominator):
        raise _Unknown("with a product of a quotient")
    if factor.denominator > _MAX_EXACT:
        raise _Unknown(f"by {float(factor)}, not a fraction of small whole numbers")
    numerator, denominator = _reduced(
        x.numerator * factor.numerator, x.denominator * factor.denominator
    )
    result = _Fraction(numerator, denominator)
    change = Fraction(denominator, x.denominator)
    error = x.error * abs(actual) * change
    ratio = actual / factor
    shift = _is_power_of_2(abs(factor.numerator)) and _is_power_of_2(factor.denominator)
    if shift and ratio == 1:
        below, above = (x.below, x.above) if factor > 0 else (x.above, x.below)
        return result._replace(error=error, below=below, above=above)
    if x.error == 0 and ratio == 1 and _is_held(result):
        return result
    error += result.most() * (abs(ratio - 1) + 2 * _EPSILON)
    if x.error != 0:
        return result._replace(error=error, below=True, above=True)
    smaller, larger = ratio < 1 - _HARMLESS, ratio > 1 + _HARMLESS
    low, high = bounds(numerator)
    below = (smaller and high > 0) or (larger and low < 0)
    above = (larger and high > 0) or (smaller and low < 0)
    return result._replace(error=error, below=below, above=above)


def _add(x: _Fraction, y: _Fraction) -> _Fraction:
    """Return a sum. If one addend is exact, it is as exact as the other one."""
    if not (is_static(x.denominator) and is_static(y.denominator)):
        raise _Unknown("with a sum of quotients")
    common = math.lcm(x.denominator, y.denominator)
    a, b = common // x.denominator, common // y.denominator
    numerator, denominator = _reduced(x.numerator * a + y.numerator * b, common)
    result = _Fraction(numerator, denominator)
    if x.error == 0 and y.error == 0 and _is_held(result):
        return result
    change = Fraction(denominator, common)
    error = (x.error * a + y.error * b) * change + result.most() * 2 * _EPSILON
    if x.error == 0 or y.error == 0:
        return result._replace(error=error, below=x.below or y.below, above=x.above or y.above)
    return result._replace(error=error, below=True, above=True)


def _reduced(numerator: int, denominator: int) -> tuple[int, int]:
    factors = (
        [factor for _, factor in numerator.terms] if isinstance(numerator, Size) else [numerator]
    )
    common = math.gcd(denominator, *factors)
    return numerator // common, denominator // common


def _is_power_of_2(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


def _is_held(x: _Fraction) -> bool:
    """Return whether a double holds the fraction exactly."""
    return _is_power_of_2(x.denominator) and x.denominator <= _MAX_EXACT and x.most() < _WHOLE


def _rounded(function: str, x: _Fraction) -> int:
    """Return the whole number to which a fraction is rounded.

    Raises
    ------
    _Unproved
        If the double may be rounded to another one.
    """
    a, b = x.numerator, x.denominator
    if x.error >= (1 if function != "RoundToInt" else Fraction(1, 2)):
        raise _Unproved
    if function == "FloorToInt":
        if x.below:
            raise _Unproved
        return a // b
    if function == "CeilToInt":
        if x.above:
            raise _Unproved
        return -(-a // b)
    if function == "TruncToInt":
        low, high = bounds(a)
        if low >= 0:
            return _rounded("FloorToInt", x)
        if high <= 0:
            return _rounded("CeilToInt", x)
        return largest(_rounded("FloorToInt", x), 0) + smallest(_rounded("CeilToInt", x), 0)
    if is_static(b) and b % 2 == 1:  # never between two whole numbers
        return (2 * a + b) // (2 * b)
    if x.below or x.above:
        raise _Unproved
    # a half is rounded up, but to the even number below where that is odd
    doubled = 2 * a + b
    odd = (doubled + 2 * b) // (4 * b) - (doubled + 2 * b - 1) // (4 * b)
    return doubled // (2 * b) - odd


def _first_wrong(function: str, expr: sympy.Expr, leaves: dict[sympy.Expr, int]) -> str:
    """Return what is wrong with a fraction, by trying sizes; an empty text if nothing is."""
    varying = [(integer, size) for integer, size in leaves.items() if not is_static(size)]
    if len(varying) != 1:
        return (
            "floats that are computed from several sizes are rounded; compute it with whole numbers"
        )
    ((integer, size),) = varying
    low, high = bounds(size)
    end = min(high, low + _MOST_TRIED)
    place = variable("n", low, max(end, low + 1))
    fraction = _read(expr, lambda each: place if each == integer else leaves[each])
    known = linear(fraction.numerator)
    if known is None or not is_static(fraction.denominator):
        return "it is computed with floats; compute it with whole numbers"
    _, factor, addend = known
    tried = np.arange(low, end + 1)
    doubles = _computed(expr, integer, tried, leaves)
    exact = _rounded_array(function, factor * tried + addend, fraction.denominator)
    differs = np.flatnonzero(_NUMPY[function](doubles) != exact)
    write = "compute it with whole numbers"
    if function in _QUOTIENTS:
        times = "" if factor == 1 else f"{factor}*"
        a = f"{times}{size}" if addend == 0 else f"({times}({size}) + {addend})"
        b = fraction.denominator
        write += f", as {a if b == 1 else _QUOTIENTS[function].format(a=a, b=b)}"
    if differs.size:
        at = differs[0]
        got = int(_NUMPY[function](doubles[at : at + 1])[0])
        return (
            f"floats give {got} for {size} = {tried[at]}, where the fraction "
            f"{factor}/{fraction.denominator} gives {int(exact[at])}; {write}, or let {size} be at "
            f"most {tried[at] - 1}"
        )
    if end < high:
        return f"floats may round it to another number for {size} above {end}; {write}"
    return ""


_NUMPY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "FloorToInt": np.floor,
    "CeilToInt": np.ceil,
    "TruncToInt": np.trunc,
    "RoundToInt": np.rint,
}


def _rounded_array(function: str, numerators: np.ndarray, denominator: int) -> np.ndarray:
    """Return fractions rounded to whole numbers, exactly."""
    floor, rest = np.divmod(numerators, denominator)
    if function == "FloorToInt":
        up = np.zeros(1, bool)
    elif function == "CeilToInt":
        up = rest > 0
    elif function == "TruncToInt":
        up = (rest > 0) & (numerators < 0)
    else:
        up = (2 * rest > denominator) | ((2 * rest == denominator) & (floor % 2 == 1))
    return np.add(floor, up)


def _computed(
    expr: sympy.Expr, integer: sympy.Expr, values: np.ndarray, leaves: dict[sympy.Expr, int]
) -> np.ndarray:
    """Return an expression for many values of an integer in it, computed in doubles."""
    if expr.is_number:
        return np.array(float(expr))
    if expr == integer or expr in leaves:
        return np.asarray(values if expr == integer else leaves[expr], float)
    args = [_computed(arg, integer, values, leaves) for arg in expr.args]
    match _name(expr):
        case "IntTrueDiv" | "FloatTrueDiv":
            return np.asarray(np.divide(args[0], args[1]))
        case "Mul":
            return np.asarray(reduce(np.multiply, args))
        case "Add":
            return np.asarray(reduce(np.add, args))
    return args[0]


#: The quotient of whole numbers that is rounded so, for sizes from 0 on.
_QUOTIENTS = {
    "CeilToInt": "-(-{a} // {b})",
    "FloorToInt": "{a} // {b}",
    "TruncToInt": "{a} // {b}",
}

_NAMES = {"CeilToInt": "ceil", "FloorToInt": "floor", "RoundToInt": "round", "TruncToInt": "int"}


def spelled(expr: sympy.Expr, convert: Callable[[sympy.Expr], int]) -> str:
    """Return an expression in Python's words, with the names of sizes."""
    if expr.is_number:
        return f"{float(expr):g}" if expr.is_Float else str(expr)
    if expr.is_integer:
        try:
            return str(convert(expr))
        except OpError:
            pass
    args = [spelled(arg, convert) for arg in expr.args]
    operands = [f"({arg})" if " " in arg else arg for arg in args]
    match _name(expr):
        case "IntTrueDiv" | "FloatTrueDiv":
            return " / ".join(operands)
        case "Mul":
            return "*".join(operands)
        case "Add":
            return " + ".join(args)
        case "FloatPow":
            return " ** ".join(operands)
        case "ToFloat":
            return args[0]
    name = _NAMES.get(_name(expr), _name(expr))
    return f"{name}({', '.join(args)})" if args else str(expr)
