"""Compute sums of products of atoms, of which size expressions are made.

A polynomial is a mapping or a sequence of *terms*: products, each a sorted tuple of atoms, with
their integer factors. The empty product is 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.errors import OpError
from taper_runtime.base.steps import spend

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Products in one polynomial, and atoms in one product.
MAX_TERMS, MAX_DEGREE = 200, 60


class Atom:
    """A size variable (``function`` is empty, ``text`` its name) or a call.

    Attributes
    ----------
    text : str
        Canonical: atoms are equal where their texts are.
    function : str
        ``floordiv``, ``min``, ``max``, or empty.
    args : tuple of sizes
        Of a variable: an expression that it never exceeds, where one is known.
    low, high : int
        Its value is between them, both included.
    """

    __slots__ = ("args", "function", "high", "low", "text")

    def __init__(self, text: str, function: str, args: tuple[int, ...], low: int, high: int):
        self.text = text
        self.function = function
        self.args = args
        self.low = low
        self.high = high

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Atom) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __lt__(self, other: Atom) -> bool:
        return self.text < other.text


Terms = dict[tuple[Atom, ...], int]
FrozenTerms = tuple[tuple[tuple[Atom, ...], int], ...]


def add(a: FrozenTerms, b: FrozenTerms, sign: int) -> Terms:
    """Return ``a + sign * b``."""
    total = dict(a)
    for atoms, factor in b:
        total[atoms] = total.get(atoms, 0) + sign * factor
    return total


def multiply(a: FrozenTerms, b: FrozenTerms) -> Terms:
    """Return ``a * b``.

    Raises
    ------
    OpError
        If it has more terms, or larger products, than an expression may have.
    """
    product: Terms = {}
    for atoms, factor in a:
        for more, other_factor in b:
            key = tuple(sorted(atoms + more))
            product[key] = product.get(key, 0) + factor * other_factor
            if len(product) > MAX_TERMS or len(key) > MAX_DEGREE:
                raise OpError(f"a size expression of more than {MAX_TERMS} terms")
    return product


def divide_product(atoms: tuple[Atom, ...], by: tuple[Atom, ...]) -> tuple[Atom, ...] | None:
    """Return one product divided by another; None if it does not divide."""
    left = list(atoms)
    for atom in by:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def lower_bound(terms: FrozenTerms) -> int:
    """Return a number that the sum of ``terms`` is never less than.

    Each atom is written as its least value plus a rest that is not negative. What becomes of
    ``s * t - s`` with s, t >= 1 then has no negative term; as they are, its terms tell nothing.
    """
    numbers: dict[Atom, int] = {}  # a product is looked up sooner by numbers than by atoms
    shifted: dict[tuple[int, ...], int] = {}
    for atoms, factor in terms:
        parts: dict[tuple[int, ...], int] = {(): factor}
        for atom in atoms:
            number = numbers.setdefault(atom, len(numbers))
            grown: dict[tuple[int, ...], int] = {}
            for rests, amount in parts.items():
                for key, value in ((rests, amount * atom.low), ((*rests, number), amount)):
                    grown[key] = grown.get(key, 0) + value
            parts = grown
            spend(len(parts))
            if len(parts) > MAX_TERMS:
                raise OpError(f"a product of more than {MAX_TERMS} terms")
        for rests, amount in parts.items():
            shifted[rests] = shifted.get(rests, 0) + amount
    widths = [atom.high - atom.low for atom in numbers]
    low = shifted.pop((), 0)
    for rests, amount in shifted.items():
        if amount < 0:
            for number in rests:
                amount *= widths[number]
            low += amount
    return low


def format_terms(terms: Iterable[tuple[tuple[Atom, ...], int]]) -> str:
    """Return the sum of ``terms`` as text: ``2*s*t - s + 1``."""
    text = ""
    for atoms, factor in terms:
        parts = [atom.text for atom in atoms]
        if abs(factor) != 1 or not parts:
            parts.insert(0, str(abs(factor)))
        sign = "-" if factor < 0 else "+"
        text += (f" {sign} " if text else sign.strip("+")) + "*".join(parts)
    return text
