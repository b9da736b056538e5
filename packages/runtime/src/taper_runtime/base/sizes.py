"""Compute with size expressions: dims that depend on the inputs of a run.

A size is an ``int``, or an expression over *size variables*: a polynomial whose atoms are variables
and calls of ``floordiv``, ``min`` and ``max``. An expression can be used wherever an int can, with
the same arithmetic. So rules written for ints (type inference, view rules) work for all sizes at
once. Two things keep that sound:

- expressions are canonical: equal structure means equal values for all values of the variables. If
the
  structures differ, ``==`` is False, even if both sides are equal for some values;
- comparisons (``<``, ``<=``...) and the truth of an expression are decided from the ranges of its
  variables. They raise :class:`UndecidedError` if both answers are possible.

Annotations say ``int`` for every size, because that is how sizes are used. Type checkers see an
expression as a subclass of int. At run time it is not one, so that no code takes it for a number.
"""

from __future__ import annotations

from math import gcd, inf
from typing import TYPE_CHECKING, Any

from taper_runtime.base.errors import OpError
from taper_runtime.base.polynomials import (
    Atom,
    FrozenTerms,
    Terms,
    add,
    divide_product,
    format_terms,
    lower_bound,
    multiply,
)
from taper_runtime.base.steps import CURRENT, ask, spend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    _Int = int
else:
    _Int = object

#: The largest value of a variable. Products of several may exceed 64 bits; evaluation checks that.
MAX_SIZE = 2**48

#: A range that ends here or later counts as unbounded.
UNBOUNDED = 2**31 - 1

#: The range of a size expression's value: signed 64-bit integers.
LOW, HIGH = -(2**63), 2**63 - 1

#: The proof steps of making an expression, in addition to one per term.
_MAKING = 2

#: The characters of an expression's text that take as long to write as a proof step.
_CHARS = 200

#: The most quotients of one expression that its bounds expand.
_MAX_QUOTIENTS = 4

FUNCTIONS = ("floordiv", "min", "max")


class UndecidedError(OpError):
    """A condition on a size is true for some sizes in range and false for others.

    Attributes
    ----------
    size : size
        The size that the ranges leave undecided.
    """

    def __init__(self, message: str, size: int = 0) -> None:
        super().__init__(message)
        self.size = size


