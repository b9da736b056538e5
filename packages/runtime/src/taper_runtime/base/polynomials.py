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
    from typing import Self

#: Products in one polynomial, and atoms in one product.
MAX_TERMS, MAX_DEGREE = 200, 60


class Atom(str):
    """A size variable (``function`` is empty) or a call: its canonical text.

    Atoms are equal where their texts are. A str, so that products are compared and looked up as
    fast as those are.

    Attributes
    ----------
    text : str
        The same, of exactly that type.
    function : str
        ``floordiv``, ``min``, ``max``, or empty.
    args : tuple of sizes
        Of a variable: an expression that it never exceeds, where one is known.
    low, high : int
        Its value is between them, both included.
    """

    __slots__ = ("args", "function", "high", "low", "text")

    args: tuple[int, ...]
    function: str
    low: int
    high: int
    text: str

    def __new__(cls, text: str, function: str, args: tuple[int, ...], low: int, high: int) -> Self:
        """Make one; ``text`` has to be canonical."""
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
    spend(len(terms))
    low = 0
    shifted: Terms = {}
    for atoms, factor in terms:
        if len(atoms) == 1:  # as below, for most terms
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
