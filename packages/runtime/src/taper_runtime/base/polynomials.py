"""Compute with polynomials over atoms, which represent size expressions.

A polynomial is a mapping or a sequence of *terms*: products with integer factors. A product is a
sorted tuple of atoms; the empty product is 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.errors import OpError
from taper_runtime.base.steps import spend

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

#: The most products in one polynomial, and the most atoms in one product.
MAX_TERMS, MAX_DEGREE = 200, 60


class Atom(str):
    """A size variable (``function`` is empty) or a call: its canonical text.

    Atoms are equal if their texts are. They are strings, so that products are compared and looked
    up fast.

    Attributes
    ----------
    text : str
        The text as a plain str.
    function : str
        ``floordiv``, ``min``, ``max``, or empty.
    args : tuple of sizes
        The arguments of a call. Of a variable: an expression that it never exceeds, if one is
        known.
    low, high : int
        The bounds of its value, both included.
    """

    __slots__ = ("args", "function", "high", "low", "text")

    args: tuple[int, ...]
    function: str
    low: int
    high: int
    text: str

    def __new__(cls, text: str, function: str, args: tuple[int, ...], low: int, high: int) -> Self:
        """Make an atom; ``text`` must be canonical."""
        self = super().__new__(cls, text)
        self.text = text
        self.function = function
        self.args = args
        self.low = low
        self.high = high
        return self


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
        If the result has too many terms, or too large products.
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
    """Return one product divided by another, or None if it is not divisible."""
    left = list(atoms)
    for atom in by:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def lower_bound(terms: FrozenTerms) -> int:
    """Return a lower bound of the sum of ``terms``.

    Each atom is written as its minimum plus a non-negative rest. For ``s * t - s`` with s, t >= 1
    the expanded form has no negative term, while the original form gives no useful bound.
    """
    spend(len(terms))
    low = 0
    shifted: Terms = {}
    for atoms, factor in terms:
        if len(atoms) == 1:  # same as below, but faster for most terms
            low += factor * atoms[0].low
            shifted[atoms] = shifted.get(atoms, 0) + factor
            continue
        parts: Terms = {(): factor}
        work = 0
        for atom in atoms:
            grown: Terms = {}
            for rests, amount in parts.items():
                for key, value in ((rests, amount * atom.low), ((*rests, atom), amount)):
                    grown[key] = grown.get(key, 0) + value
            parts = grown
            work += len(parts)
            if len(parts) > MAX_TERMS:
                raise OpError(f"a product of more than {MAX_TERMS} terms")
        spend(work)
        low += parts.pop(())
        for rests, amount in parts.items():
            shifted[rests] = shifted.get(rests, 0) + amount
    for rests, amount in shifted.items():
        if amount < 0:
            for atom in rests:
                amount *= atom.high - atom.low
            low += amount
    return low


def format_terms(terms: Iterable[tuple[tuple[Atom, ...], int]]) -> str:
    """Return the sum of ``terms`` as text: ``2*s*t - s + 1``."""
    text = ""
    for atoms, factor in terms:
        size = abs(factor)
        product = "*".join(atoms)
        if size != 1 or not atoms:
            product = f"{size}*{product}" if atoms else str(size)
        if text:
            text += f" - {product}" if factor < 0 else f" + {product}"
        else:
            text = f"-{product}" if factor < 0 else product
    return text