def _once(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Cache the results of binary operations: models repeat size arithmetic in every layer.

    The size holds its results. A global table would be wrong, because a variable of the same name
    may have another range elsewhere.
    """

    def remembered(self: Size, other: object) -> Any:
        if not _is_size(other):
            return NotImplemented
        key = (operation, other)
        result = self.results.get(key)
        if result is None:
            result = self.results[key] = operation(self, other)
        return result

    return remembered


class Size(_Int):
    """A size expression that is not constant: a sum of products of atoms.

    Attributes
    ----------
    terms : tuple of (tuple of Atom, int)
        Products and their factors, in canonical order; no factor is 0, no product occurs twice.
    results : dict
        The cached results of operations, by operation and operand.
    """

    __slots__ = ("_hash", "_low", "_text", "results", "terms")

    def __init__(self, terms: Iterable[tuple[tuple[Atom, ...], int]]) -> None:
        self.terms = tuple(terms)
        self._text = format_terms(self.terms)
        spend(_MAKING + len(self.terms) + len(self._text) // _CHARS, self._text)
        self._hash = hash(self._text)
        self._low: int | None = None
        self.results: dict[Any, int] = {}

    def __repr__(self) -> str:
        return self._text

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Size) and self._text == other._text

    # -- arithmetic -------------------------------------------------------------------------------

    @_once
    def __add__(self, other: int) -> Any:
        return _sum(self, other, 1)

    __radd__ = __add__

    @_once
    def __sub__(self, other: int) -> Any:
        return _sum(self, other, -1)

    @_once
    def __rsub__(self, other: int) -> Any:
        return _sum(other, self, -1)

    def __neg__(self) -> Any:
        return 0 - self

    def __pos__(self) -> int:
        return self

    @_once
    def __mul__(self, other: int) -> Any:
        terms = _terms(other)
        spend(len(self.terms) * len(terms), self)
        return _make(multiply(self.terms, terms))

    __rmul__ = __mul__

    @_once
    def __floordiv__(self, other: int) -> Any:
        return _floordiv(self, other)

    @_once
    def __rfloordiv__(self, other: int) -> Any:
        return _floordiv(other, self)

    def __mod__(self, other: int) -> Any:
        return self - other * (self // other)

    def __rmod__(self, other: int) -> Any:
        return other - self * (other // self)

    # -- what only the ranges can tell ------------------------------------------------------------

    def __lt__(self, other: int) -> bool:
        return not self >= other

    @_once
    def __le__(self, other: int) -> Any:
        return _is_at_least(other, self)

    def __gt__(self, other: int) -> bool:
        return not self <= other

    @_once
    def __ge__(self, other: int) -> Any:
        return _is_at_least(self, other)

    def __bool__(self) -> bool:
        low, high = bounds(self)
        if low > 0 or high < 0:
            return True
        raise UndecidedError(f"whether {self} is 0 depends on the inputs' sizes", self)

    def __index__(self) -> int:
        raise UndecidedError(f"{self} has no value before a run gives the inputs", self)


def variable(name: str, low: int, high: int) -> int:
    """Return a size variable between ``low`` and ``high``, both included; an int if they are equal.

    ``high`` may be an expression in other variables, as for the size of a part of a tensor.
    """
    if low == high:
        return low
    limits = () if is_static(high) else (high,)
    return of_atom(Atom(name, "", limits, low, min(bounds(high)[1], MAX_SIZE)))


def range_of(atom: Atom) -> tuple[int, int]:
    """Return the range with which :func:`variable` made a variable."""
    return atom.low, atom.args[0] if atom.args else atom.high


def replace_variables(size: Any, variable: Callable[[Atom], int]) -> Any:
    """Return ``size`` with each variable replaced by ``variable(atom)``."""
    if not isinstance(size, Size):
        return size
    total: Any = 0
    for atoms, factor in _terms(size):
        product: Any = factor
        for atom in atoms:
            if atom.function:
                a, b = (replace_variables(arg, variable) for arg in atom.args)
                product = product * CALLS[atom.function](a, b)
            else:
                product = product * variable(atom)
        total = total + product
    return total


def quotient(a: int, b: int) -> int:
    """Return ``a // b``; raise :class:`UndecidedError` if ``b`` may be less than 1."""
    result: int = _floordiv(a, b)
    return result


def smallest(a: int, b: int) -> int:
    """Return the smaller of two sizes."""
    return _extreme("min", a, b)


def largest(a: int, b: int) -> int:
    """Return the larger of two sizes."""
    return _extreme("max", a, b)


#: The functions by name.
CALLS = {"floordiv": quotient, "min": smallest, "max": largest}


def is_static(size: int) -> bool:
    """Return whether ``size`` is an int, the same for all inputs."""
    return type(size) is int


def bounds(size: int) -> tuple[int, int]:
    """Return bounds of ``size``, both included, from the ranges of its variables."""
    if not isinstance(size, Size):
        return size, size
    return _low(size), -_low(-size)


def _low(size: Any, enough: float = inf) -> int:
    """Return a lower bound of ``size``; stop searching at one of at least ``enough``."""
    if not isinstance(size, Size):
        return int(size)
    if size._low is None:
        low = ask(_found, size, enough)
        if low >= enough:  # there may be a larger bound
            return low
        size._low = low
    return size._low


def _found(size: Any, enough: float) -> int:
    """Return :func:`_least` of a size, cached within one question."""
    steps = CURRENT.get()
    assert steps is not None  # only within a question
    low = steps.lows.get(size._text)
    if low is None:
        low = _least(size, enough)
        if low < enough:
            steps.lows[size._text] = low
    return low


def variables(size: int) -> Iterator[Atom]:
    """Yield the variables in ``size``; a variable may be yielded several times."""
    if not isinstance(size, Size):
        return
    for atoms, _ in _terms(size):
        for atom in atoms:
            if atom.function:
                for arg in atom.args:
                    yield from variables(arg)
            else:
                yield atom


def linear(size: int) -> tuple[str, int, int] | None:
    """Return (variable, factor, addend) if ``size`` is ``factor * variable + addend``."""
    if not isinstance(size, Size):
        return None
    (atoms, factor), *rest = _terms(size)
    if len(atoms) != 1 or atoms[0].function or len(rest) > 1 or (rest and rest[0][0]):
        return None
    return atoms[0].text, factor, rest[0][1] if rest else 0


def is_name(text: str) -> bool:
    """Return whether ``text`` is a valid name of a size variable."""
    return text.isascii() and text.isidentifier() and len(text) <= 100 and text not in FUNCTIONS


# -- canonical form --------------------------------------------------------------------------------


def _is_size(value: object) -> bool:
    return isinstance(value, Size) or type(value) is int


def _terms(size: Any) -> FrozenTerms:
    if isinstance(size, Size):
        return size.terms
    return (((), size),) if size else ()


def _make(terms: Terms) -> int:
    kept = [(atoms, factor) for atoms, factor in terms.items() if factor]
    if not kept:
        return 0
    if any(not LOW <= factor <= HIGH for _, factor in kept):
        raise OpError("expected factors of a size expression that fit in 64 bits, got a larger one")
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    kept.sort(key=lambda term: (-len(term[0]), term[0]))
    return Size(kept)


def of_atom(atom: Atom) -> int:
    """Return the size that consists of one atom."""
    return Size((((atom,), 1),))


def _sum(a: Any, b: Any, sign: int) -> Any:
    if not (_is_size(a) and _is_size(b)):
        return NotImplemented
    return _make(add(_terms(a), _terms(b), sign))


def _floordiv(a: Any, b: Any) -> Any:
    """Divide the terms that are exact multiples; the remainder becomes an atom.

    ``(q * b + r) // b = q + r // b``, with the factors of ``r`` in ``[0, b)`` if b is a number.
    Then ``(x // m + r) // b`` is also ``(x + m * r) // (m * b)``: halving twice divides by four.
    """
    if not (_is_size(a) and _is_size(b)):
        return NotImplemented
    low, high = bounds(b)
    if high < 0:
        return _floordiv(-a, -b)
    if low < 1:
        raise UndecidedError(
            f"{a} // {b}: expected a divisor of at least 1, but this one may be less", b
        )
    divisor = _terms(b)
    quotient: Terms = {}
    rest: Terms = {}
    if len(divisor) == 1:
        ((atoms, factor),) = divisor
        for term, amount in _terms(a):
            left = divide_product(term, atoms)
            whole, part = divmod(amount, factor)
            if left is None:
                rest[term] = amount
            elif atoms and part:
                rest[term] = part
                quotient[left] = whole
            else:
                quotient[left] = whole
                rest[term] = part
    else:
        quotient, rest = _divide_by_sum(a, b)
    remainder = _make(rest)
    if is_static(b) and (inner := _inner_division(remainder)):
        x, m = inner.args
        return _make(quotient) + _floordiv(x + m * (remainder - of_atom(inner)), m * b)
    low, high = bounds(remainder)
    if low >= 0 and bounds(b - remainder)[0] > 0:
        return _make(quotient)
    if is_static(remainder) and is_static(b):
        return _make(quotient) + remainder // b
    b_low, b_high = bounds(b)
    corners = [low // b_low, low // b_high, high // b_low, high // b_high]
    if min(corners) == max(corners):
        return _make(quotient) + corners[0]
    if is_static(b) and not is_static(whole := _nearest(rest, b)):
        low, high = bounds(remainder - b * whole)
        if low // b == high // b:
            return _make(quotient) + whole + low // b
    text = f"floordiv({remainder}, {b})"
    return _make(quotient) + of_atom(
        Atom(text, "floordiv", (remainder, b), min(corners), max(corners))
    )


def _nearest(rest: Terms, b: int) -> int:
    """Return ``rest / b`` with its factors rounded to whole numbers.

    The remainder of ``63*s // 64`` is ``-s // 64``, which is -1 for s from 1 to 64. Lengths that
    are padded to whole chunks have such remainders.
    """
    return _make({atoms: 1 for atoms, factor in rest.items() if atoms and 2 * factor > b})


def _divide_by_sum(a: Any, b: Any) -> tuple[Terms, Terms]:
    """Return quotient and remainder of polynomial division by ``b``'s first term."""
    (atoms, factor), *_ = _terms(b)
    quotient: Terms = {}
    rest = a
    for _ in range(_MAX_QUOTIENTS):
        parts = ((divide_product(term, atoms), amount // factor) for term, amount in _terms(rest))
        found = next(((left, whole) for left, whole in parts if left is not None and whole), None)
        if found is None:
            return quotient, dict(_terms(rest))
        quotient[found[0]] = quotient.get(found[0], 0) + found[1]
        rest = rest - _make({found[0]: found[1]}) * b
    return {}, dict(_terms(a))


def _inner_division(size: int) -> Atom | None:
    """Return a floor division by a number that is a summand of ``size`` with factor 1, or None."""
    for atoms, factor in _terms(size):
        if len(atoms) != 1 or factor != 1 or atoms[0].function != "floordiv":
            continue
        if is_static(atoms[0].args[1]):
            return atoms[0]
    return None


def _extreme(function: str, a: int, b: int) -> int:
    if _is_never_less(b, a):
        return a if function == "min" else b
    if _is_never_less(a, b):
        return b if function == "min" else a
    first, second = sorted((a, b), key=str)
    choose = min if function == "min" else max
    (a_low, a_high), (b_low, b_high) = bounds(first), bounds(second)
    text = f"{function}({first}, {second})"
    low, high = choose(a_low, b_low), choose(a_high, b_high)
    return of_atom(Atom(text, function, (first, second), low, high))


def _is_at_least(a: Any, b: Any) -> Any:
    if not (_is_size(a) and _is_size(b)):
        return NotImplemented
    if _is_never_less(a, b):
        return True
    if _is_never_less(b, a, 1):
        return False
    raise UndecidedError(f"whether {a} is at least {b} depends on the inputs' sizes", a - b)


def _is_never_less(a: Any, b: Any, by: int = 0) -> bool:
    """Return whether the ranges prove that ``a`` is at least ``b + by``.

    The ends of a slice may be the largest int64, so a difference from them need not be a size.
    """
    if is_static(b) and _low(a, b + by) >= b + by:
        return True
    if is_static(a) and _low(-b, by - a) >= by - a:
        return True
    try:
        difference = a - b
    except OpError:
        difference = None
    if not (is_static(a) or is_static(b)):
        if difference is not None and lower_bound(_terms(difference)) >= by:
            return True
        if _low(a) + _low(-b) >= by:
            return True
    if difference is None:
        return False
    if _low(difference, by) >= by:
        return True
    rest = difference if is_static(difference) or by > 1 else _without_factors(difference, by)
    return rest is not difference and _low(rest, by) >= by


def _without_factors(size: Any, low: int) -> Any:
    """Return ``size`` without the atoms of at least ``low`` that are factors of all terms."""
    first, *others = (atoms for atoms, _ in _terms(size))
    common: list[Atom] = []
    for atom in first:
        count = common.count(atom)
        if atom.low >= low and all(atoms.count(atom) > count for atoms in others):
            common.append(atom)
    if not common:
        return size
    kept: Terms = {}
    for atoms, factor in _terms(size):
        left = list(atoms)
        for atom in common:
            left.remove(atom)
        kept[tuple(left)] = factor
    return _make(kept)


def _least(size: Any, enough: float) -> int:
    """Return a lower bound of ``size``; stop searching at one of at least ``enough``.

    Bounding each atom by itself loses what atoms have in common, as in ``s - (s + 1) // 2``. So
    quotients are expanded: ``x // m`` is ``(x - r) / m`` with ``r`` in ``[0, m)``, or, where it is
    added, ``(x - (m - 1) + r) / m``. In the same way, a subtracted variable that has a limit is
    written as the limit minus a non-negative rest.
    """
    low = lower_bound(_terms(size))
    for each in _without_extreme(size) if low < enough else ():
        low = max(low, _low(each, enough))
        if low >= enough:
            break
    for _ in range(_MAX_QUOTIENTS):
        limited = _limited(size) if low < enough else None
        if limited is None:
            break
        try:
            size = _with_rest(size, limited)
        except OpError:
            break
        low = max(low, lower_bound(_terms(size)))
        for each in _without_extreme(size) if low < enough else ():
            low = max(low, _low(each, enough))
    if low >= enough:
        return low
    added = next((factor for atoms, factor in _terms(size) if not atoms), 0)
    common = gcd(*(factor for atoms, factor in _terms(size) if atoms))
    scale = 1
    for _ in range(_MAX_QUOTIENTS):
        signs = _quotients(size)
        if not signs:
            break
        # one that is only added, or only subtracted, keeps its product with others as it is
        quotient = next((a for a, sign in signs.items() if sign), next(iter(signs)))
        try:
            size, factor = _without_quotient(size, quotient, signs[quotient])
        except OpError:  # too many terms, or too large ones
            break
        scale *= factor
    if scale == 1:
        return low
    # a multiple of ``common``, and ``added``
    multiple = -(-(lower_bound(_terms(size)) - scale * added) // (scale * common))
    return max(low, common * multiple + added)


def _without_extreme(size: Any) -> Iterator[int]:
    """Yield sizes that are not larger, with one subtracted min or added max replaced.

    The first one that occurs alone in a term with factor 1 is replaced by either of its arguments.
    One that has no variable in common with other terms stays: its own bounds lose nothing, and a
    sum of many would make as many cases as there are subsets of it.
    """
    counts: dict[Atom, int] = {}
    shared: dict[Atom, int] = {}
    for atoms, _ in _terms(size):
        for atom in atoms:
            counts[atom] = counts.get(atom, 0) + 1
        for each in _all_variables(atoms):
            shared[each] = shared.get(each, 0) + 1
    for atoms, factor in _terms(size):
        if len(atoms) != 1:
            continue
        (atom,) = atoms
        if (
            atom.function == ("max" if factor > 0 else "min")
            and counts[atom] == 1
            and any(shared[each] > 1 for each in _all_variables(atoms))
        ):
            rest = size - factor * of_atom(atom)
            yield from (rest + factor * arg for arg in atom.args)
            return


def _all_variables(atoms: Iterable[Atom]) -> set[Atom]:
    """Return the variables of atoms, and those in the limits of variables."""
    found: set[Atom] = set()
    left = list(atoms)
    while left:
        atom = left.pop()
        if atom in found:
            continue
        if not atom.function:
            found.add(atom)
        left += [each for arg in atom.args for part, _ in _terms(arg) for each in part]
    spend(len(found))
    return found


def _limited(size: Any) -> Atom | None:
    """Return a subtracted variable that has a limit, one that no other variable's limit contains.

    In ``8 - a - b`` with ``b <= 8 - a``, the limit of ``b`` proves that it is not negative.
    """
    found = [a for atoms, n in _terms(size) if n < 0 for a in atoms if a.args and not a.function]
    held = {inner for atom in found for inner in variables(atom.args[0])} if len(found) > 1 else ()
    return next((atom for atom in found if atom not in held), None)


def _with_rest(size: Any, limited: Atom) -> Any:
    """Return ``size`` with a variable written as its limit minus a rest."""
    (limit,) = limited.args
    rest = Atom(f"{limited} rest", "", (), 0, max(bounds(limit)[1] - limited.low, 0))
    return replace_variables(size, lambda a: limit - of_atom(rest) if a == limited else of_atom(a))


def _quotients(size: Any) -> dict[Atom, int]:
    """Return the quotients by numbers: 1 for one that is only added, -1 only subtracted, else 0."""
    signs: dict[Atom, int] = {}
    for atoms, factor in _terms(size):
        sign = 1 if factor > 0 else -1
        for atom in atoms:
            if _divides(atom):
                signs[atom] = sign if signs.get(atom, sign) == sign else 0
    return signs


def _without_quotient(size: Any, quotient: Atom, sign: int) -> tuple[Any, int]:
    """Return ``size`` times a number, with the quotient eliminated by its remainder; the number.

    ``sign`` is what :func:`_quotients` says of it.
    """
    numerator, divisor = quotient.args
    remainder = of_atom(Atom(f"{quotient} remainder", "", (), 0, divisor - 1))
    multiple = numerator - (divisor - 1) + remainder if sign > 0 else numerator - remainder
    powers = [atoms.count(quotient) for atoms, _ in _terms(size)]
    most = max(powers)
    total: Any = 0
    for (atoms, factor), power in zip(_terms(size), powers, strict=True):
        others = tuple(atom for atom in atoms if atom != quotient)
        term = _make({others: factor * divisor ** (most - power)})
        for _ in range(power):
            term = term * multiple
        total += term
    return total, divisor**most


def _divides(atom: Atom) -> bool:
    return atom.function == "floordiv" and is_static(atom.args[1])
