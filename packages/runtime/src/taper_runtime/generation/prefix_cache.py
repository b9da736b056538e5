"""Keep the states of texts, so that a beginning that texts share is read once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taper_runtime.plan.rewind_rule import RewindRule


class KeptPrefix(NamedTuple):
    """Tokens, and the parts of the states that hold them.

    Attributes
    ----------
    ids : numpy.ndarray
        int64 ``[n]``.
    arrays : mapping of str to numpy.ndarray
        The states by name, with the positions of these tokens.
    """

    ids: np.ndarray
    arrays: Mapping[str, np.ndarray]

    @property
    def nbytes(self) -> int:
        """Return the bytes of all arrays."""
        return self.ids.nbytes + sum(array.nbytes for array in self.arrays.values())

    def common(self, ids: np.ndarray, rule: RewindRule | None) -> int:
        """Return how many first tokens equal those of ``ids``; 0 if the states hold fewer no more.

        Parameters
        ----------
        ids : numpy.ndarray
            int64 ``[n]``.
        rule : RewindRule or None
            How far back the states can go.
        """
        count = min(len(ids), len(self.ids))
        differs = np.flatnonzero(self.ids[:count] != ids[:count])
        found = int(differs[0]) if len(differs) else count
        if rule is None or rule.allows(int(self.arrays[rule.reached][0]), found):
            return found
        return 0


class PrefixCache:
    """Holds states of texts, up to a number of bytes; the least recently used leave first.

    Parameters
    ----------
    limit : int
        The most bytes.
    rule : RewindRule, optional
        How far back the states can go; by default to any position.
    """

    def __init__(self, limit: int, rule: RewindRule | None = None) -> None:
        self.limit = limit
        self._rule = rule
        self._kept: list[KeptPrefix] = []  # the latest used last

    @property
    def kept(self) -> tuple[KeptPrefix, ...]:
        """Return all kept prefixes, the most recently used last."""
        return tuple(self._kept)

    @property
    def nbytes(self) -> int:
        """Return the bytes of all kept prefixes."""
        return sum(each.nbytes for each in self._kept)

    def find(self, ids: Sequence[int]) -> tuple[int, KeptPrefix | None]:
        """Return the length of the longest kept prefix of ``ids``, and what contains it."""
        wanted = np.array(ids, np.int64)
        counts = [each.common(wanted, self._rule) for each in self._kept]
        if not any(counts):
            return 0, None
        place = int(np.argmax(counts))
        found = self._kept.pop(place)
        self._kept.append(found)
        return counts[place], found

    def has(self, ids: Sequence[int]) -> bool:
        """Return whether a kept prefix begins with all of ``ids``."""
        wanted = np.array(ids, np.int64)
        return any(each.common(wanted, self._rule) == len(wanted) for each in self._kept)

    def put(self, ids: Sequence[int] | np.ndarray, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep a text's states, and drop those of its own beginnings; make room for it."""
        new = KeptPrefix(np.array(ids, np.int64), arrays)
        if new.nbytes > self.limit:
            return
        others = [e for e in self._kept if new.common(e.ids, self._rule) < len(e.ids)]
        self._kept = [*others, new]
        while self.nbytes > self.limit:
            del self._kept[0]
