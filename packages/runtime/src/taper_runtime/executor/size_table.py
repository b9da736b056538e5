"""Compute all sizes of a program in one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.base.sizes import Size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taper_runtime.base.polynomials import Atom


class SizeTable:
    """Compiler of distinct sizes to one straight-line program over 64-bit integers.

    Every size has a slot. The variables have the first ones; ``start`` holds the values of the
    others before ``code`` runs. Constants keep that value.

    Attributes
    ----------
    slots : dict
        The slot of each size, and of each operation with the slots of its operands.
    start : list of int
    code : list of tuple of (str, int, int, int)
        Operation ("add", "mul", or a function of size expressions), the slots of its operands, and
        the slot that it sets.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.slots: dict[Any, int] = {}
        self.start: list[int] = []
        self.code: list[tuple[str, int, int, int]] = []
        for name in names:
            self.slots[name] = self._new(0)

    def slot(self, size: int) -> int:
        """Return the slot that will hold the value of ``size``."""
        if size in self.slots:
            return self.slots[size]
        if not isinstance(size, Size):
            slot = self._new(size)
        else:
            first, *others = [self._product(atoms, factor) for atoms, factor in size.terms]
            slot = first
            for other in others:
                slot = self._emit("add", slot, other)
        self.slots[size] = slot
        return slot

    def _product(self, atoms: tuple[Atom, ...], factor: int) -> int:
        slot = self._atom(atoms[0]) if atoms else self.slot(factor)
        for atom in atoms[1:]:
            slot = self._emit("mul", slot, self._atom(atom))
        if atoms and factor != 1:
            slot = self._emit("mul", slot, self.slot(factor))
        return slot

    def _atom(self, atom: Atom) -> int:
        if not atom.function:
            return self.slots[atom.text]
        a, b = map(self.slot, atom.args)
        return self._emit(atom.function, a, b)

    def _emit(self, operation: str, a: int, b: int) -> int:
        key = (operation, a, b)
        if key not in self.slots:
            slot = self.slots[key] = self._new(0)
            self.code.append((*key, slot))
        return self.slots[key]

    def _new(self, value: int) -> int:
        self.start.append(value)
        return len(self.start) - 1
