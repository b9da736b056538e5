"""Substitute values, or variables with other ranges, for the variables of size expressions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.errors import InputError
from taper_runtime.base.polynomials import Atom
from taper_runtime.base.sizes import HIGH, LOW, Size, of_atom, replace_variables

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping


def size_at(size: int, values: Mapping[str, int]) -> int:
    """Return the value of ``size`` for these values of its variables.

    Raises
    ------
    InputError
        If the value or an intermediate result does not fit 64 bits, or a divisor is less than 1.
    """
    if not isinstance(size, Size):
        return size
    total = 0
    for atoms, factor in size.terms:
        product = factor
        for atom in atoms:
            product = _checked(product * _evaluate_atom(atom, values), size)
        total = _checked(total + product, size)
    return total


def _evaluate_atom(atom: Atom, values: Mapping[str, int]) -> int:
    if not atom.function:
        return values[atom.text]
    a, b = (size_at(arg, values) for arg in atom.args)
    if atom.function == "floordiv":
        if b < 1:  # if a variable is 0
            raise InputError(
                f"sizes of the inputs: {atom.text}: expected a divisor of at least 1, got {b}"
            )
        return a // b
    return min(a, b) if atom.function == "min" else max(a, b)


def _checked(value: int, size: int) -> int:
    if not LOW <= value <= HIGH:
        raise InputError(f"sizes of the inputs: expected {size} to fit in 64 bits, got {value}")
    return value


def ranged(size: int, known: Mapping[str, int]) -> int:
    """Return ``size`` with its variables replaced by those in ``known``, with other ranges."""
    result: int = replace_variables(size, lambda atom: known.get(atom.text, of_atom(atom)))
    return result


def assuming_nonempty(shape: Collection[int]) -> Callable[[int], int]:
    """Return a function that rewrites sizes under the assumption that ``shape`` has elements.

    Claims about a tensor's placement are claims about its elements, so they need not hold if it has
    none. If it has some, a variable that is a factor of a dim is at least 1.
    """
    if Size not in map(type, shape):
        return unchanged
    varying = [size for size in shape if isinstance(size, Size)]
    factors = frozenset(
        atom.text
        for size in varying
        if len(size.terms) == 1
        for atom in size.terms[0][0]
        if not atom.function and atom.low < 1
    )
    if not factors:
        return unchanged

    def assume(size: int) -> int:
        if not isinstance(size, Size):
            return size
        key = (assuming_nonempty, factors)  # cached like other operations, because layers repeat it
        result = size.results.get(key)
        if result is None:
            result = replace_variables(size, lambda atom: _raised(atom, factors))
            size.results[key] = result
        return result

    return assume


def unchanged(size: int) -> int:
    """Return ``size``: :func:`assuming_nonempty` if no variable may be 0."""
    return size


def _raised(atom: Atom, factors: Collection[str]) -> int:
    low = max(atom.low, 1) if atom.text in factors else atom.low
    return of_atom(Atom(atom.text, "", atom.args, low, atom.high))
