"""Keep the states of texts, so that texts that begin alike are not read again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class KeptPrefix(NamedTuple):
    """Tokens, and what the states hold of them.

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

    def common(self, ids: np.ndarray) -> int:
        """Return how many tokens other ids have in common with it, from the first one on."""
        count = min(len(ids), len(self.ids))
        differs = np.flatnonzero(self.ids[:count] != ids[:count])
        return int(differs[0]) if len(differs) else count


class PrefixCache:
    """Holds the states of texts up to a number of bytes; those not used for longest leave first.

    Parameters
    ----------
    limit : int
        The most bytes.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._kept: list[KeptPrefix] = []  # the latest used last

    @property
    def kept(self) -> tuple[KeptPrefix, ...]:
        """Return all that is kept, the latest used last."""
        return tuple(self._kept)

    @property
    def nbytes(self) -> int:
        """Return the bytes of all that is kept."""
        return sum(each.nbytes for each in self._kept)

    def find(self, ids: Sequence[int]) -> tuple[int, Mapping[str, np.ndarray]]:
        """Return how many of the first tokens are known, and states that hold at least these."""
        wanted = np.array(ids, np.int64)
        counts = [each.common(wanted) for each in self._kept]
        if not any(counts):
            return 0, {}
        place = int(np.argmax(counts))
        found = self._kept.pop(place)
        self._kept.append(found)
        return counts[place], found.arrays

    def has(self, ids: Sequence[int]) -> bool:
        """Return whether all of these tokens are known."""
        wanted = np.array(ids, np.int64)
        return any(each.common(wanted) == len(wanted) for each in self._kept)

    def put(self, ids: Sequence[int] | np.ndarray, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep a text in place of its own beginnings; others leave if there is no room."""
        new = KeptPrefix(np.array(ids, np.int64), arrays)
        if new.nbytes > self.limit:
            return
        others = [each for each in self._kept if each.common(new.ids) < len(each.ids)]
        self._kept = [*others, new]
        while self.nbytes > self.limit:
            del self._kept[0]
